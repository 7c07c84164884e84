"""Correction of a message with the wrong body, in its row and in all entries that name the body."""

from functools import partial

from protocol.values import Dot, context_dots
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.log import forks
from replicator.store.log.snapshot_install import Adoption, adopt
from replicator.store.repair.mailbox_check import LogComparison, exhausted
from replicator.store.repair.row_repair import OtherBody, entries_with, put_right
from resync.entry import MailAdd, Merge
from resync.row import Row
from tests.store.harness import INBOX, expunging, flagging, guid, saving
from tests.store.memory_node import MemoryNode

CORRECT_BODY = StoredBody.of(b"right")


def merge_branches(node: MemoryNode) -> None:
    (head,) = forks.branch_heads(node.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(node.connection, head)
    assert branch is not None
    node.write(lambda tx: forks.merge_branch(tx, INBOX, branch))


def test_body_is_corrected_in_a_merge_that_names_an_expunged_placement() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    for each in (node, other):
        each.write(saving(b"wrong", guid(1)))
    node.take(other.log()[0])
    merge_branches(node)
    other.write(expunging(1))
    node.take(other.log()[1])
    merge_branches(node)
    _, (row,) = queries.rows(node.connection, INBOX.mailbox_id)
    assert row.placements() == ((Dot("dc1.a", 1), 0),)
    wrong = OtherBody(row, CORRECT_BODY.content_hash, CORRECT_BODY.size_bytes)
    dots = entries_with(node.connection, INBOX.mailbox_id, [wrong])
    assert node.write(lambda tx: put_right(tx, INBOX, [wrong], dots)) == [wrong]
    changes = [change for item in node.log() for change in item.entry.changes]
    named = [one for change in changes for one in (change.rows if isinstance(change, Merge) else [change])]
    hashes = {one.content_hash for one in named if isinstance(one, MailAdd | Row)}
    assert hashes == {CORRECT_BODY.content_hash}
    chain = queries.chain_or_empty(node.connection, INBOX)
    assert exhausted(LogComparison(node.connection, INBOX.mailbox_id)).damages == []
    last = node.log()[-1].entry
    assert last.histories is not None
    assert last.history == chain.history == last.digest()


def test_sessions_end_if_an_adopted_state_has_another_body_of_a_message() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    for number in (1, 2):
        node.write(saving(b"wrong", guid(number)))
    for logged in node.log():
        other.take(logged)
    (row, _) = queries.mailbox_rows(other.connection, INBOX.mailbox_id)
    right = OtherBody(row, CORRECT_BODY.content_hash, CORRECT_BODY.size_bytes)
    other.write(expunging(2))
    for differs in (False, True):
        if differs:
            other.write(lambda tx: put_right(tx, INBOX, [right], ()))
            other.write(flagging(1, added=["$Later"]))
        base, theirs = (chains.load(each.connection, INBOX.mailbox_id) for each in (node, other))
        assert base is not None
        assert theirs is not None
        rows = tuple(queries.mailbox_rows(other.connection, INBOX.mailbox_id))
        change = Merge(theirs.uidnext, theirs.risen, context_dots(theirs.context), rows, (guid(2),))
        adoption = Adoption(INBOX, base.head, theirs, change, 1)
        assert node.write(partial(adopt, adoption=adoption))
        assert (INBOX.mailbox_id in node.commits[-1].retired) is differs
