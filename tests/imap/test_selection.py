from __future__ import annotations

from protocol.values import UidSet
from replicator.imap.selection import Selection
from replicator.mailstore import NewMessage
from tests.one_node import HookedMail

FLAGGED = frozenset({"\\Flagged"})
SEEN = frozenset({"\\Seen"})


async def opened(mail: HookedMail, messages: int, user: str = "alice") -> Selection:
    inbox = await mail.folder(user, "INBOX")
    for _ in range(messages):
        await mail.save(inbox, NewMessage(b"x"))
    return await Selection.open(mail, inbox, read_only=False)


async def test_a_silent_store_tells_what_another_did_at_the_same_time(mail: HookedMail) -> None:
    selection = await opened(mail, 3)
    selection.gather()
    await mail.store_flags(selection.view, UidSet.of([1, 2]), added=SEEN)  # the client's own
    await mail.store_flags(selection.view, UidSet.of([2, 3]), added=FLAGGED)
    selection.forget_expected({1: SEEN, 2: SEEN})
    assert b"".join(selection.announce(expunges=True)) == (
        b"* 2 FETCH (FLAGS (\\Flagged \\Seen \\Recent))\r\n* 3 FETCH (FLAGS (\\Flagged \\Recent))\r\n"
    )


async def test_what_is_told_otherwise_hides_no_other_change(mail: HookedMail) -> None:
    selection = await opened(mail, 2)
    await mail.store_flags(selection.view, UidSet.of([1, 2]), added=SEEN)
    selection.forget_changes([1])
    assert b"".join(selection.announce(expunges=True)) == b"* 2 FETCH (FLAGS (\\Seen \\Recent))\r\n"


async def test_the_first_unseen_is_found_wherever_it_is(mail: HookedMail) -> None:
    for first in range(1, 6):
        selection = await opened(mail, 5, f"user{first}")
        await mail.store_flags(selection.view, UidSet.of([*range(1, first), 5]), added=SEEN)
        assert selection.first_unseen() == (first if first < 5 else None)


async def test_a_closed_selection_hears_no_more(mail: HookedMail) -> None:
    selection = await opened(mail, 0)
    assert selection.view.subscribers
    selection.close()
    assert not selection.view.subscribers
