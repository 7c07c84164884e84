from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import chain
from unittest.mock import create_autospec, patch

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot, UidSet
from replicator.imap.selection import MailboxGoneError, Selection
from replicator.imap.services import ImapServices
from replicator.mail.flags import MAX_KEYWORDS
from replicator.mail.mailstore import Folder, MailStore, NewMessage
from replicator.mail.view import MailboxView, Message, ViewChange
from replicator.store.db.transaction import Transaction
from tests.imap.client import connected, fill
from tests.one_node import HookedMail

FLAGGED = frozenset({"\\Flagged"})
SEEN = frozenset({"\\Seen"})


async def open_selection(mail: HookedMail, messages: int, user: str = "alice") -> Selection:
    inbox = await mail.folder(user, "INBOX")
    for _ in range(messages):
        await mail.save(inbox, NewMessage(b"x"))
    return await Selection.open(mail, inbox, read_only=False)


async def test_silent_store_announces_other_sessions_changes(mail: HookedMail) -> None:
    selection = await open_selection(mail, 3)
    selection.gather()
    await mail.store_flags(selection.view, UidSet.of([1, 2]), added=SEEN)  # the client's own
    await mail.store_flags(selection.view, UidSet.of([2, 3]), added=FLAGGED)
    await selection.forget_expected({1: SEEN, 2: SEEN})
    assert b"".join(chain.from_iterable(selection.announce(expunges=True))) == (
        b"* 2 FETCH (FLAGS (\\Flagged \\Seen \\Recent))\r\n* 3 FETCH (FLAGS (\\Flagged \\Recent))\r\n"
    )


async def test_forgotten_change_does_not_hide_others(mail: HookedMail) -> None:
    selection = await open_selection(mail, 2)
    await mail.store_flags(selection.view, UidSet.of([1, 2]), added=SEEN)
    selection.forget_changes([1])
    assert (
        b"".join(chain.from_iterable(selection.announce(expunges=True))) == b"* 2 FETCH (FLAGS (\\Seen \\Recent))\r\n"
    )


async def test_first_unseen_message_is_found(mail: HookedMail) -> None:
    for first in range(1, 6):
        selection = await open_selection(mail, 5, f"user{first}")
        await mail.store_flags(selection.view, UidSet.of([*range(1, first), 5]), added=SEEN)
        assert selection.first_unseen() == (first if first < 5 else None)


async def test_closed_selection_is_not_subscribed(mail: HookedMail) -> None:
    selection = await open_selection(mail, 0)
    assert selection.view.subscribers
    selection.close()
    assert not selection.view.subscribers


async def test_select_response_describes_one_moment(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"1", SEEN))
    claim = mail.claim_recent

    async def claim_while_mail_comes(view: MailboxView) -> int:
        answer = await claim(view)
        await mail.save(inbox, NewMessage(b"2"))
        await mail.expunge(await mail.open_mailbox(inbox), UidSet.of([1]))
        monkeypatch.undo()
        return answer

    monkeypatch.setattr(mail, "claim_recent", claim_while_mail_comes)
    async with connected(served) as client:
        await client.log_in("alice")
        lines = await client.run("SELECT INBOX")
        assert [line for line in lines if "EXISTS" in line] == ["* 1 EXISTS"]
        assert [line.split("]")[0] for line in lines if "UNSEEN" in line or "UIDNEXT" in line] == [
            "* OK [UNSEEN 1",
            "* OK [UIDNEXT 3",
        ]
        assert [line for line in lines if "RECENT" in line] == ["* 0 RECENT", "* 1 RECENT"]
        assert await client.run("NOOP") == ["t OK Nothing done"]
    async with connected(served) as client:
        await client.log_in("alice")
        assert "* 0 RECENT" in await client.run("SELECT INBOX")


async def test_select_writes_nothing_unless_mail_has_come(
    mail: HookedMail, served: ImapServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = await mail.folder("alice", "INBOX")
    await mail.save(inbox, NewMessage(b"1"))
    written, write = 0, mail.store.write

    async def counted(work: Callable[[Transaction], object]) -> object:
        nonlocal written
        written += 1
        return await write(work)

    async def recent_when_selected(*, writes: int) -> list[str]:
        nonlocal written
        written = 0
        with monkeypatch.context() as patch:
            patch.setattr(mail.store, "write", counted)
            async with connected(served) as client:
                await client.log_in("alice")
                said = [line for line in await client.run("SELECT INBOX") if "RECENT" in line]
        assert written == writes
        return said

    view = await mail.open_mailbox(inbox)  # kept in memory, as sessions keep it
    assert await recent_when_selected(writes=1) == ["* 1 RECENT"]
    assert await recent_when_selected(writes=0) == ["* 0 RECENT"]
    await mail.save(inbox, NewMessage(b"2"))
    assert view.uidnext == 3
    assert await recent_when_selected(writes=1) == ["* 1 RECENT"]


async def test_failed_selection_is_not_subscribed(mail: HookedMail) -> None:
    inbox = await mail.folder("alice", "INBOX")
    view = await mail.open_mailbox(inbox)

    async def hang(_user: str) -> None:
        await trio.sleep_forever()

    async def break_down(user: str) -> None:
        raise RuntimeError(f"a defect in {user}")

    mail.before_change = hang
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(Selection.open, mail, inbox, read_only=False))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not view.subscribers
    mail.before_change = break_down
    with pytest.raises(RuntimeError):
        await Selection.open(mail, inbox, read_only=False)
    assert not view.subscribers


async def test_keywords_that_differ_in_case_are_one_keyword(mail: HookedMail, served: ImapServices) -> None:
    selection = await open_selection(mail, 0)
    for flags in ({"Junk"}, {"junk", "Work"}, {"Junk", "junk"}):
        await mail.save(selection.folder, NewMessage(b"x", frozenset(flags)))
    async with connected(served) as client:
        await client.log_in("alice")
        told = await client.run("SELECT INBOX")
        assert told[0] == "* FLAGS (\\Answered \\Flagged \\Deleted \\Seen \\Draft Junk Work)"
        assert await client.run("SEARCH KEYWORD JUNK") == ["* SEARCH 1 2 3", "t OK Searched"]
        told = await client.run("STORE 2 -FLAGS (JUNK)")
        assert told[0] == "* 2 FETCH (FLAGS (\\Recent Work))"
        told = await client.run("STORE 3 FLAGS (JUNK)")
        assert told[0] == "* 3 FETCH (FLAGS (\\Recent Junk))"
        told = await client.run("STORE 1:3 -FLAGS.SILENT (junk)")
        assert told[-3] == "* FLAGS (\\Answered \\Flagged \\Deleted \\Seen \\Draft Work)"
    assert [message.flags for message in selection.view.messages.values()] == [set(), {"Work"}, set()]


def message(uid: int, *flags: str) -> Message:
    return Message(uid, bytes(16), 1, frozenset(flags), 0, 1, bytes(32), Dot("dc1.1", uid), 0)


def opened(messages: int) -> Selection:
    rows = [message(uid) for uid in range(1, messages + 1)]
    view = MailboxView.build(
        mailbox_id=bytes(16), user="ann", uidvalidity=1, uidnext=messages + 1, highestmodseq=1, rows=rows
    )
    selection = Selection(create_autospec(MailStore), Folder("ann", "INBOX", bytes(16), 1), view, read_only=False)
    selection.numbering.append(view.messages)
    return selection


class Shown:
    """The messages as a client counts them, each with its flags. It fetches those of new messages at once."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.flags = [frozenset[str]()] * len(selection.numbering)

    def hear(self, line: bytes) -> None:
        found = re.fullmatch(rb"\* (\d+) (EXPUNGE|EXISTS|FETCH \(FLAGS \((.*)\)\))\r\n", line)
        assert found is not None
        number = int(found[1])
        if found[2] == b"EXPUNGE":
            del self.flags[number - 1]
        elif found[2] == b"EXISTS":
            assert number >= len(self.flags)
            messages = self._selection.view.messages
            new = (messages.get(uid) for uid in self._selection.numbering.uids[len(self.flags) : number])
            self.flags += [frozenset() if one is None else one.flags for one in new]
        else:
            self.flags[number - 1] = frozenset(found[3].decode().split())


steps = st.tuples(st.sets(st.integers(1, 12), max_size=6), st.sets(st.integers(1, 12), max_size=6), st.integers(0, 2))


@given(st.integers(0, 10), st.integers(1, 4), st.lists(steps, max_size=8))
def test_client_knows_everything_after_announcements_in_parts(
    messages: int, at_once: int, changes: list[tuple[set[int], set[int], int]]
) -> None:
    """Other sessions go on changing the mailbox while it is told to the client."""
    selection = opened(messages)
    shown = Shown(selection)
    view, modseq, left = selection.view, 1, iter(changes)

    def change() -> None:
        nonlocal modseq
        seen, gone, new = next(left, (set(), set(), 0))
        modseq += 1
        old = [
            message(uid, "\\Seen", *view.messages[uid].flags - {"\\Seen"})
            for uid in seen - gone
            if uid in view.messages
        ]
        more = [message(uid) for uid in range(view.uidnext, view.uidnext + new)]
        expunged = tuple(uid for uid in gone if uid in view.messages)
        view.apply(ViewChange(bytes(16), modseq, view.uidnext + new, (*old, *more), expunged))

    with patch("replicator.imap.selection.ANNOUNCED_AT_ONCE", at_once):
        for _ in range(len(changes) + 1):
            change()
            for lines in selection.announce(expunges=True):
                assert len(lines) <= max(at_once, 3)
                for line in lines:
                    shown.hear(line)
                change()
        for line in chain.from_iterable(selection.announce(expunges=True)):
            shown.hear(line)
    assert list(selection.numbering.uids) == list(view.messages)
    assert shown.flags == [one.flags for one in view.messages.values()]


def test_announcement_ends_when_the_uids_lose_their_meaning() -> None:
    selection = opened(4)
    selection.view.apply(ViewChange(bytes(16), 2, 5, tuple(message(uid, "\\Seen") for uid in range(1, 5))))
    with patch("replicator.imap.selection.ANNOUNCED_AT_ONCE", 2):
        announced = selection.announce(expunges=True)
        assert len(next(announced)) == 2
        selection.view.uidvalidity += 1
        with pytest.raises(MailboxGoneError):
            next(announced)


async def test_mailbox_opened_while_many_messages_come_gets_none_below_its_uidnext(
    mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.mail.view.STEP_WORK", 5)
    source = await open_selection(mail, 50)
    other = await mail.create_folder("alice", "Other")
    opened = 0

    async def open_again_and_again() -> None:
        nonlocal opened
        while True:
            selection = await Selection.open(mail, other, read_only=True)
            known, uidnext = selection.numbering.last, selection.view.uidnext
            await trio.lowlevel.checkpoint()
            list(selection.announce(expunges=True))
            assert not [uid for uid in selection.numbering.uids if known < uid < uidnext]
            selection.close()
            opened += 1

    async with trio.open_nursery() as nursery:
        held = await mail.open_mailbox(other)  # else each opening reads it anew
        nursery.start_soon(open_again_and_again)
        for _ in range(5):
            await mail.copy(source.view, UidSet.of(range(1, 51)), other)
        assert opened
        assert len(held.messages) == 250
        nursery.cancel_scope.cancel()


async def test_client_hears_when_there_may_be_no_more_keywords(mail: HookedMail, served: ImapServices) -> None:
    r"""RFC 9051 section 7.1: PERMANENTFLAGS without `\*`."""
    await fill(mail, 2)
    names = [f"k{number}" for number in range(MAX_KEYWORDS)]
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert permanent(await client.run(f"STORE 1 FLAGS ({' '.join(names[1:])})")).endswith("\\*)")
        assert permanent(await client.run(f"STORE 1 +FLAGS ({names[0]})")).endswith(" k99)")
        assert (await client.run("STORE 1 +FLAGS (another)"))[-1].startswith("t NO [LIMIT] ")
        assert permanent(await client.run(f"STORE 1 -FLAGS ({names[0]})")).endswith("\\*)")


def permanent(lines: list[str]) -> str:
    """Return the flags of the last PERMANENTFLAGS."""
    return [line for line in lines if "PERMANENTFLAGS" in line][-1].split("]")[0]
