"""What operators are told of Dovecots that a node calls, and clients are not kept away for."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import trio

from replicator.cli.api.client import NodeClient
from replicator.cli.target import NodeUrl
from replicator.config import Address, Config, DovecotConfig
from tests.dsync.pushed import until
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.two_nodes import client_of, configs


def with_dovecots(config: Config, *dovecots: DovecotConfig) -> Config:
    [http] = free_ports(1)
    return replace(config, dovecots=dovecots, listen=replace(config.listen, http=Address("127.0.0.1", http)))


def shown(config: Config) -> tuple[str, ...]:
    assert config.listen.http is not None
    with NodeClient(NodeUrl(*config.listen.http)) as client:
        return client.status().dovecots


def health(config: Config) -> object:
    assert config.listen.http is not None
    with closing(HTTPConnection(*config.listen.http)) as connection:
        connection.request("GET", "/healthz")
        return json.loads(connection.getresponse().read())["healthy"]


async def test_a_dovecot_that_is_away_keeps_no_client_away(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n", "utf-8")
    [elsewhere] = free_ports(1)
    dovecot = DovecotConfig(Address("127.0.0.1", elsewhere), tmp_path / "secret")
    one = replace(with_dovecots(configs(tmp_path)[0], dovecot), peers=())
    async with running([one]):
        client = await trio.to_thread.run_sync(client_of, one)
        await trio.to_thread.run_sync(client.select)

        async def is_told() -> bool:
            told = await trio.to_thread.run_sync(shown, one)
            return any(f"127.0.0.1:{elsewhere}: it cannot be reached" in text for text in told)

        await until(is_told)
        assert await trio.to_thread.run_sync(health, one) is True
        client.shutdown()
