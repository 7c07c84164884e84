# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

import logging
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.config import LimitsConfig
from replicator.imap.handlers.telling import LOGIN_CHECK_S
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import NewMessage
from replicator.users import UserDirectory, add_user, delete_user, parse_nets, set_disabled, set_password
from tests.imap.access.farewells import PASSWORD_CHANGED
from tests.imap.client import Client, connected, services
from tests.one_node import HookedMail


@pytest.fixture
def served(users: UserDirectory, mail: HookedMail) -> ImapServices:
    return replace(services(mail), users=users)


async def log_in(client: Client, name: str) -> None:
    assert (await client.run(f"LOGIN {name} secret"))[-1].startswith("t OK ")


async def test_login_names_are_resolved_like_addresses(served: ImapServices, mail: HookedMail) -> None:
    await mail.create_folder("alice", "hers")
    for name in ("alice", "ALICE", "Alice@Example.org", "alice+x"):
        async with connected(served) as client:
            await log_in(client, name)
            assert (await client.run("SELECT hers"))[-1].startswith("t OK ")


async def test_changed_password_ends_the_session_at_the_next_command(served: ImapServices, path: Path) -> None:
    async with connected(served) as alice, connected(served) as bob:
        await log_in(alice, "alice")
        await log_in(bob, "bob")
        assert await alice.run("SELECT INBOX")
        set_password(path, "alice", "other", scheme="PLAIN")
        assert await alice.run("FETCH 1:* ALL") == [PASSWORD_CHANGED, ""]
        assert await bob.run("NOOP") == ["t OK Nothing done"]


async def test_disabled_user_is_refused_and_the_log_says_why(
    served: ImapServices, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with connected(served) as alice, connected(served) as again:
        await log_in(alice, "alice")
        set_disabled(path, "alice", disabled=True)
        assert await alice.run("NOOP") == [PASSWORD_CHANGED, ""]
        [answer] = await again.run("LOGIN alice secret")
        assert answer == "t NO [AUTHENTICATIONFAILED] Wrong user name or password"
    said = [record.getMessage() for record in caplog.records if record.name == "replicator.imap.handlers.auth"]
    why = "the user is disabled; `replicator user enable` lets the user log in again"
    assert said[-1] == f'login failed user=alice client=127.0.0.1 mechanism=LOGIN reason="{why}"'


async def test_user_is_refused_from_other_networks_and_the_log_says_why(
    served: ImapServices, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    add_user(path, "near", "secret", scheme="PLAIN", nets=parse_nets("127.0.0.0/8"))
    add_user(path, "far", "secret", scheme="PLAIN", nets=parse_nets("192.0.2.0/24,local"))
    async with connected(served) as near, connected(served) as far:
        await log_in(near, "near")
        [answer] = await far.run("LOGIN far secret")
        assert answer == "t NO [AUTHENTICATIONFAILED] Wrong user name or password"
        assert await far.run("LOGIN far wrong") == [answer]
    said = [record.getMessage() for record in caplog.records if record.name == "replicator.imap.handlers.auth"]
    why = "the user may log in from 192.0.2.0/24,local only"
    assert said[-1] == f'login failed user=far client=127.0.0.1 mechanism=LOGIN reason="{why}"'


async def test_idle_ends_when_the_user_is_deleted(
    served: ImapServices, path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    for command in ("SELECT INBOX", "NOOP"):
        add_user(path, "carol", "secret", scheme="PLAIN")
        async with connected(served) as carol:
            await log_in(carol, "carol")
            await carol.run(command)
            await carol.send("i IDLE\r\n")
            assert await carol.line() == "+ idling"
            await trio.sleep(10 * LOGIN_CHECK_S)
            before = trio.current_time()
            delete_user(path, "carol")
            assert await carol.until("i") == ["* OK Still here", "* OK Still here", PASSWORD_CHANGED, ""]
            assert trio.current_time() - before <= 60


async def test_deleted_user_is_told_of_no_new_mail(
    served: ImapServices, mail: HookedMail, path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(served) as alice:
        await log_in(alice, "alice")
        await alice.run("SELECT INBOX")
        await alice.send("i IDLE\r\n")
        assert await alice.line() == "+ idling"
        delete_user(path, "alice")
        before = trio.current_time()
        await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"x"))
        assert await alice.until("i") == [PASSWORD_CHANGED, ""]
        assert trio.current_time() == before


async def test_login_without_a_list_of_users_is_to_be_tried_again(served: ImapServices, tmp_path: Path) -> None:
    served = replace(served, users=UserDirectory(tmp_path / "none"))
    async with connected(served) as client:
        [answer] = await client.run("LOGIN alice secret")
        assert answer == "t NO [UNAVAILABLE] the list of users cannot be read now; try again later"


async def test_logins_are_logged(served: ImapServices, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served = replace(served, limits=LimitsConfig(imap_connections_per_user=1))
    async with connected(served) as client, connected(served) as one_too_many:
        await client.run('LOGIN "no body" hunter2')
        await client.run("AUTHENTICATE PLAIN " + b64encode(b"\0Alice@x\0hunter2").decode())
        await log_in(client, "Alice@x")
        await one_too_many.run("LOGIN alice secret")
    said = [record.getMessage() for record in caplog.records if record.name == "replicator.imap.handlers.auth"]
    why = "You have 1 connections open, which is the limit"
    assert said == [
        'login failed user="no body" client=127.0.0.1 mechanism=LOGIN reason="wrong user name or password"',
        'login failed user=Alice@x client=127.0.0.1 mechanism=PLAIN reason="wrong user name or password"',
        "login ok user=alice client=127.0.0.1 mechanism=LOGIN",
        f'login refused user=alice client=127.0.0.1 mechanism=LOGIN reason="{why}"',
    ]
    assert "hunter2" not in caplog.text
