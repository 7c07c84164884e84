"""Users of the cluster: changed by the command line at one node, in force at all doors of all nodes."""

from __future__ import annotations

import imaplib
import json
import logging
import smtplib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from replicator.cli.command_list import cli
from replicator.config import Address, Config, UsersConfig, UserSource, WorkersConfig, config_text
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.two_nodes import configs

WITHIN_S = 60.0


def cluster_in(directory: Path, doors: int) -> list[Config]:
    """Return the configurations of two nodes, also written as files; dc2 has so many processes for its doors."""
    made = []
    for config, port in zip(configs(directory), free_ports(2), strict=True):
        lmtp = replace(config.listen, lmtp=Address("127.0.0.1", port))
        users = UsersConfig(config.node.cluster_users, UserSource.CLUSTER)
        workers = WorkersConfig(doors if config.node.id == "dc2" else 0)
        made.append(replace(config, listen=lmtp, users=users, workers=workers))
        file_of(directory, config).write_text(config_text(made[-1], directory))
    return made


def file_of(directory: Path, config: Config) -> Path:
    return directory / f"{config.node.id}.toml"


def recipient(config: Config, address: str) -> int:
    """Return the code of the reply to RCPT."""
    assert config.listen.lmtp is not None
    with smtplib.LMTP(*config.listen.lmtp) as client:
        client.ehlo()
        client.mail("s@example.org")
        return client.rcpt(address)[0]


def can_log_in(config: Config, user: str, password: str) -> bool:
    assert config.listen.imap is not None
    client = imaplib.IMAP4(*config.listen.imap)
    try:
        return client.login(user, password)[0] == "OK"
    except imaplib.IMAP4.error:
        return False
    finally:
        client.shutdown()


@contextmanager
def logged_in(config: Config, user: str, password: str = "secret") -> Iterator[imaplib.IMAP4]:
    assert config.listen.imap is not None
    client = imaplib.IMAP4(*config.listen.imap)
    try:
        client.login(user, password)
        yield client
    finally:
        client.shutdown()


def wait_for(true: object) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("doors", [1, pytest.param(0, marks=pytest.mark.long)])
async def test_users_changed_at_one_node_are_users_of_all(tmp_path: Path, doors: int) -> None:
    near, far = cluster_in(tmp_path, doors)

    def run(*arguments: object, typed: str = "", at: Config = near) -> Result:
        words = [*map(str, arguments), "--config", str(file_of(tmp_path, at))]
        return CliRunner().invoke(cli, words, input=typed, prog_name="replicator")

    def play() -> None:
        assert recipient(far, "alice") == 451
        added = run("user", "add", "Alice", typed="first\n")
        assert (added.exit_code, added.stderr) == (0, "cluster of dc1: user alice added\n")
        assert can_log_in(near, "alice", "first")
        wait_for(lambda: can_log_in(far, "alice", "first"))
        assert recipient(far, "bob") == 550
        assert run("user", "passwd", "alice", typed="second\n", at=far).exit_code == 0
        assert can_log_in(far, "alice", "second")
        assert not can_log_in(far, "alice", "first")
        wait_for(lambda: can_log_in(near, "alice", "second"))
        assert run("user", "list", at=far).stdout == "alice\n"
        again = run("user", "add", "ALICE", typed="x\n", at=far)
        assert (again.exit_code, "already exists" in again.stderr) == (1, True)
        old = tmp_path / "old.passwd"
        old.write_text("alice:{PLAIN}x\nbob:{PLAIN}y\n")
        imported = run("user", "import", old)
        assert imported.exit_code == 0, imported.output
        assert "1 of 2 users exist already, and stay as they are, such as alice; --replace gives" in imported.stderr
        assert f"1 user of {old} added\n" in imported.stderr
        wait_for(lambda: can_log_in(far, "bob", "y"))
        assert can_log_in(near, "alice", "second")
        assert f"2 users of {old} added or replaced\n" in run("user", "import", old, "--replace").stderr
        wait_for(lambda: can_log_in(far, "alice", "x"))
        with logged_in(near, "alice", "x") as session:
            session.select()
            assert run("user", "disable", "alice", at=far).exit_code == 0
            wait_for(lambda: not can_log_in(near, "alice", "x"))
            assert not can_log_in(far, "alice", "x")
            with pytest.raises(imaplib.IMAP4.abort, match="disabled or removed"):
                session.noop()
        assert [recipient(node, "alice") for node in (near, far)] == [250, 250]
        assert "no: disabled" in run("user", "list", "--long").stdout
        tried = run("auth", "test", "alice", typed="x\n")
        assert (tried.exit_code, "alice is disabled" in tried.stdout) == (1, True)
        assert run("user", "enable", "alice").exit_code == 0
        assert run("auth", "test", "alice", typed="x\n").stdout.startswith("alice may log in\n")
        assert run("penalty", "clear").exit_code == 0
        assert can_log_in(near, "alice", "x")
        assert run("user", "delete", "bob", at=far).exit_code == 0
        wait_for(lambda: recipient(near, "bob") == 550)

    async with running([near, far]):
        await trio.to_thread.run_sync(play)


@pytest.mark.parametrize("doors", [1, pytest.param(0, marks=pytest.mark.long)])
async def test_a_renamed_user_finds_the_mail_and_gets_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, doors: int
) -> None:
    caplog.set_level(logging.INFO)
    near, far = cluster_in(tmp_path, doors)

    def run(*arguments: object, typed: str = "", at: Config = near) -> Result:
        words = [*map(str, arguments), "--config", str(file_of(tmp_path, at))]
        return CliRunner().invoke(cli, words, input=typed, prog_name="replicator")

    def deliver(config: Config, address: str) -> None:
        assert config.listen.lmtp is not None
        with smtplib.LMTP(*config.listen.lmtp) as client:
            client.sendmail("s@example.org", [address], b"Subject: x\r\n\r\n")

    def sessions(config: Config, name: str) -> set[str]:
        return {session["id"] for session in json.loads(run("who", name, "--json", at=config).stdout)}

    def play() -> None:
        old = tmp_path / "old.passwd"
        old.write_text("alice:{PLAIN}secret\n")
        wait_for(lambda: run("user", "import", old).exit_code == 0)  # new nodes wait for each other
        wait_for(lambda: can_log_in(far, "alice", "secret"))
        deliver(near, "alice")
        with logged_in(far, "alice") as alice, logged_in(near, "alice") as other:
            alice.create("Work")
            _, [uidvalidity] = alice.status("INBOX", "(UIDVALIDITY)")
            renamed = run("user", "rename", "alice", "alicia@example.org")
            assert renamed.exit_code == 0, renamed.output
            assert "cluster of dc1: user alice renamed to alicia@example.org; the mail stays" in renamed.stderr
            with pytest.raises(imaplib.IMAP4.abort, match="disabled or removed"):
                other.noop()
            wait_for(lambda: can_log_in(far, "alicia@example.org", "secret"))
            with pytest.raises(imaplib.IMAP4.abort, match="disabled or removed"):
                alice.noop()
        assert not any(can_log_in(node, "alice", "secret") for node in (near, far))
        deliver(far, "alicia@example.org")
        for node in (near, far):
            wait_for(lambda node=node: recipient(node, "alice") == 550)
            assert recipient(node, "alicia@example.org") == 250
            with logged_in(node, "alicia@example.org") as alicia:
                assert alicia.status("INBOX", "(UIDVALIDITY)") == ("OK", [uidvalidity])
                wait_for(lambda alicia=alicia: alicia.select() == ("OK", [b"2"]))
                assert alicia.status("Work", "(MESSAGES)")[0] == "OK"
                wait_for(lambda node=node: len(sessions(node, "alice")) == 1)  # those from before end in a moment
                assert sessions(node, "alicia@example.org") == sessions(node, "alice")
                assert run("kick", "alicia@example.org", at=node).exit_code == 0
                with pytest.raises(imaplib.IMAP4.abort, match="An operator has ended this session"):
                    alicia.noop()
        by_mail, by_name = (run("quota", name, "--json", at=far) for name in ("alice", "alicia@example.org"))
        assert (by_mail.exit_code, by_mail.stdout) == (0, by_name.stdout)
        refused = run("user", "add", "alice", typed="x\n", at=far)
        assert (refused.exit_code, "the user whose mail 'alicia@example.org' opens" in refused.stderr) == (1, True)
        refused = run("user", "import", old, "--replace")
        assert (refused.exit_code, "the user whose mail 'alicia@example.org' opens" in refused.stderr) == (1, True)
        refused = run("user", "purge", "alice", "--yes")
        assert (refused.exit_code, "whose mail 'alicia@example.org' opens" in refused.stderr) == (1, True)
        tried = run("auth", "test", "alicia@example.org", typed="secret\n")
        assert tried.stdout.startswith("alicia@example.org may log in, as alice\n")
        assert run("user", "rename", "alicia@example.org", "alice", at=far).exit_code == 0
        assert can_log_in(far, "alice", "secret")

    async with running([near, far]):
        await trio.to_thread.run_sync(play)
    assert "login ok user=alice name=alicia@example.org client=127.0.0.1" in caplog.text
    assert "login ok user=alice client=127.0.0.1" in caplog.text


async def test_nobody_is_renamed_while_a_node_is_away(tmp_path: Path) -> None:
    near, far = cluster_in(tmp_path, 0)

    def run(*arguments: object) -> Result:
        words = [*map(str, arguments), "--config", str(file_of(tmp_path, near))]
        return CliRunner().invoke(cli, words, input="secret\n", prog_name="replicator")

    def play_alone() -> None:
        wait_for(lambda: run("user", "list").exit_code == 0)
        refused = run("user", "rename", "alice", "alicia")
        assert (refused.exit_code, "nobody is renamed: dc2 cannot be reached" in refused.stderr) == (1, True)
        assert run("user", "list").stdout == "alice\n"

    def play_together() -> None:
        wait_for(lambda: run("user", "rename", "alice", "alicia").exit_code == 0)
        assert run("user", "list").stdout == "alicia\n"
        deleted = run("user", "delete", "alicia")
        assert "the mail is that of the user alice, and stays; `replicator user purge alice`" in deleted.stderr

    async with running([near, far]):
        await trio.to_thread.run_sync(wait_for, lambda: run("user", "add", "alice").exit_code == 0)
    async with running([near]):
        await trio.to_thread.run_sync(play_alone)
    async with running([near, far]):
        await trio.to_thread.run_sync(play_together)


async def test_mail_of_a_former_user_is_told_to_the_next_one_unless_it_is_purged(tmp_path: Path) -> None:
    near, far = cluster_in(tmp_path, 0)

    def run(*arguments: object, at: Config = near) -> Result:
        words = [*map(str, arguments), "--config", str(file_of(tmp_path, at))]
        return CliRunner().invoke(cli, words, input="secret\n", prog_name="replicator")

    def play() -> None:
        assert run("user", "add", "alice").exit_code == 0
        assert near.listen.lmtp is not None
        with smtplib.LMTP(*near.listen.lmtp) as client:
            client.sendmail("s@example.org", ["alice"], b"Subject: x\r\n\r\n")
        with logged_in(near, "alice") as alice:
            for folder in ("Work", "Work/Old", "Work/Old/Older"):
                alice.create(folder)
                alice.append(folder, "()", "", b"Subject: y\r\n\r\n")
            alice.subscribe("Work")
            alice.xatom("SETMETADATA", "INBOX", '(/private/comment "secret")')
            alice.xatom("SETMETADATA", '""', '(/private/comment "secret")')
        assert run("user", "delete", "alice").exit_code == 0
        assert "finds 4 messages of the former user" in run("user", "add", "alice").stderr
        refused = run("user", "purge", "alice", "--yes")
        assert (refused.exit_code, "delete the user first" in refused.stderr) == (1, True)
        assert run("user", "delete", "alice").exit_code == 0
        wait_for(lambda: "say --yes" in run("user", "purge", "alice", at=far).stderr)  # users just gone count as unsure
        purged = run("user", "purge", "alice", "--yes", at=far)
        assert purged.stderr == "4 messages and 3 folders of alice removed\n"
        assert run("user", "add", "alice").stderr == "cluster of dc1: user alice added\n"
        with logged_in(near, "alice") as alice:
            assert alice.list() == ("OK", [rb'(\HasNoChildren) "/" "INBOX"'])
            assert alice.lsub() == ("OK", [None])
            assert alice.select() == ("OK", [b"0"])
            for home in ("INBOX", '""'):
                alice.xatom("GETMETADATA", home, "/private/comment")
                assert alice.response("METADATA")[1] == [f'"{home.strip(chr(34))}" (/private/comment NIL)'.encode()]

    async with running([near, far]):
        await trio.to_thread.run_sync(play)
