from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from protocol.values import UidSet
from replicator.imap.selection import Selection
from replicator.imap.services import ImapServices
from replicator.mailstore import Folder, NewMessage
from tests.imap.client import connected
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
    selection.forget_expected({1: SEEN, 2: SEEN})
    assert b"".join(selection.announce(expunges=True)) == (
        b"* 2 FETCH (FLAGS (\\Flagged \\Seen \\Recent))\r\n* 3 FETCH (FLAGS (\\Flagged \\Recent))\r\n"
    )


async def test_forgotten_change_does_not_hide_others(mail: HookedMail) -> None:
    selection = await open_selection(mail, 2)
    await mail.store_flags(selection.view, UidSet.of([1, 2]), added=SEEN)
    selection.forget_changes([1])
    assert b"".join(selection.announce(expunges=True)) == b"* 2 FETCH (FLAGS (\\Seen \\Recent))\r\n"


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

    async def claim_while_mail_comes(folder: Folder) -> int:
        answer = await claim(folder)
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
