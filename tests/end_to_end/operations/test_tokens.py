"""The command line and a node whose HTTP listener asks for tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from click.testing import CliRunner, Result

from replicator.cli.command_list import cli
from replicator.config import (
    Address,
    CertificateConfig,
    HttpConfig,
    ListenConfig,
    config_text,
    default_config,
    load_config,
)
from replicator.http.tokens import Role, add_token
from tests.end_to_end.helpers.certificates import certificate
from tests.end_to_end.helpers.in_process import free_ports, running

LOOPBACK_BY_ANOTHER_NAME = "127.1"  # inet(3) takes it for 127.0.0.1; a node takes it for the name of another machine


def command(*arguments: object, token: str = "", **more: str) -> Result:
    """Run a command in this process, where it starts ten times as fast. It is used from one thread at a time."""
    environment = {"REPLICATOR_TOKEN": token, **more}
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)


def process(*arguments: object, token: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as those need that handle signals."""
    line = [sys.executable, "-m", "replicator", *map(str, arguments)]
    environment = {**os.environ, "REPLICATOR_TOKEN": token}
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment)


async def test_commands_show_tokens_and_need_none_at_the_own_socket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [port] = free_ports(1)
    config = default_config("dc1", tmp_path, listen=ListenConfig(http=Address("127.0.0.1", port)))
    file, url = tmp_path / "dc1.toml", f"http://127.0.0.1:{port}"
    file.write_text(config_text(replace(config, http=HttpConfig(tmp_path / "http.tokens")), tmp_path), "utf-8")
    run = partial(trio.to_thread.run_sync, abandon_on_cancel=True)

    async with running([load_config(file)]):
        assert "everybody on this machine" not in caplog.text
        made = await run(partial(command, "token", "add", "monitor", "--role", "read", "--config", file))
        reader = made.stdout.strip()
        added = await run(partial(command, "token", "add", "laptop", "--role", "operate", "--config", file))
        (tmp_path / "secret").write_text(added.stdout, "utf-8")

        without = await run(partial(command, "status", "--url", url))
        advice = "this needs a token: name a file with one by --token-file"
        assert (without.exit_code, advice in without.stderr) == (1, True)
        assert (await run(partial(command, "status", "--url", url, token=reader))).exit_code == 0
        may_not = await run(partial(command, "checkpoint", "--url", url, token=reader))
        assert (may_not.exit_code, "'monitor' has the role read, but" in may_not.stderr) == (1, True)
        with_file = partial(command, "checkpoint", "--url", url, "--token-file", tmp_path / "secret", token=reader)
        assert (await run(with_file)).exit_code == 0
        assert (await run(partial(command, "checkpoint", "--config", file))).exit_code == 0
        reloaded = partial(command, "reload", "--url", url, "--token-file", tmp_path / "secret")
        assert (await run(reloaded)).exit_code == 0

        listed = await run(partial(command, "token", "list", "--config", file))
        assert ("monitor" in listed.stdout, reader in listed.stdout) == (True, False)
        assert (await run(partial(command, "token", "delete", "monitor", "--config", file))).exit_code == 0
        gone = await run(partial(command, "status", "--url", url, token=reader))
        assert (gone.exit_code, "there is no such token" in gone.stderr) == (1, True)


async def test_http_is_encrypted_where_other_machines_can_reach_it(tmp_path: Path) -> None:
    [port] = free_ports(1)
    tls = certificate(trustme.CA(), tmp_path, "dc1")
    config = replace(
        default_config("dc1", tmp_path, listen=ListenConfig(http=Address(LOOPBACK_BY_ANOTHER_NAME, port))),
        http=HttpConfig(tmp_path / "http.tokens"),
        certificates=(CertificateConfig(tls.certificate, tls.key),),
    )
    secret = add_token(tmp_path / "http.tokens", "laptop", Role.OPERATE)
    run = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
    async with running([config]):
        ask = partial(command, "checkpoint", "--url", f"https://127.0.0.1:{port}", token=secret)
        done = await run(partial(ask, SSL_CERT_FILE=str(tls.ca)))
        assert (done.exit_code, done.stderr) == (0, "")
        stranger = await run(ask)
        assert (stranger.exit_code, "is not trusted" in stranger.stderr) == (1, True)
        assert "name the file of that in SSL_CERT_FILE" in stranger.stderr
        plain = await run(partial(command, "checkpoint", "--url", f"http://127.0.0.1:{port}", token=secret))
        assert (plain.exit_code, "no answer" in plain.stderr) == (1, True)
        without = await run(partial(ask, token="", SSL_CERT_FILE=str(tls.ca)))
        assert (without.exit_code, "this needs a token" in without.stderr) == (1, True)


@pytest.mark.long
async def test_token_is_good_for_inventories_in_the_data_of_a_node_wherever_its_configuration_lies(
    tmp_path: Path,
) -> None:
    [port] = free_ports(1)
    file, url, data = tmp_path / "etc" / "dc1.toml", f"http://127.0.0.1:{port}", tmp_path / "var" / "dc1"
    file.parent.mkdir()
    file.write_text(
        '[node]\nid = "dc1"\ndata = "../var/dc1"\n'
        f'[listen]\nhttp = "127.0.0.1:{port}"\n[http]\ntokens = "http.tokens"\n',
        "utf-8",
    )
    run = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
    async with running([load_config(file)]):
        secret = (await run(partial(command, "token", "add", "a", "--role", "operate", "--config", file))).stdout
        write = partial(process, "inventory", "--url", url, token=secret.strip())
        made = await run(partial(write, "--to", data / "inventories" / "today"))
        assert (made.returncode, made.stderr) == (0, "")
        elsewhere = await run(partial(write, "--to", tmp_path / "elsewhere"))
        assert (elsewhere.returncode, f"inventories go below {data}/inventories" in elsewhere.stderr) == (1, True)


async def test_node_that_asks_for_no_token_says_at_the_start_who_can_operate_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [port] = free_ports(1)
    async with running([default_config("dc1", tmp_path, listen=ListenConfig(http=Address("127.0.0.1", port)))]):
        assert f"everybody on this machine can operate this node at http://127.0.0.1:{port}" in caplog.text


def test_token_is_not_sent_in_clear_over_a_network_nor_taken_from_anything(tmp_path: Path) -> None:
    far = command("status", "--url", "http://192.0.2.1:1080", token="secret")
    assert (far.exit_code, "a token is not sent to 192.0.2.1 unencrypted" in far.stderr) == (2, True)
    (tmp_path / "picture").write_bytes(b"\x00\x01\xff\n")
    for file, problem in (("picture", "the first line is not a token"), ("none", "No such file")):
        wrong = command("status", "--url", "http://127.0.0.1:1", "--token-file", tmp_path / file)
        assert (wrong.exit_code, problem in wrong.stderr) == (2, True)
