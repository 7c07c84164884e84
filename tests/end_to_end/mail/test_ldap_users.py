"""Users of an LDAP server at a real node: log-ins by IMAP, mail by LMTP, with and without processes for the doors."""

from __future__ import annotations

import http.client
import imaplib
import json
import logging
import smtplib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from replicator.config import (
    Address,
    Config,
    LdapConfig,
    ListenConfig,
    LmtpConfig,
    UsersConfig,
    UserSource,
    WorkersConfig,
    config_text,
    default_config,
)
from replicator.socketmap.netstrings import netstring
from replicator.users import add_user
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.user_sources.slapd import BASE, SERVICE_DN, Slapd, needs_slapd, recertified, restarted, slapd

pytestmark = needs_slapd


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Slapd]:
    with slapd(tmp_path / "slapd") as server:
        server.add("alice", "secret", "mail: alice@example.org")
        server.add("bob", "hidden", "mail: bob@example.org")
        yield server


def config_of(directory: Path, server: Slapd, doors: int) -> Config:
    imap, lmtp, web, asked = (Address("127.0.0.1", port) for port in free_ports(4))
    listen = ListenConfig(imap=imap, lmtp=lmtp, http=web, socketmap=asked)
    config = default_config("dc1", directory, listen=listen)
    (directory / "aliases").write_text("team@example.org alice@example.org\n")
    add_user(directory / "masters", "admin", "mighty", scheme="PLAIN")
    ldap = LdapConfig(
        url=server.url,
        base=BASE,
        filter="(|(uid=%u)(mail=%u))",
        starttls=True,
        ca=server.ca,
        bind_dn=SERVICE_DN,
        password_file=server.password_file,
        user_attribute="uid",
        cache_s=1.0,
        cache_missing_s=1.0,
    )
    users = UsersConfig(config.node.cluster_users, UserSource.LDAP, directory / "masters", "*")
    aliases = LmtpConfig(directory / "aliases")
    return replace(config, users=users, ldap=ldap, lmtp=aliases, workers=WorkersConfig(doors))


def deliver(config: Config, *to: str) -> dict[str, tuple[int, bytes]]:
    """Send a message; return the replies to refused recipients."""
    assert config.listen.lmtp is not None
    with smtplib.LMTP(*config.listen.lmtp, "localhost", timeout=60) as client:
        try:
            return client.sendmail("", to, b"Subject: x\r\n\r\nx\r\n")
        except smtplib.SMTPRecipientsRefused as refused:
            return refused.recipients


def log_in(config: Config, name: str, password: str) -> str:
    """Return what the node answers, and how many messages the inbox has."""
    assert config.listen.imap is not None
    with imaplib.IMAP4(*config.listen.imap, timeout=60) as client:
        try:
            client.login(name, password)
        except client.error as error:
            return str(error)
        return f"OK {client.select()[1]}"


def ask(config: Config, address: str) -> str:
    """Return the answer to an MTA's question about a recipient."""
    assert config.listen.socketmap is not None
    with socket.create_connection(config.listen.socketmap, timeout=60) as client:
        client.sendall(netstring(f"recipient {address}"))
        answer = b""
        while not answer.endswith(b","):
            answer += client.recv(4096)
        return answer.decode().partition(":")[2]


def is_deferred(config: Config, name: str) -> bool:
    """Send a message to somebody. Return True if it is to be kept."""
    return deliver(config, name).get(name, (250, b""))[0] == 451


def is_unavailable(config: Config, name: str) -> bool:
    """Try to log in. Return True if the client is told to try again."""
    return "UNAVAILABLE" in log_in(config, name, "secret")


async def until(asked: Callable[[Config, str], bool], config: Config, name: str) -> None:
    """Ask until the answer is yes: what the node and its doors knew before is good for a while, for each of them."""
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(asked, config, name):
            pass


class Heard(logging.Handler):
    """An event of the loop, which comes with a line of the log that has these words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.event = trio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.event.set()


@contextmanager
def heard(words: str) -> Iterator[trio.Event]:
    """Yield an event that comes once this process logs these words."""
    handler, logger = Heard(words), logging.getLogger("replicator.users.elsewhere.look_ups")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.event
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def health(config: Config) -> str:
    assert config.listen.http is not None
    connection = http.client.HTTPConnection(*config.listen.http, timeout=60)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("doors", [0, 1])
async def test_mail_and_log_ins(tmp_path: Path, people: Slapd, doors: int) -> None:
    config = config_of(tmp_path, people, doors)
    in_thread = trio.to_thread.run_sync
    async with running([config]):
        refused = await in_thread(deliver, config, "alice+x@example.org", "nobody@example.org")
        assert {name: code for name, (code, _) in refused.items()} == {"nobody@example.org": 550}
        assert await in_thread(log_in, config, "alice@example.org", "secret") == "OK [b'1']"
        assert "AUTHENTICATIONFAILED" in await in_thread(log_in, config, "alice", "wrong")
        assert "AUTHENTICATIONFAILED" in await in_thread(log_in, config, "nobody", "wrong")
        assert await in_thread(deliver, config, "team@example.org") == {}
        assert await in_thread(log_in, config, '"alice*admin"', "mighty") == "OK [b'2']"
        assert await in_thread(ask, config, "team@example.org") == "OK team@example.org,"
        assert await in_thread(ask, config, "nobody@example.org") == "NOTFOUND ,"
        people.stop()
        await until(is_deferred, config, "nobody@example.org")
        for name in ("alice@example.org", "nobody@example.org"):
            await until(is_unavailable, config, name)
        for known in ("alice@example.org", "team@example.org"):
            assert await in_thread(deliver, config, known) == {}
        assert await in_thread(ask, config, "team@example.org") == "OK team@example.org,"
        assert (await in_thread(ask, config, "nobody@example.org")).startswith("TEMP ")
        assert "there is no connection" in await in_thread(health, config)
        with heard("answers again") as answers:
            again = restarted(people)
            try:
                with trio.fail_after(60):
                    await answers.wait()
                assert "there is no connection" not in await in_thread(health, config)
            finally:
                again.stop()


@pytest.mark.parametrize("doors", [0, 1])
async def test_another_ca_of_the_server_counts_after_a_reload(tmp_path: Path, people: Slapd, doors: int) -> None:
    config = config_of(tmp_path, people, doors)
    in_thread = trio.to_thread.run_sync
    file = tmp_path / "dc1.toml"
    file.write_text(config_text(config, tmp_path))
    assert config.listen.imap is not None
    async with running([config]):
        session = await in_thread(lambda: imaplib.IMAP4(*config.listen.imap, timeout=60))  # type: ignore[misc]
        await in_thread(session.login, "bob", "hidden")
        people.stop()
        again = recertified(people)
        try:
            await until(is_unavailable, config, "alice")
            assert "certificate cannot be verified" in await in_thread(health, config)
            told = await in_thread(
                lambda: subprocess.run(
                    [sys.executable, "-m", "replicator", "reload", "--config", file],
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
            )
            assert (told.returncode, str(people.ca) in told.stdout) == (0, True), told.stderr
            await until(is_welcome, config, "alice")
            again.delete("bob")
            await until(lambda _config, _name: is_ended(session), config, "bob")
        finally:
            again.stop()
            await in_thread(session.shutdown)


def is_welcome(config: Config, name: str) -> bool:
    """Try to log in, and to send a message. Return True if both are right."""
    return log_in(config, name, "secret").startswith("OK") and deliver(config, name) == {}


def is_ended(session: imaplib.IMAP4) -> bool:
    """Return True if the node has ended a session, in whichever process it is."""
    try:
        session.noop()
    except imaplib.IMAP4.abort:
        return True
    return False


async def test_operators_ask(tmp_path: Path, people: Slapd) -> None:
    config = config_of(tmp_path, people, 0)
    in_thread = trio.to_thread.run_sync
    file = tmp_path / "dc1.toml"
    file.write_text(config_text(config, tmp_path))

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "replicator", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)

    async with running([config]):
        asked = await in_thread(
            lambda: run("auth", "test", "alice@example.org", "--config", str(file), stdin="secret\n")
        )
        assert (asked.returncode, "may log in, as alice" in asked.stdout) == (0, True)
        origin = f"{people.url}: uid=alice,{BASE}"
        assert f"alice comes from {origin}; its log-in answers success" in asked.stdout
        listed = await in_thread(lambda: run("user", "list", "--config", str(file)))
        assert listed.stdout.split() == ["alice"]
        assert "has found these lately" in listed.stderr
        shown = await in_thread(lambda: run("user", "show", "bob@example.org", "--json", "--config", str(file)))
        assert json.loads(shown.stdout)["origin"] == f"{people.url}: uid=bob,{BASE}"
        nobody = await in_thread(lambda: run("user", "show", "nobody", "--config", str(file)))
        assert (nobody.returncode, "there is no user 'nobody'" in nobody.stderr) == (1, True)
        refused = await in_thread(lambda: run("user", "delete", "alice", "--config", str(file)))
        assert "or from a server" in refused.stderr
        folders = await in_thread(lambda: run("mailbox", "list", "alice@example.org", "--config", str(file)))
        assert "INBOX" in folders.stdout, folders.stderr
    checked = await in_thread(lambda: run("config", "check", str(file)))
    assert (checked.returncode, checked.stderr) == (0, "")
    text = file.read_text()
    file.write_text(text.replace(BASE, "ou=none,dc=example,dc=org"))
    checked = await in_thread(lambda: run("config", "check", str(file)))
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("base = "))
    assert checked.returncode == 2
    assert f"{file}:{line}: base: {people.url}: the search below 'ou=none,dc=example,dc=org' failed" in checked.stderr
