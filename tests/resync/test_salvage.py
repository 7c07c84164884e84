"""Mail on branches that no node can merge, which must be saved again."""

from protocol.values import Dot, UidSet
from resync.entry import Change, Entry, MailAdd, MailDel, Merge
from resync.row import Row
from resync.salvage import Branch, mail_left
from tests.resync.histories import HASH, MAILBOX, mail

FIRST, AGAIN = Dot("a.x", 1), Dot("b.x", 1)
GUID = b"x" * 16


def branch(origin: str, *changes: Change) -> Branch:
    return [
        Entry(Dot(origin, seq), (), seq, seq, "alice", MAILBOX, 7, (change,))
        for seq, change in enumerate(changes, start=1)
    ]


def merge_of_two_placements() -> Merge:
    """A merge that shows one message of two placements as UID 2."""
    row = Row(2, FIRST, 0, GUID, Dot("c.x", 1), 2, {}, 0, 1, HASH, ((AGAIN, 0),))
    return Merge(3, 0, (FIRST, AGAIN), (row,), ())


def salvaged(*branches: Branch, seen: dict[str, int]) -> list[MailAdd]:
    return list(mail_left(branches, seen))


def test_message_with_an_unseen_placement_is_salvaged() -> None:
    assert [add.guid for add in salvaged(branch("c.x", merge_of_two_placements()), seen={"a.x": 1})] == [GUID]


def test_message_with_only_seen_placements_is_not_salvaged() -> None:
    assert salvaged(branch("c.x", merge_of_two_placements()), seen={"a.x": 1, "b.x": 1}) == []


def test_message_expunged_in_mailbox_and_branch_is_not_salvaged() -> None:
    expunged = branch("b.x", mail(1, b"x"), MailDel(UidSet.of([1])))
    assert salvaged(branch("c.x", merge_of_two_placements()), expunged, seen={"a.x": 1}) == []


def test_message_that_a_branch_expunges_is_not_salvaged() -> None:
    assert salvaged(branch("c.x", merge_of_two_placements(), MailDel(UidSet.of([2]))), seen={}) == []
