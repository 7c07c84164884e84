"""Forks in real databases, whose nodes number independently, exchange logs in any order, and merge branches."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, UidSet
from replicator.config import UidConflict
from replicator.errors import HistoryError
from replicator.mail.annotations import VALUE_BYTES_MAX
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.log import forks
from replicator.store.log.sequencing import folder_sequencer
from resync.entry import (
    NOWHERE,
    AnnotationState,
    Entry,
    FolderState,
    MailAdd,
    MailDel,
    Merge,
    SubscriptionState,
    TreeMerge,
)
from resync.merge import ROW_BYTES
from resync.row import Row
from resync.state import ContradictionError
from tests.effort import examples
from tests.store import consistency
from tests.store.branching import BODY, TREE, World, with_histories
from tests.store.harness import ALICE, INBOX, annotating, creating, expunging, guid, saving
from tests.store.memory_node import MemoryNode


@given(st.integers(2, 5), st.integers(0, 120), st.randoms(use_true_random=False))
@settings(max_examples=examples(10, 60), deadline=None)
def test_nodes_that_number_independently_and_merge_converge(size: int, steps: int, rng: random.Random) -> None:
    world = World(rng, size)
    for _ in range(steps):
        world.step()
    world.settle()
    world.check()
    for one in world.all:
        one.node.connection.close()


def test_branch_waits_until_the_merge_below_it_is_complete() -> None:
    one, other, merger, late = (MemoryNode(f"dc{number}.a") for number in (1, 2, 3, 4))
    one.write(saving(b"text", guid(1)))
    other.write(saving(b"text", guid(2)))
    (first,), (second,) = one.log(), other.log()
    for item in (first, second):
        merger.take(item)
    (head,) = forks.branch_heads(merger.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(merger.connection, head)
    assert branch is not None
    merger.write(lambda tx: forks.merge_branch(tx, INBOX, branch))
    merge = merger.log()[-1]
    for item in (first, merge):
        other.take(item)
    for number, node in enumerate((merger, other)):
        node.write(saving(b"text", guid(3 + number)))
    for item in (second, merge, merger.log()[-1], other.log()[-1]):
        late.take(item)
    (head,) = forks.branch_heads(late.connection, INBOX.mailbox_id)
    assert forks.replay_branch(late.connection, head) is None
    late.take(first)
    assert forks.replay_branch(late.connection, head) is not None


# ---- histories that no correct node makes -------------------------------------------------------------------------


def adding_entry(dot: Dot, uid: int, *predecessors: Dot, modseq: int) -> Entry:
    mail = MailAdd(uid, guid(100 * dot.seq + uid), 0, (), 4, BODY.content_hash, copied=False)
    return Entry(dot, predecessors, 1 << 20, modseq, *INBOX, (mail,))


def shown(node: MemoryNode) -> list[int]:
    return [row.uid for row in queries.mailbox_rows(node.connection, INBOX.mailbox_id)]


ROOT, LEFT, RIGHT, ON_LEFT = (Dot("dc9.a", seq) for seq in (1, 2, 3, 4))


def test_node_that_forks_its_own_origin_removes_no_mail() -> None:
    node = MemoryNode("dc1.a")
    node.receive(adding_entry(ROOT, 1, modseq=1), [b"body"])
    node.receive(adding_entry(LEFT, 2, ROOT, modseq=2))
    node.receive(adding_entry(RIGHT, 2, ROOT, modseq=2))
    with pytest.raises(ContradictionError, match="numbered entries on two branches"):
        forks.replay_branch(node.connection, RIGHT)
    node.receive(adding_entry(ON_LEFT, 3, LEFT, modseq=3))
    assert shown(node) == [1, 2], "an entry that counts the other branch as seen was applied"
    assert node.write(saving(b"text", guid(1))).uids == (3,)


def test_fork_within_one_origin_is_found_behind_a_merge() -> None:
    """This node has merged one branch before the other one arrives."""
    node = MemoryNode("dc1.a")
    node.receive(adding_entry(ROOT, 1, modseq=1), [b"body"])
    node.receive(adding_entry(LEFT, 2, ROOT, modseq=2))
    node.write(saving(b"text", guid(1)))
    other = Dot("dc8.a", 1)
    node.receive(adding_entry(other, 3, LEFT, modseq=3))
    (head,) = forks.branch_heads(node.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(node.connection, head)
    assert branch is not None
    node.write(lambda tx: forks.merge_branch(tx, INBOX, branch, UidConflict.RENUMBER))
    before = shown(node)
    node.receive(adding_entry(RIGHT, 2, ROOT, modseq=2))
    node.receive(adding_entry(ON_LEFT, 3, RIGHT, modseq=3))
    with pytest.raises(ContradictionError, match="numbered entries on two branches"):
        forks.replay_branch(node.connection, ON_LEFT)
    assert shown(node) == before


def test_circular_entries_are_no_branch() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    node.receive(adding_entry(ROOT, 1, LEFT, modseq=2), [b"body"])
    node.receive(adding_entry(LEFT, 1, ROOT, modseq=3))
    node.receive(adding_entry(RIGHT, 1, LEFT, modseq=4))
    assert forks.branch_heads(node.connection, INBOX.mailbox_id) == []


MERGE = Dot("dc8.a", 1)


def forked() -> tuple[MemoryNode, Dot]:
    """Return a node and its head. It shows UIDs 1 and 2, has numbered UID 2 itself, and its log has another branch."""
    node = MemoryNode("dc1.a")
    node.receive(adding_entry(ROOT, 1, modseq=1), [b"body"])
    node.write(saving(b"text", guid(1)))
    node.receive(adding_entry(LEFT, 2, ROOT, modseq=2))
    node.write(lambda tx: setattr(tx.chain_to_change(INBOX.mailbox_id, ALICE, 7), "risen", 5))
    return node, Dot("dc1.a", 1)


def test_merge_that_contradicts_the_mailbox_waits() -> None:
    node, head = forked()
    _, mine = queries.mailbox_rows(node.connection, INBOX.mailbox_id)
    moved = mine._replace(uid=4, claim=MERGE, modseq=3)
    stranger = moved._replace(dot=MERGE, guid=guid(7))
    good = Merge(5, 5, (head, LEFT), (moved,), ())

    def applies(sid: str, change: Merge, modseq: int = 3) -> bool:
        dot = Dot(f"{sid}.a", 1)
        merge = Entry(dot, (head, LEFT), 1 << 20, modseq, *INBOX, (change,))
        node.receive(with_histories(node.connection, merge))
        return node.applied(dot)

    assert not applies("dc2", good._replace(uidnext=2, rows=())), "UIDNEXT falls"
    assert not applies("dc3", good._replace(uidnext=UID_MAX)), "no UIDs are left"
    assert not applies("dc4", good._replace(risen=4)), "UIDVALIDITY falls"
    assert not applies("dc5", good._replace(context=(LEFT,))), "its context lacks this node's entries"
    assert not applies("dc6", good._replace(rows=(stranger._replace(uid=2),))), "another message's UID"
    node.write(expunging(2))
    head = Dot("dc1.a", 2)
    good = good._replace(context=(head, LEFT), rows=(stranger,))
    assert not applies("dc7", good._replace(rows=(stranger._replace(uid=2),)), modseq=4), "a UID below UIDNEXT"
    assert applies("dc8", good, modseq=4)
    assert shown(node) == [1, 4]


def test_a_large_merge_is_one_entry_of_several_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resync.merge.BYTES_AT_ONCE", 3 * ROW_BYTES)
    left, right = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    for number in range(10):
        left.write(saving(b"text", guid(number)))
        right.write(saving(b"text", guid(100 + number)))
    right.write(expunging(1, 2, 3))
    for item in right.log():
        left.take(item)
    (head,) = forks.branch_heads(left.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(left.connection, head)
    assert branch is not None
    left.write(lambda tx: forks.merge_branch(tx, INBOX, branch, UidConflict.UIDVALIDITY))
    for item in left.log():
        right.take(item)
    merge = left.log()[-1].entry
    assert len(merge.changes) == 6
    assert Entry.unpack(merge.dot, merge.pack()) == merge
    assert left.digests() == right.digests()
    assert len(shown(left)) == 17
    consistency.check(right.connection)


def test_merge_that_contradicts_the_tree_waits() -> None:
    node = MemoryNode("dc1.a")
    node.write(creating("a", b"a" * 16))
    own = chains.load(node.connection, TREE.mailbox_id)
    assert own is not None
    assert own.head is not None
    folder = queries.tree_state(node.connection, ALICE, own).folders[b"a" * 16]
    context, other = (own.head, Dot("dc9.a", 1)), Dot("dc9.a", 1)
    above = folder._replace(uidvalidity=folder.uidvalidity + 1)

    def receive(sid: str, context: tuple[Dot, ...], *folders: FolderState) -> bool:
        assert own.head is not None
        dot = Dot(f"{sid}.a", 1)
        merge = Entry(dot, (own.head, other), 1 << 20, 2, *TREE, (TreeMerge(context, folders, ()),))
        node.receive(with_histories(node.connection, merge))
        return node.applied(dot)

    assert not receive("dc2", (other,), above), "its context lacks this node's entries"
    assert not receive("dc3", context, folder._replace(uidvalidity=1)), "a UIDVALIDITY falls"
    assert not receive("dc4", context, above, above._replace(mailbox_id=b"b" * 16)), "one name, two folders"
    assert not receive("dc5", context, above._replace(user="bob")), "another user's"
    assert receive("dc6", context, above)


def test_merge_mixed_with_other_changes_is_refused() -> None:
    node, head = forked()
    merge = Merge(5, 5, (head, LEFT), (), ())
    for changes in ((merge._replace(context=(head, LEFT, MERGE)),), (merge, MailDel(UidSet.of([1])))):
        with pytest.raises(HistoryError, match="check the node that numbered it"):
            node.receive(Entry(MERGE, (head, LEFT), 1 << 20, 3, *INBOX, changes))
    assert shown(node) == [1, 2]


BIG = 1 << 63
MANY = (Dot("dc2.a", 1), Dot("dc3.a", BIG))
ROW = Row(1, ROOT, 0, guid(7), ROOT, 1, {}, 0, 4, BODY.content_hash)
FOLDER = FolderState(b"a" * 16, ALICE, "a", 9, deleted=False, time=1, sid="dc1")
SUBSCRIPTION = SubscriptionState(ALICE, "a", subscribed=True, time=1, sid="dc1")
ANNOTATION = AnnotationState(ALICE, NOWHERE, "/private/comment", b"x", 1, "dc1")


@pytest.mark.parametrize(
    ("key", "merge"),
    [
        (INBOX, Merge(2, 0, MANY, (), ())),
        (INBOX, Merge(2, 0, (), (ROW._replace(change=BIG),), ())),
        (INBOX, Merge(2, 0, (), (ROW._replace(change=-1),), ())),
        (TREE, TreeMerge(MANY, (), ())),
        (TREE, TreeMerge((), (FOLDER._replace(time=BIG),), ())),
        (TREE, TreeMerge((), (FOLDER._replace(name="a//b"),), ())),
        (TREE, TreeMerge((), (), (SUBSCRIPTION._replace(time=0),))),
        (TREE, TreeMerge((), (), (SUBSCRIPTION._replace(name=""),))),
        (TREE, TreeMerge((), (), (), (ANNOTATION._replace(time=0),))),
        (TREE, TreeMerge((), (), (), (ANNOTATION._replace(name="comment"),))),
        (TREE, TreeMerge((), (), (), (ANNOTATION._replace(name="/private/Comment"),))),
        (TREE, TreeMerge((), (), (), (ANNOTATION._replace(value=bytes(VALUE_BYTES_MAX + 1)),))),
        (TREE, TreeMerge((), (), (), (ANNOTATION._replace(mailbox_id=b"a"),))),
    ],
)
def test_merge_with_values_out_of_range_is_refused(key: MailboxKey, merge: Merge | TreeMerge) -> None:
    node = MemoryNode("dc1.a")
    with pytest.raises(HistoryError, match="out of range"):
        node.receive(Entry(MERGE, (LEFT, RIGHT), 1 << 20, 3, *key, (merge,)))


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        (INBOX, "DELETE FROM by_uid WHERE uid = 1"),
        (INBOX, "UPDATE by_uid SET size_bytes = size_bytes + 1 WHERE uid = 1"),
        (TREE, "DELETE FROM subscription WHERE name = 'both'"),
        (TREE, "UPDATE annotation SET value = NULL"),
    ],
    ids=["a row is gone", "a row is another", "a subscription is gone", "an annotation is another"],
)
def test_chain_that_disagrees_with_its_rows_is_not_merged(key: MailboxKey, damage: str) -> None:
    """The fingerprints of the rows may still be whole."""
    left, right = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    for node in (left, right):
        node.write(saving(b"text", node.guid()))
        node.write(lambda tx: folder_sequencer.subscribe(tx, ALICE, "both", subscribed=True))
        node.write(annotating(comment=b"x"))
    for item in right.log():
        left.take(item)
    (head,) = forks.branch_heads(left.connection, key.mailbox_id)
    branch = forks.replay_branch(left.connection, head)
    assert branch is not None
    plan = forks.plan_merge(left.connection, key, branch)
    assert plan is not None
    left.connection.execute(damage)
    left.connection.commit()
    before = left.digests()
    with pytest.raises(forks.MiscountedError, match="run `replicator check --repair`"):
        forks.plan_merge(left.connection, key, branch)
    with pytest.raises(forks.MiscountedError):
        left.write(lambda tx: forks.merge_branch(tx, key, branch))
    assert left.digests() == before
