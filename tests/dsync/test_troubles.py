"""Troubles with Dovecots that a node calls: operators are told, and clients are not kept away."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
import trio

from replicator.cli.api.client import NodeClient
from replicator.cli.target import NodeUrl
from replicator.config import Address, Config, DovecotConfig, PeerConfig
from replicator.dsync.pushes.neighbours import TOLD_MAX, Neighbour, dovecot_capabilities
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


def linked_by_tcp(one: Config, other: Config) -> tuple[Config, Config]:
    one_at, other_at = [Address("127.0.0.1", port) for port in free_ports(2)]
    return (
        replace(one, listen=replace(one.listen, peer=one_at), peers=(PeerConfig(other.node.id, other_at),)),
        replace(other, listen=replace(other.listen, peer=other_at), peers=(PeerConfig(one.node.id, one_at),)),
    )


async def test_nodes_that_call_the_same_dovecot_tell_of_each_other(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n", "utf-8")
    [elsewhere] = free_ports(1)
    dovecot = DovecotConfig(Address("127.0.0.1", elsewhere), tmp_path / "secret")
    one, other = linked_by_tcp(*[with_dovecots(config, dovecot) for config in configs(tmp_path)])
    async with running([one, other]):

        async def is_told(config: Config, sid: str) -> bool:
            told = await trio.to_thread.run_sync(shown, config)
            return any(f"127.0.0.1:{elsewhere}: {sid} calls it for the same users" in text for text in told)

        for config, sid in ((one, "dc2"), (other, "dc1")):
            await until(partial(is_told, config, sid))


HERE, ELSEWHERE = Address("127.0.0.1", 2425), Address("dovecot.example", 2425)


@pytest.mark.parametrize(
    ("own", "theirs", "is_here", "told"),
    [
        (DovecotConfig(ELSEWHERE, Path("a")), DovecotConfig(ELSEWHERE, Path("b")), False, True),
        (DovecotConfig(ELSEWHERE, Path("a")), DovecotConfig(Address("Dovecot.EXAMPLE", 2425), Path("b")), False, True),
        (DovecotConfig(ELSEWHERE, Path("a")), DovecotConfig(Address("other.example", 2425), Path("b")), False, False),
        (DovecotConfig(ELSEWHERE, Path("a"), users=("a*",)), DovecotConfig(ELSEWHERE, Path("b")), False, False),
        (DovecotConfig(HERE, Path("a")), DovecotConfig(HERE, Path("b")), False, False),
        (DovecotConfig(HERE, Path("a")), DovecotConfig(HERE, Path("b")), True, True),
    ],
)
def test_who_calls_the_same_dovecot(own: DovecotConfig, theirs: DovecotConfig, *, is_here: bool, told: bool) -> None:
    neighbour = Neighbour("dc2", ("ENTRIES", *dovecot_capabilities([theirs])), is_here)
    assert neighbour.calls(own) == told


def test_a_hello_tells_of_a_few_dovecots() -> None:
    many = [DovecotConfig(Address(f"d{number}.example", 2425), Path("a")) for number in range(TOLD_MAX + 1)]
    assert len(dovecot_capabilities(many)) == TOLD_MAX
    assert not any("=" in one for one in dovecot_capabilities(many)), (
        "that would be a policy, which both nodes must have"
    )
