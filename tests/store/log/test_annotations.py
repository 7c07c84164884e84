from collections.abc import Iterator

import pytest

from protocol.values import Dot
from replicator.config import LimitsConfig
from replicator.errors import FolderNotFoundError, MailboxFullError
from replicator.store.db import queries
from replicator.store.log.sequencing.folder_sequencer import REMOVED_FACTOR
from resync.entry import NOWHERE
from tests.store import consistency
from tests.store.harness import ALICE, annotating, creating, deleting, renaming
from tests.store.memory_node import MemoryNode

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def shown(node: MemoryNode, mailbox_id: bytes = NOWHERE, user: str = ALICE) -> dict[str, bytes]:
    known = queries.annotations_of(node.connection, user, mailbox_id)
    return {name.removeprefix("/private/"): value for name, value in known.items()}


def test_annotations_are_set_replaced_and_removed(node: MemoryNode) -> None:
    node.write(creating("a", A))
    assert node.write(annotating(A, one=b"1", two=b"2")) == Dot("dc1.a", 2), "one entry for all"
    assert node.write(annotating(A, one=b"1", two=b"2")) == Dot("dc1.a", 2), "the head that already has them"
    assert node.write(annotating(A, three=None)) == Dot("dc1.a", 2)
    node.write(annotating(A, one=b"", two=None))
    assert shown(node, A) == {"one": b""}
    assert node.write(annotating(A, two=None)) == Dot("dc1.a", 3)


def test_account_and_folders_of_each_user_have_their_own(node: MemoryNode) -> None:
    node.write(annotating(comment=b"account"))
    node.write(annotating(user="bob", comment=b"other account"))
    node.write(creating("a", A))
    node.write(annotating(A, comment=b"folder"))
    assert (shown(node), shown(node, A)) == ({"comment": b"account"}, {"comment": b"folder"})
    assert shown(node, user="bob") == {"comment": b"other account"}
    with pytest.raises(FolderNotFoundError):
        node.write(annotating(A, user="bob", comment=b"not his"))


def test_annotations_follow_a_renamed_folder_and_go_with_a_deleted_one(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(annotating(A, comment=b"x"))
    node.write(renaming(A, "b"))
    assert shown(node, A) == {"comment": b"x"}
    node.write(deleting(A))
    assert shown(node, A) == {}
    with pytest.raises(FolderNotFoundError):
        node.write(annotating(A, comment=b"y"))
    node.write(creating("b", B))
    assert shown(node, B) == {}


def test_inbox_keeps_its_annotations_when_it_is_renamed(node: MemoryNode) -> None:
    """RFC 5464 section 4.1."""
    node.write(creating("INBOX", A))
    node.write(annotating(A, comment=b"x", gone=b"y"))
    node.write(annotating(A, gone=None))
    node.write(renaming(A, "Old"))
    inbox = queries.folder(node.connection, ALICE, "INBOX")
    assert inbox is not None
    assert inbox.mailbox_id != A
    assert shown(node, A) == shown(node, inbox.mailbox_id) == {"comment": b"x"}


def test_numbers_of_annotations_are_limited() -> None:
    limits = LimitsConfig(imap_annotations_per_folder=2, imap_annotations_per_user=3)
    node = MemoryNode("dc1.a", limits=limits)
    for name, mailbox_id in (("a", A), ("b", B)):
        node.write(creating(name, mailbox_id))
    node.write(annotating(A, one=b"1"))
    with pytest.raises(MailboxFullError, match="a folder may have 2 annotations"):
        node.write(annotating(A, two=b"2", three=b"3"))
    assert shown(node, A) == {"one": b"1"}, "all or none"
    node.write(annotating(A, one=None, two=b"2", three=b"3"))
    node.write(annotating(B, one=b"1"))
    for refused in (annotating(B, two=b"2"), annotating(comment=b"x")):
        with pytest.raises(MailboxFullError, match="a user may have 3 annotations"):
            node.write(refused)
    node.write(annotating(B, one=b"another value"))
    node.write(annotating(A, two=None))
    node.write(annotating(comment=b"x"))
    node.write(deleting(A))
    node.write(annotating(B, two=b"2"))
    consistency.check(node.connection)


def test_inbox_is_not_renamed_where_its_annotations_have_no_room_twice() -> None:
    node = MemoryNode("dc1.a", limits=LimitsConfig(imap_annotations_per_user=3))
    node.write(creating("INBOX", A))
    node.write(annotating(A, one=b"1", two=b"2"))
    with pytest.raises(MailboxFullError, match="a user may have 3 annotations"):
        node.write(renaming(A, "Old"))
    node.write(annotating(A, two=None))
    node.write(renaming(A, "Old"))
    assert shown(node, A) == {"one": b"1"}
    consistency.check(node.connection)


def test_removed_annotations_are_limited() -> None:
    """They are remembered, since another node may have set them meanwhile."""
    node = MemoryNode("dc1.a", limits=LimitsConfig(imap_annotations_per_user=10))
    for number in range(10 * REMOVED_FACTOR):
        node.write(annotating(NOWHERE, ALICE, **{f"n{number}": b"x"}))
        node.write(annotating(NOWHERE, ALICE, **{f"n{number}": None}))
    with pytest.raises(MailboxFullError, match="use those names again"):
        node.write(annotating(other=b"x", n1=b"y"))
    node.write(annotating(n1=b"y"))
    assert shown(node) == {"n1": b"y"}
    consistency.check(node.connection)
