"""Entries that were abandoned, for what they stood on was nowhere, and what comes of it after all."""

from dataclasses import dataclass
from functools import partial

import pytest

from protocol.values import Dot, context_dots
from replicator.config import UidConflict
from replicator.store.db import queries
from replicator.store.db.chain import Chain, load
from replicator.store.log import apply, forks
from replicator.store.log.snapshot_install import Adoption, adopt
from resync.entry import Merge
from tests.store import consistency
from tests.store.harness import INBOX, flagging, guid, saving
from tests.store.memory_node import MemoryNode


@dataclass
class Lost:
    """`node` has abandoned the entry at `dot`, which stands on an entry that only `keeper` has."""

    node: MemoryNode
    keeper: MemoryNode
    author: MemoryNode
    dot: Dot

    @property
    def state(self) -> int:
        """The entry's, in the node's log."""
        query = "SELECT applied FROM log WHERE origin = ? AND seq = ?"
        found: int = self.node.connection.execute(query, self.dot).fetchone()[0]
        return found


def pass_on(sender: MemoryNode, receiver: MemoryNode) -> None:
    for item in sender.log(queries.log_start(sender.connection, queries.log_context(receiver.connection))):
        receiver.take(item)


def shown(node: MemoryNode) -> Chain:
    chain = load(node.connection, INBOX.mailbox_id)
    assert chain is not None
    return chain


def take_over(node: MemoryNode, other: MemoryNode) -> None:
    """Step to what the other node shows, without its entries."""
    theirs = shown(other)
    rows = tuple(queries.mailbox_rows(other.connection, INBOX.mailbox_id))
    change = Merge(theirs.uidnext, theirs.risen, context_dots(theirs.context), rows, ())
    assert node.write(lambda tx: adopt(tx, Adoption(INBOX, shown(node).head, theirs, change, 1)))


@pytest.fixture
def lost() -> Lost:
    node, keeper, author = (MemoryNode(origin) for origin in ("dc1.a", "dc2.a", "dc3.a"))
    node.write(saving(b"text", guid(1)))
    pass_on(node, keeper)
    keeper.write(flagging(1, added=["\\Seen"]))
    pass_on(keeper, author)
    author.write(flagging(1, added=["\\Flagged"]))
    dot = Dot("dc3.a", 1)
    entry = queries.entry_at(author.connection, dot)
    assert entry is not None
    node.receive(entry)
    node.write(partial(apply.abandon, chain_id=INBOX.mailbox_id, dots=[dot]))
    case = Lost(node, keeper, author, dot)
    assert case.state == apply.ABANDONED
    return case


def test_an_entry_is_applied_when_what_it_stands_on_is_taken_over(lost: Lost) -> None:
    take_over(lost.node, lost.keeper)
    assert lost.state == apply.APPLIED
    assert lost.node.commits[-1].revived == {lost.dot: INBOX.mailbox_id}
    assert lost.node.digests() == lost.author.digests()
    consistency.check(lost.node.connection)


def test_it_waits_as_a_branch_when_what_is_taken_over_has_gone_on_from_there(lost: Lost) -> None:
    lost.keeper.write(flagging(1, added=["$Later"]))
    take_over(lost.node, lost.keeper)
    assert queries.log_waiting(lost.node.connection) == {lost.dot: INBOX.mailbox_id}
    assert lost.node.commits[-1].revived == {lost.dot: INBOX.mailbox_id}
    lost.node.write(partial(apply.abandon, chain_id=INBOX.mailbox_id, dots=[lost.dot]))
    lost.keeper.write(flagging(1, added=["$Latest"]))
    take_over(lost.node, lost.keeper)
    assert lost.state == apply.ABANDONED, "nothing new has come of what it stands on"
    consistency.check(lost.node.connection)


def test_it_counts_as_applied_when_it_is_part_of_what_is_taken_over(lost: Lost) -> None:
    take_over(lost.node, lost.author)
    assert lost.state == apply.APPLIED
    assert not lost.node.commits[-1].revived
    assert lost.node.digests() == lost.author.digests()
    consistency.check(lost.node.connection)


def test_it_waits_again_when_a_merge_brings_what_it_stands_on(lost: Lost) -> None:
    """The merge comes by the log, and the branch that it took in does not."""
    lost.node.write(flagging(1, added=["$Mine"]))
    fork_merger = MemoryNode("dc4.a")
    for item in (*lost.node.log(), *lost.keeper.log()):
        if item.entry.dot != lost.dot:
            fork_merger.take(item)
    (head,) = forks.branch_heads(fork_merger.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(fork_merger.connection, head)
    assert branch is not None
    fork_merger.write(lambda tx: forks.merge_branch(tx, INBOX, head, branch, UidConflict.RENUMBER))
    (merge,) = [item.entry for item in fork_merger.log() if item.entry.dot.origin == "dc4.a"]
    lost.node.receive(merge)
    assert shown(lost.node).digest() == shown(fork_merger).digest()
    assert lost.dot in queries.log_waiting(lost.node.connection)


def test_one_that_cannot_be_read_any_more_holds_up_nothing(lost: Lost) -> None:
    lost.node.connection.execute("UPDATE log SET body = x'00' WHERE applied = 2")
    take_over(lost.node, lost.keeper)
    lost.keeper.write(flagging(1, added=["$Later"]))
    pass_on(lost.keeper, lost.node)
    assert lost.state == apply.ABANDONED
    assert lost.node.digests() == lost.keeper.digests()
