"""Abandoned entries whose missing predecessor turns up after all."""

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
class Abandoned:
    """An entry, at `dot`, that `node` has abandoned. Only `peer` has its predecessor."""

    node: MemoryNode
    peer: MemoryNode
    author: MemoryNode
    dot: Dot

    @property
    def state(self) -> int:
        """The entry's state in the node's log."""
        query = "SELECT applied FROM log WHERE origin = ? AND seq = ?"
        found: int = self.node.connection.execute(query, self.dot).fetchone()[0]
        return found


def send_log(sender: MemoryNode, receiver: MemoryNode) -> None:
    for item in sender.log(queries.log_start(sender.connection, queries.log_context(receiver.connection))):
        receiver.take(item)


def shown(node: MemoryNode) -> Chain:
    chain = load(node.connection, INBOX.mailbox_id)
    assert chain is not None
    return chain


def adopt_from(node: MemoryNode, other: MemoryNode) -> None:
    """Adopt the state that the other node shows, without its entries."""
    theirs = shown(other)
    rows = tuple(queries.mailbox_rows(other.connection, INBOX.mailbox_id))
    change = Merge(theirs.uidnext, theirs.risen, context_dots(theirs.context), rows, ())
    assert node.write(lambda tx: adopt(tx, Adoption(INBOX, shown(node).head, theirs, change, 1)))


@pytest.fixture
def abandoned() -> Abandoned:
    node, peer, author = (MemoryNode(origin) for origin in ("dc1.a", "dc2.a", "dc3.a"))
    node.write(saving(b"text", guid(1)))
    send_log(node, peer)
    peer.write(flagging(1, added=["\\Seen"]))
    send_log(peer, author)
    author.write(flagging(1, added=["\\Flagged"]))
    dot = Dot("dc3.a", 1)
    entry = queries.entry_at(author.connection, dot)
    assert entry is not None
    node.receive(entry)
    node.write(partial(apply.abandon, chain_id=INBOX.mailbox_id, dots=[dot]))
    case = Abandoned(node, peer, author, dot)
    assert case.state == apply.ABANDONED
    return case


def test_abandoned_entry_is_applied_when_its_predecessor_is_adopted(abandoned: Abandoned) -> None:
    adopt_from(abandoned.node, abandoned.peer)
    assert abandoned.state == apply.APPLIED
    assert abandoned.node.commits[-1].revived == {abandoned.dot: INBOX.mailbox_id}
    assert abandoned.node.digests() == abandoned.author.digests()
    consistency.check(abandoned.node.connection)


def test_abandoned_entry_waits_as_a_branch_below_an_adopted_state(abandoned: Abandoned) -> None:
    abandoned.peer.write(flagging(1, added=["$Later"]))
    adopt_from(abandoned.node, abandoned.peer)
    assert queries.log_waiting(abandoned.node.connection) == {abandoned.dot: INBOX.mailbox_id}
    assert abandoned.node.commits[-1].revived == {abandoned.dot: INBOX.mailbox_id}
    abandoned.node.write(partial(apply.abandon, chain_id=INBOX.mailbox_id, dots=[abandoned.dot]))
    abandoned.peer.write(flagging(1, added=["$Latest"]))
    adopt_from(abandoned.node, abandoned.peer)
    assert abandoned.state == apply.ABANDONED, "no new state contains its predecessor"
    consistency.check(abandoned.node.connection)


def test_abandoned_entry_counts_as_applied_if_the_adopted_state_has_it(abandoned: Abandoned) -> None:
    adopt_from(abandoned.node, abandoned.author)
    assert abandoned.state == apply.APPLIED
    assert not abandoned.node.commits[-1].revived
    assert abandoned.node.digests() == abandoned.author.digests()
    consistency.check(abandoned.node.connection)


def test_abandoned_entry_waits_when_a_merge_contains_its_predecessor(abandoned: Abandoned) -> None:
    """The merge arrives by the log, but the entries of the merged branch do not."""
    abandoned.node.write(flagging(1, added=["$Mine"]))
    fork_merger = MemoryNode("dc4.a")
    for item in (*abandoned.node.log(), *abandoned.peer.log()):
        if item.entry.dot != abandoned.dot:
            fork_merger.take(item)
    (head,) = forks.branch_heads(fork_merger.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(fork_merger.connection, head)
    assert branch is not None
    fork_merger.write(lambda tx: forks.merge_branch(tx, INBOX, branch, UidConflict.RENUMBER))
    (merge,) = [item.entry for item in fork_merger.log() if item.entry.dot.origin == "dc4.a"]
    abandoned.node.receive(merge)
    assert shown(abandoned.node).digest() == shown(fork_merger).digest()
    assert abandoned.dot in queries.log_waiting(abandoned.node.connection)


def test_unreadable_abandoned_entry_blocks_nothing(abandoned: Abandoned) -> None:
    abandoned.node.connection.execute("UPDATE log SET body = x'00' WHERE applied = 2")
    adopt_from(abandoned.node, abandoned.peer)
    abandoned.peer.write(flagging(1, added=["$Later"]))
    send_log(abandoned.peer, abandoned.node)
    assert abandoned.state == apply.ABANDONED
    assert abandoned.node.digests() == abandoned.peer.digests()
