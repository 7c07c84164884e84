"""A merge is planned outside the writer, and carried out if the mailbox has not changed meanwhile."""

from functools import partial

import pytest

from protocol.values import UID_MAX, Dot
from replicator.config import UidConflict
from replicator.errors import MailboxFullError
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.log import forks
from replicator.store.log.forks import Branch
from resync.entry import Merge, anchor, tree_id
from resync.state import MERGE_HEADROOM, MailboxState, why_not_merge
from tests.store import consistency
from tests.store.harness import ALICE, INBOX, WORK, creating, guid, saving
from tests.store.memory_node import MemoryNode

TREE = MailboxKey(ALICE, tree_id(ALICE), 0)


def two_branches() -> tuple[MemoryNode, Branch]:
    """Return a node that shows UIDs 1 and 2, and a branch that gave them to other messages."""
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
        other.write(saving(b"text", guid(10 + number)))
    for item in other.log():
        node.take(item)
    (head,) = forks.branch_heads(node.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(node.connection, head)
    assert branch is not None
    return node, branch


@pytest.mark.parametrize("uid", UidConflict)
def test_plan_gets_the_dot_of_its_merge_when_carried_out(uid: UidConflict) -> None:
    node, branch = two_branches()
    plan = forks.plan_merge(node.connection, INBOX, branch, uid)
    assert plan is not None
    node.write(saving(b"elsewhere", guid(3), WORK))
    merge = node.write(partial(forks.carry_out, plan=plan))
    assert merge == Dot("dc1.a", 4)
    rows = list(queries.mailbox_rows(node.connection, INBOX.mailbox_id))
    assert [row.uid for row in rows] == [3, 4, 5, 6]
    assert {row.claim for row in rows} == {merge}
    assert forks.plan_merge(node.connection, INBOX, branch, uid) is None, "the merge is already done"
    consistency.check(node.connection)


@pytest.mark.parametrize("uid", UidConflict)
def test_outdated_plan_changes_nothing(uid: UidConflict) -> None:
    node, branch = two_branches()
    plan = forks.plan_merge(node.connection, INBOX, branch, uid)
    assert plan is not None
    node.write(saving(b"meanwhile", guid(3)))
    before = node.digests()
    assert node.write(partial(forks.carry_out, plan=plan)) is None
    assert node.digests() == before
    again = forks.plan_merge(node.connection, INBOX, branch, uid)
    assert again is not None
    assert node.write(partial(forks.carry_out, plan=again))
    assert {row.guid for row in queries.mailbox_rows(node.connection, INBOX.mailbox_id)} == set(
        map(guid, (1, 2, 3, 11, 12))
    )
    assert {1, 2}.isdisjoint(row.uid for row in queries.mailbox_rows(node.connection, INBOX.mailbox_id))


def test_outdated_plan_for_folders_changes_nothing() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    node.write(creating("a", b"a" * 16))
    other.write(creating("b", b"b" * 16))
    for item in other.log():
        node.take(item)
    (head,) = forks.branch_heads(node.connection, TREE.mailbox_id)
    branch = forks.replay_branch(node.connection, head)
    assert branch is not None
    plan = forks.plan_merge(node.connection, TREE, branch)
    assert plan is not None
    node.write(creating("c", b"c" * 16))
    assert node.write(partial(forks.carry_out, plan=plan)) is None
    assert set(queries.folders(node.connection, ALICE)) == {"a", "c"}


SPARE = UID_MAX - MERGE_HEADROOM


@pytest.mark.parametrize(
    ("ours", "theirs", "suffice"),
    [
        (SPARE - 1, 2, True),
        (SPARE, 2, False),
        (SPARE - 1, SPARE - 1, True),
        (SPARE - 1, SPARE, False),
        (SPARE, SPARE, True),
        (UID_MAX - 1, SPARE, True),
        (UID_MAX, SPARE, False),
    ],
)
def test_merge_that_needs_too_many_uids_is_refused(ours: int, theirs: int, *, suffice: bool) -> None:
    """One message needs a new UID. The nodes of both branches accept a merge that is made."""
    node, rival = MemoryNode("dc1.a"), Dot("dc2.a", 1)
    node.write(saving(b"text", guid(1)))
    node.write(lambda tx: setattr(tx.chain_to_change(INBOX.mailbox_id, ALICE, 7), "uidnext", ours))
    (row,) = queries.mailbox_rows(node.connection, INBOX.mailbox_id)
    theirs_shown = MailboxState(theirs, 1, {rival.origin: 1})
    branch = Branch(rival, anchor(rival), theirs_shown)
    if not suffice:
        with pytest.raises(MailboxFullError, match="they end at"):
            forks.plan_merge(node.connection, INBOX, branch)
        with pytest.raises(MailboxFullError, match="they end at"):
            node.write(lambda tx: forks.merge_branch(tx, INBOX, branch))
        return
    plan = forks.plan_merge(node.connection, INBOX, branch)
    assert plan is not None
    (merge,) = plan.changes
    assert isinstance(merge, Merge)
    for side in (MailboxState(ours, 1, {"dc1.a": 1}, {1: row}), theirs_shown):
        assert why_not_merge(merge, side, lambda _: None) is None
