"""Users of Debian's Dovecot at a real node: log-ins by IMAP, mail by LMTP, with and without processes for the doors."""

from __future__ import annotations

import imaplib
import smtplib
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from replicator.config import Address, Config, ListenConfig, UsersConfig, UserSource, WorkersConfig, default_config
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.user_sources.dovecot_auth import dovecot, needs_dovecot


def deliver(config: Config, *to: str) -> dict[str, int]:
    """Send a message; return the codes of the replies to refused recipients."""
    assert config.listen.lmtp is not None
    with smtplib.LMTP(*config.listen.lmtp, "localhost", timeout=60) as client:
        refused = client.sendmail("", to, b"Subject: x\r\n\r\nx\r\n")
    return {name: code for name, (code, _) in refused.items()}


def messages(config: Config, name: str, password: str) -> int | None:
    """Return how many messages the inbox has; None: the client is not let in."""
    assert config.listen.imap is not None
    with imaplib.IMAP4(*config.listen.imap, timeout=60) as client:
        try:
            client.login(name, password)
        except client.error:
            return None
        [count] = client.select()[1]
        assert count is not None
        return int(count)


@needs_dovecot
@pytest.mark.parametrize("doors", [0, 1])
async def test_mail_and_log_ins(tmp_path: Path, doors: int) -> None:
    in_thread = trio.to_thread.run_sync
    imap, lmtp = (Address("127.0.0.1", port) for port in free_ports(2))
    config = default_config("dc1", tmp_path, listen=ListenConfig(imap=imap, lmtp=lmtp))
    with dovecot() as server:
        users = UsersConfig(config.node.cluster_users, UserSource.DOVECOT)
        config = replace(config, users=users, dovecot_auth=server.config, workers=WorkersConfig(doors))
        async with running([config]):
            assert await in_thread(deliver, config, "Alice+x@Example.org", "nobody@example.org") == {
                "nobody@example.org": 550
            }
            assert await in_thread(messages, config, "alice@example.org", "secret") == 1
            assert await in_thread(messages, config, "alice", "wrong") is None
            assert await in_thread(messages, config, "bob", "hidden") is None, "Dovecot says nologin"
