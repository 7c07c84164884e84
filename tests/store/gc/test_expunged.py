"""Expunged mail is kept once for each mailbox, until the message is there again."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from protocol.values import Dot, context_dots
from replicator.config import UidConflict
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.gc import expunged
from replicator.store.gc.expunged import Kept
from replicator.store.log import forks
from replicator.store.log.snapshot_install import Adoption, adopt
from resync.entry import Merge
from tests.store import consistency
from tests.store.harness import (
    ALICE,
    INBOX,
    WORK,
    copying,
    creating,
    expunging,
    flagging,
    guid,
    open_store,
    save,
    saving,
    source,
)
from tests.store.memory_node import MemoryNode

NOW_MS = 1_000_000


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def kept(node: MemoryNode, *keys: MailboxKey, since_ms: int = 0) -> list[Kept]:
    mailbox_ids = [key.mailbox_id for key in keys or (INBOX,)]
    return expunged.kept(node.connection, mailbox_ids, since_ms, None, 100)


def send_log(sender: MemoryNode, receiver: MemoryNode) -> None:
    for item in sender.log(queries.log_start(sender.connection, queries.log_context(receiver.connection))):
        receiver.take(item)


def merge_branches(node: MemoryNode, uid: UidConflict = UidConflict.RENUMBER) -> None:
    for head in forks.branch_heads(node.connection, INBOX.mailbox_id):
        branch = forks.replay_branch(node.connection, head)
        assert branch is not None
        plan = forks.plan_merge(node.connection, INBOX, branch, uid)
        assert plan is not None
        assert node.write(partial(forks.carry_out, plan=plan))


def test_expunged_message_is_kept_as_last_shown(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1), flags=["\\Seen"]))
    node.write(saving(b"other", guid(2)))
    node.write(flagging(1, added=["$Later"], removed=["\\Seen"]))
    node.now_ms += 5_000
    node.write(expunging(1))
    [row] = queries.mailbox_rows(node.connection, INBOX.mailbox_id)
    assert row.guid == guid(2)
    [one] = kept(node)
    assert one[:6] == (INBOX.mailbox_id, guid(1), 1, ("$Later",), 1_000, 4)
    assert one.expunged_ms == NOW_MS + 5_000
    assert expunged.totals(node.connection) == (1, 4)


def test_message_that_returns_is_no_longer_kept(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    node.write(expunging(1))
    node.write(saving(b"text", guid(1), WORK))
    assert [one.guid for one in kept(node)] == [guid(1)], "the new message is in another mailbox"
    assert node.write(saving(b"text", guid(1))).uids == (2,)
    assert kept(node) == []
    node.write(expunging(2))
    assert [one.uid for one in kept(node)] == [2]
    node.write(copying(WORK, [source(1)], INBOX))
    assert kept(node) == []


def test_change_of_flags_expunges_nothing(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    node.write(flagging(1, added=["\\Deleted"]))
    assert kept(node) == []


def test_all_nodes_keep_the_same_expunged_mail(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a", now_ms=NOW_MS + 60_000)
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    node.now_ms += 1_000
    node.write(expunging(1, 3))
    send_log(node, other)
    assert kept(other) == kept(node)
    assert [one.expunged_ms for one in kept(other)] == [NOW_MS + 1_000] * 2


def test_expunge_stamped_in_the_future_counts_as_of_now(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a", now_ms=NOW_MS + 10_000_000)
    other.write(saving(b"text", guid(1)))
    other.write(expunging(1))
    send_log(other, node)
    assert [one.expunged_ms for one in kept(node)] == [NOW_MS]
    assert [one.expunged_ms for one in kept(other)] == [NOW_MS + 10_000_000]


@pytest.mark.parametrize("uid", UidConflict)
def test_merge_keeps_removed_but_not_renumbered_mail(node: MemoryNode, uid: UidConflict) -> None:
    other = MemoryNode("dc2.a")
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
    send_log(node, other)
    node.write(saving(b"here", guid(3)))
    other.write(expunging(1))
    other.write(saving(b"there", guid(4)))
    send_log(other, node)
    assert kept(node) == []
    node.now_ms += 1_000
    merge_branches(node, uid)
    assert [(one.guid, one.expunged_ms) for one in kept(node)] == [(guid(1), NOW_MS + 1_000)]
    send_log(node, other)
    assert [one.guid for one in kept(other)] == [guid(1)]
    assert other.digests() == node.digests()


def test_mail_expunged_on_another_branch_is_kept(node: MemoryNode) -> None:
    """This node never showed the message, but it has the body, and a user may ask for it."""
    other, late = MemoryNode("dc2.a"), MemoryNode("dc3.a")
    node.write(saving(b"here", guid(1)))
    other.write(saving(b"there", guid(2), flags=["\\Seen"]))
    other.write(saving(b"stays", guid(3)))
    other.write(expunging(1))
    send_log(other, node)
    node.now_ms += 1_000
    merge_branches(node)
    assert [(one.guid, one.uid, one.flags, one.expunged_ms) for one in kept(node)] == [
        (guid(2), 1, ("\\Seen",), NOW_MS + 1_000)
    ]
    for item in node.log():  # the merge arrives before the entries of the other branch
        if item.entry.dot.origin == "dc1.a":
            late.take(item)
    assert late.digests() == node.digests()
    assert kept(late) == []
    send_log(other, late)
    assert [one.guid for one in kept(late)] == [guid(2)]
    for each in (node, late):
        each.write(saving(b"there", guid(2)))
        assert kept(each) == []
    consistency.check(late.connection)


def test_mail_expunged_on_both_branches_is_kept_as_shown_here(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    for each, flags in ((node, ["$Here"]), (other, ["$There"])):
        each.write(saving(b"tried twice", guid(1), flags=flags))
        each.write(saving(b"stays", guid(2)))
        each.write(expunging(1))
    send_log(other, node)
    node.now_ms += 1_000
    merge_branches(node)
    assert [(one.flags, one.expunged_ms) for one in kept(node)] == [(("$Here",), NOW_MS)]


def test_mail_removed_by_an_adoption_is_expunged_as_of_now() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    node.write(saving(b"text", guid(1)))
    send_log(node, other)
    other.write(expunging(1))
    theirs = chains.load(other.connection, INBOX.mailbox_id)
    assert theirs is not None
    change = Merge(theirs.uidnext, theirs.risen, context_dots(theirs.context), (), (guid(1),))
    node.now_ms += 1_000
    assert node.write(lambda tx: adopt(tx, Adoption(INBOX, Dot("dc1.a", 1), theirs, change, 1)))
    assert [(one.guid, one.expunged_ms) for one in kept(node)] == [(guid(1), NOW_MS + 1_000)]


def test_expunged_mail_is_listed_once_by_date_in_slices(node: MemoryNode) -> None:
    for number in range(1, 7):
        node.write(saving(b"text", guid(number)))
    node.write(saving(b"text", guid(6), WORK))
    node.write(expunging(1, 2, 3))
    node.now_ms += 1_000
    node.write(expunging(4, 5, 6))
    node.now_ms += 1_000
    node.write(expunging(1, key=WORK))
    ids = [INBOX.mailbox_id, WORK.mailbox_id]
    found, after = list[Kept](), None
    while some := expunged.kept(node.connection, ids, 0, after, 2):
        found, after = found + some, some[-1].after
    assert [one.guid for one in found] == [guid(number) for number in range(1, 7)]
    assert found[-1].mailbox_id == WORK.mailbox_id, "the latest expunged one counts"
    since = kept(node, INBOX, WORK, since_ms=NOW_MS + 1_000)
    assert [one.guid for one in since] == [guid(4), guid(5), guid(6)]
    assert expunged.count(node.connection, ids, NOW_MS + 1_000) == 4


def test_mailboxes_are_found_by_name_and_by_message(node: MemoryNode) -> None:
    node.write(creating("Work", WORK.mailbox_id))
    node.write(saving(b"text", guid(1), WORK))
    assert expunged.mailboxes_named(node.connection, ALICE, "Work") == [WORK.mailbox_id]
    assert expunged.mailboxes_named(node.connection, "bob", "Work") == []
    assert expunged.mailboxes_with(node.connection, ALICE, guid(1)) == [WORK.mailbox_id]
    assert expunged.mailboxes_with(node.connection, "bob", guid(1)) == []


def test_mailbox_without_expunged_mail_costs_one_query(node: MemoryNode) -> None:
    statements: list[str] = []
    node.connection.set_trace_callback(lambda sql: statements.append(sql) if "expunged" in sql else None)
    for number in range(10):
        node.write(saving(b"text", guid(number)))
    assert len(statements) == 1, statements
    node.write(saving(b"text", guid(1), WORK))
    node.write(expunging(1, key=WORK))
    del statements[:]
    node.write(saving(b"text", guid(20)))
    assert statements == [], "only another mailbox has expunged mail"
    node.connection.set_trace_callback(None)


async def test_expunged_mail_is_known_after_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, 1)
        await store.write(expunging(1))
    async with open_store(tmp_path, "dc1.b") as store:
        assert await save(store, 1) == 2
        assert await store.read(expunged.totals) == (0, 0)


def test_rolled_back_expunge_keeps_nothing(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))

    def expunge_and_fail(tx: Transaction) -> None:
        expunging(1)(tx)
        raise ValueError

    [error] = node.write_together([expunge_and_fail])
    assert isinstance(error, ValueError)
    assert kept(node) == []
