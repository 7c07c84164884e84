"""Logins, deliveries and health of a node while its passwd-file comes, changes and goes."""

from __future__ import annotations

import http.client
import imaplib
import json
import logging
import smtplib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from replicator.config import Address, Config, ListenConfig, default_config
from replicator.users import add_user, delete_user, rename_user, set_password
from tests.end_to_end.helpers.in_process import free_ports, running


def config_in(directory: Path) -> Config:
    imap, lmtp, http_port = (Address("127.0.0.1", port) for port in free_ports(3))
    return default_config("dc1", directory, listen=ListenConfig(imap=imap, lmtp=lmtp, http=http_port))


def reasons(config: Config) -> list[str]:
    """Return the reasons for which the node is not healthy."""
    assert config.listen.http is not None
    client = http.client.HTTPConnection(*config.listen.http, timeout=10)
    try:
        client.request("GET", "/healthz")
        response = client.getresponse()
        found = [str(reason) for reason in json.load(response)["reasons"]]
        assert response.status == (503 if found else 200)
        return found
    finally:
        client.close()


def recipient(config: Config, address: str) -> int:
    """Return the code of the reply to RCPT."""
    assert config.listen.lmtp is not None
    with smtplib.LMTP(*config.listen.lmtp) as client:
        client.ehlo()
        client.mail("s@example.org")
        return client.rcpt(address)[0]


@contextmanager
def logged_in(config: Config, name: str, password: str = "secret") -> Iterator[imaplib.IMAP4]:
    assert config.listen.imap is not None
    client = imaplib.IMAP4(*config.listen.imap)
    try:
        client.login(name, password)
        yield client
    finally:
        client.shutdown()


async def test_node_follows_a_passwd_file_that_comes_late_and_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = config_in(tmp_path)
    path = config.users.passwd_file

    def newcomer() -> None:
        [reason] = reasons(config)
        assert reason.startswith(
            f"{path}: cannot be read, so the node accepts neither mail nor logins until `replicator user"
        )
        assert recipient(config, "alice@example.org") == 451
        with pytest.raises(imaplib.IMAP4.error, match="UNAVAILABLE"), logged_in(config, "alice"):
            pass
        add_user(path, "Alice", "secret", scheme="PLAIN")
        assert reasons(config) == []
        assert recipient(config, "ALICE@example.org") == 250
        assert recipient(config, "bob@example.org") == 550
        with logged_in(config, "Alice@Example.org") as client:
            assert client.select() == ("OK", [b"0"])
        path.unlink()
        [reason] = reasons(config)
        assert reason.startswith(f"{path}: cannot be read, so the node keeps the last users that it could read")
        assert recipient(config, "alice@example.org") == 250

    async with running([config]):
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any(f"{path}: cannot be read" in text for text in warned)
        await trio.to_thread.run_sync(newcomer)
    assert f"users read users=1 file={path}" in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("change", ["delete", "password", "rename"])
async def test_sessions_end_when_their_user_goes_or_changes_name_or_password(tmp_path: Path, change: str) -> None:
    config = config_in(tmp_path)
    path = config.users.passwd_file
    for user in ("alice", "bob"):
        add_user(path, user, "secret", scheme="PLAIN")
    end: Callable[[], object] = partial(delete_user, path, "alice")
    if change == "password":
        end = partial(set_password, path, "alice", "other", scheme="PLAIN")
    elif change == "rename":
        end = partial(rename_user, path, "alice", "alicia")

    def sessions() -> None:
        with logged_in(config, "alice") as alice, logged_in(config, "bob") as bob:
            alice.select()
            alice.noop()
            end()
            with pytest.raises(imaplib.IMAP4.abort, match="Your password was changed"):
                alice.noop()
            bob.noop()

    async with running([config]):
        await trio.to_thread.run_sync(sessions)
