"""NOTIFY (RFC 5465) beyond its dialogues: limits, overflow, slow clients, and what ends with a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock, wait_all_tasks_blocked

from protocol.values import UidSet
from replicator.config import LimitsConfig
from replicator.errors import DatabaseFailedError
from replicator.imap.handlers.telling import LOGIN_CHECK_S
from replicator.imap.services import ImapServices
from replicator.mail import folder_watch
from replicator.mail.folder_watch import Touched
from replicator.mail.mailstore import Folder, NewMessage
from replicator.mail.watched_folders import FolderTree, TreeUpdate, WatchedFolder
from replicator.runtime.metrics import RefusalMetrics
from replicator.store.db.memory import folder_views
from replicator.users import Login
from tests.imap.arrangements import folder_views_of
from tests.imap.client import Client, ReversedNameUsers, connected, fill
from tests.one_node import HookedMail

ALL = "NOTIFY SET (personal (MessageNew MessageExpunge FlagChange MailboxName SubscriptionChange))"


@pytest.mark.parametrize(
    ("limit", "allowed", "refused"),
    [
        (
            "imap_notify_mailboxes",
            "NOTIFY SET (mailboxes (a b) (MailboxName)) (subtree a (MailboxName))",
            "NOTIFY SET (mailboxes (a b) (MailboxName)) (subtree (a b) (MailboxName))",
        ),
        (
            "imap_fetch_items",
            "NOTIFY SET (selected (MessageNew (UID FLAGS ENVELOPE) MessageExpunge))",
            "NOTIFY SET (selected (MessageNew (UID FLAGS ENVELOPE BODY) MessageExpunge))",
        ),
    ],
)
async def test_a_notify_beyond_a_limit_is_refused_and_counted(
    served: ImapServices, limit: str, allowed: str, refused: str
) -> None:
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_notify_mailboxes=3, imap_fetch_items=3)
    served = replace(served, limits=limits, refusals=RefusalMetrics(registry))
    async with connected(served) as client:
        await client.log_in("alice")
        assert (await client.run(allowed))[-1].startswith("t OK")
        answer = (await client.run(refused))[-1]
        assert answer.startswith("t NO [NOTIFICATIONOVERFLOW] ")
        assert "may" in answer
        assert "not 4" in answer
    assert registry.get_sample_value("replicator_refusals_total", {"door": "imap", "limit": limit}) == 1


async def test_an_update_with_too_many_items_is_refused(served: ImapServices) -> None:
    served = replace(served, limits=LimitsConfig(imap_fetch_items=1))
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert (await client.run("SEARCH RETURN (UPDATE (UID)) ALL"))[-1] == "t OK Searched"
        answer = (await client.run("SEARCH RETURN (UPDATE (UID FLAGS)) ALL", "u"))[-1]
        assert answer.startswith("u NO [LIMIT] ")


async def test_a_client_that_lags_too_far_behind_hears_no_more(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "EVENTS_KEPT", 3)
    async with connected(served) as client:
        await client.log_in("alice")
        assert (await client.run(ALL))[-1] == "t OK You will be notified"
        held = _hold_next_change(mail)
        await client.send("s1 APPEND INBOX {1+}\r\nx\r\n")
        await wait_all_tasks_blocked()
        async with connected(served) as other:
            await other.log_in("alice")
            await other.run(ALL)
            for number in range(5):
                await mail.create_folder("alice", f"folder {number}")
        held.set()
        overflow, _ = await client.until("s1")
        assert overflow.startswith("* OK [NOTIFICATIONOVERFLOW] More has changed than can be told; ")
        await mail.create_folder("alice", "unheard")
        assert await client.run("NOOP") == ["t OK Nothing done"]
        assert (await client.run(ALL))[-1] == "t OK You will be notified"
        await mail.create_folder("alice", "heard")
        assert await client.line() == '* LIST (\\HasNoChildren) "/" "heard"'
        await client.line()


async def test_a_database_that_cannot_be_read_ends_the_notifications(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DatabaseFailedError("the disk does not answer")

    async with connected(served) as client:
        await client.log_in("alice")
        await client.run(ALL)
        monkeypatch.setattr(folder_views, "_update", fail)
        await mail.create_folder("alice", "a")
        assert (await client.line()).startswith("* OK [NOTIFICATIONOVERFLOW] the disk does not answer; ")
        assert await client.run("NOOP") == ["t OK Nothing done"]


async def test_special_uses_that_cannot_be_read_end_the_notifications(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.run(ALL)
        monkeypatch.setattr(served.mail, "annotated", _fail)
        await mail.create_folder("alice", "a")
        assert (await client.line()).startswith("* OK [NOTIFICATIONOVERFLOW] the disk does not answer; ")
        assert await client.run("NOOP") == ["t OK Nothing done"]


async def test_a_client_hears_if_another_one_changes_at_once_what_it_has_set(
    served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotate = served.mail.annotate

    async def overtaken(user: str, folder: Folder | None, values: Mapping[str, bytes | None]) -> None:
        await annotate(user, folder, values)
        await annotate(user, folder, {"/shared/comment": b"other"})

    async with connected(served) as client:
        await client.log_in("alice")
        await client.run("NOTIFY SET (inboxes (MailboxMetadataChange))")
        monkeypatch.setattr(served.mail, "annotate", overtaken)
        told = await client.run('SETMETADATA INBOX (/private/comment "own" /shared/comment "own")')
        assert told == ['* METADATA "INBOX" /shared/comment', "t OK Annotations set"]


async def test_new_messages_that_cannot_be_read_end_no_session(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own APPEND is made, so it must be answered: who hears nothing sends the message again."""
    async with connected(served) as client, connected(served) as other:
        for each in (client, other):
            await each.log_in("alice", "INBOX")
            await each.run("NOTIFY SET (selected (MessageNew (UID ENVELOPE) MessageExpunge))")
        monkeypatch.setattr(served.mail, "outlines", _fail)
        await client.send("a APPEND INBOX {10+}\r\nSubject: x\r\n")
        assert (await client.until("a"))[-1].startswith("a OK [APPENDUID ")
        assert await other.line() == "* 1 EXISTS"
        assert (await other.run("NOOP"))[-1].startswith("t OK")
    assert len(await mail.bodies("alice")) == 1


async def test_a_search_that_cannot_be_kept_up_to_date_ends_no_session(
    served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.run("SEARCH RETURN (UPDATE) SUBJECT x", "u")
        monkeypatch.setattr(served.mail, "outlines", _fail)
        await client.send("a APPEND INBOX {10+}\r\nSubject: x\r\n")
        told = await client.until("a")
        assert told[-1].startswith("a OK [APPENDUID ")
        assert '* NO [NOUPDATE "u"] the disk does not answer' in told


async def _fail(*_: object) -> NoReturn:
    raise DatabaseFailedError("the disk does not answer")


async def test_the_watch_ends_with_notify_none_and_with_the_session(served: ImapServices) -> None:
    views = folder_views_of(served)
    async with connected(served) as client, connected(served) as other:
        for each in (client, other):
            await each.log_in("alice")
            assert (await each.run(ALL))[-1].startswith("t OK")
        assert [*views._views] == ["alice"]
        await client.run("NOTIFY SET (selected (MessageNew MessageExpunge))")
        assert [*views._views] == ["alice"]
        await other.run("LOGOUT")
        assert [*views._views] == []
        await client.run(ALL)
        assert [*views._views] == ["alice"]
        await client.run("NOTIFY NONE")
        assert [*views._views] == []


def _hold_next_change(mail: HookedMail) -> trio.Event:
    """Let the next change of messages wait for the event that is returned, as a client's long command does."""
    held, calls = trio.Event(), 0

    async def hold(_user: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await held.wait()

    mail.before_change = hold
    return held


async def test_changes_come_together_to_a_client_that_is_not_told_at_once(
    served: ImapServices, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = folder_views._update

    def counted(*args: object, **named: object) -> TreeUpdate:
        nonlocal looks
        looks += 1
        return look(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(folder_views, "_update", counted)
    inbox = await fill(mail, 1)
    async with connected(served) as client:
        await client.log_in("alice")
        await client.run(ALL)
        held = _hold_next_change(mail)
        await client.send("s1 APPEND INBOX {1+}\r\nx\r\n")
        await wait_all_tasks_blocked()
        view = await mail.open_mailbox(inbox)
        looks = 0
        for number in range(50):
            await mail.save(inbox, NewMessage(b"x"))
            change = frozenset({"\\Seen"})
            added, removed = (change, frozenset[str]()) if number % 2 else (frozenset[str](), change)
            await mail.store_flags(view, UidSet.of([1]), added=added, removed=removed)
        held.set()
        said = [line for line in await client.until("s1") if line.startswith("* STATUS")]
        assert len(said) == 1
        assert "MESSAGES 52 " in said[0]
        assert looks == 1


async def test_a_client_that_is_told_between_commands_may_lose_its_login(
    served: ImapServices, autojump_clock: MockClock
) -> None:
    assert autojump_clock.autojump_threshold == 0
    users = _Users()
    async with connected(replace(served, users=users)) as client:
        await client.log_in("alice")
        await client.run(ALL)
        users.gone = True
        with trio.fail_after(2 * LOGIN_CHECK_S):
            while (line := await _patient_line(client)) and not line.startswith("* BYE"):
                pass
        assert line.startswith("* BYE Your password was changed")


class _Users(ReversedNameUsers):
    gone: bool = False

    def holds(self, login: Login) -> bool:
        return super().holds(login) and not self.gone


async def _patient_line(client: Client) -> str:
    """Return the next line, however long the client waits for it in virtual time."""
    while b"\r\n" not in client.received:
        client.received += await client.stream.receive_some(65536)
    return await client.line()


async def test_a_notified_client_may_send_anything_next(served: ImapServices, mail: HookedMail) -> None:
    """Waiting for literals, large ones and lines that are too long works as without NOTIFY."""
    async with connected(served) as client:
        await client.log_in("alice")
        await client.run(ALL)
        await client.send("a APPEND INBOX {3}\r\n")
        assert await client.line() == "+ Send the literal"
        await client.send("abc\r\n")
        assert (await client.until("a"))[-1].startswith("a OK [APPENDUID ")
        await client.send(b"b APPEND INBOX {100000+}\r\n" + b"x" * 100_000 + b"\r\n")
        assert (await client.until("b"))[-1].startswith("b OK [APPENDUID ")
        await client.send("c " + "x" * 70_000 + "\r\n")
        assert (await client.until("c"))[-1].startswith("c BAD ")
        assert len(await mail.bodies("alice")) == 2


async def test_notify_with_status_of_many_folders_pauses(served: ImapServices, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {f"folder {number}": WatchedFolder(b"%16d" % number, 1) for number in range(500)}
    tree = FolderTree().updated(folders, {}, {}).tree

    async def look(_user: str, _before: FolderTree, _touched: Touched) -> TreeUpdate:
        await trio.lowlevel.checkpoint()
        return TreeUpdate(tree)

    views = folder_views_of(served)
    monkeypatch.setattr(views, "_look", look)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with connected(served) as client, trio.open_nursery() as nursery:
        await client.log_in("alice")
        nursery.start_soon(take_turns)
        before = turns
        told = await client.run("NOTIFY SET STATUS (personal (MessageNew MessageExpunge))")
        assert len(told) == 501
        assert turns - before > 500
        nursery.cancel_scope.cancel()
