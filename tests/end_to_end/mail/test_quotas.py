"""Quotas from the configuration and the passwd-file, at the doors of a real node, and on the command line."""

from __future__ import annotations

import imaplib
import json
import smtplib
from dataclasses import replace
from pathlib import Path

import trio
from click.testing import CliRunner

from replicator.cli.command_list import cli
from replicator.config import Address, Config, ListenConfig, QuotaConfig, WhenFull, config_text, default_config
from replicator.users import add_user
from tests.end_to_end.helpers.in_process import free_ports, running


def delivered(config: Config, user: str) -> int:
    """Deliver a message, and return the code of the reply."""
    assert config.listen.lmtp is not None
    with smtplib.LMTP(*config.listen.lmtp) as client:
        try:
            client.sendmail("me@example.org", user, b"Subject: hello\r\n\r\n" + b"x" * 700)
        except smtplib.SMTPDataError as error:
            return error.smtp_code
        return 250


def quota(file: Path, user: str, *options: str) -> str:
    """Return what the command line prints."""
    result = CliRunner().invoke(cli, ["quota", user, "--config", str(file), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_quotas_hold_at_the_doors_and_are_shown(tmp_path: Path) -> None:
    imap, lmtp = (Address("127.0.0.1", port) for port in free_ports(2))
    config = default_config("dc1", tmp_path, listen=ListenConfig(imap=imap, lmtp=lmtp))
    config = replace(config, quota=QuotaConfig(1 << 20, 2, WhenFull.REFUSE))
    file, users = tmp_path / "node.toml", config.users.passwd_file
    file.write_text(config_text(config, tmp_path), encoding="utf-8")
    for name in ("alice", "bob"):
        add_user(users, name, "secret", scheme="PLAIN")
    users.write_text(users.read_text()[:-1] + "::::::quota_storage=1KiB quota_messages=none\n")

    def use() -> None:
        assert [delivered(config, "alice") for _ in range(3)] == [250, 250, 552]
        assert [delivered(config, "bob") for _ in range(2)] == [250, 552]
        client = imaplib.IMAP4(*imap)
        client.login("alice", "secret")
        assert client.append("INBOX", "", "", b"x")[0] == "NO"
        told = [[b'"INBOX" "User quota"'], [b'"User quota" (STORAGE 2 1024 MESSAGE 2 2)']]
        assert client.getquotaroot("INBOX") == ("OK", told)
        client.select("INBOX")
        client.store("1", "+FLAGS", "\\Deleted")
        client.expunge()
        assert client.append("INBOX", "", "", b"x")[0] == "OK"
        client.logout()
        document = json.loads(quota(file, "bob", "--json"))
        assert document.pop("storage_bytes") > 700
        assert document == {"user": "bob", "storage_limit_bytes": 1024, "messages": 1, "messages_limit": None}
        *_, storage, messages = filter(None, map(str.split, quota(file, "Alice").splitlines()))
        assert (storage[0], storage[-4:]) == ("storage", ["1", "MiB", "0", "%"])
        assert messages == ["messages", "2", "2", "100", "%"]
        # The passwd-file is read again: bob gets more room.
        users.write_text(users.read_text().replace("1KiB", "1MiB"))
        assert delivered(config, "bob") == 250
        missing = CliRunner().invoke(cli, ["quota", "nobody", "--config", str(file)])
        assert (missing.exit_code, "there is no user 'nobody'" in missing.stderr) == (1, True)

    async with running([config]):
        await trio.to_thread.run_sync(use)
