"""What branches that no node can join leave to be saved again."""

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


def joined() -> Merge:
    """A merge that shows one message of two placements as UID 2."""
    row = Row(2, FIRST, 0, GUID, Dot("c.x", 1), 2, {}, 0, 1, HASH, ((AGAIN, 0),))
    return Merge(3, 0, (FIRST, AGAIN), (row,), ())


def left(*branches: Branch, seen: dict[str, int]) -> list[MailAdd]:
    return list(mail_left(branches, seen))


def test_a_message_with_a_placement_that_the_mailbox_has_not_seen_is_left() -> None:
    assert [add.guid for add in left(branch("c.x", joined()), seen={"a.x": 1})] == [GUID]


def test_a_message_all_of_whose_placements_the_mailbox_has_seen_is_not_left() -> None:
    assert left(branch("c.x", joined()), seen={"a.x": 1, "b.x": 1}) == []


def test_a_message_is_not_left_if_the_mailbox_has_expunged_one_placement_and_a_branch_the_other() -> None:
    expunged = branch("b.x", mail(1, b"x"), MailDel(UidSet.of([1])))
    assert left(branch("c.x", joined()), expunged, seen={"a.x": 1}) == []


def test_a_message_that_a_branch_expunges_with_all_its_placements_is_not_left() -> None:
    assert left(branch("c.x", joined(), MailDel(UidSet.of([2]))), seen={}) == []
