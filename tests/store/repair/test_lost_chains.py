"""A mailbox or tree that has lost its row in table chain is not numbered from the beginning again."""

from dataclasses import replace
from functools import partial

import pytest

from protocol.values import Dot
from replicator.errors import HistoryError
from replicator.store.db import queries
from replicator.store.db.chain import Chain, is_lost, load
from replicator.store.db.rows import recent
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.log.snapshot_install import Adoption, DamageError, adopt
from replicator.store.repair.mailbox_check import chain_ids
from replicator.store.repair.row_repair import compare_and_mend
from resync.entry import Entry, MailAdd, Merge, tree_id
from tests.store.harness import ALICE, INBOX, WORK, creating, flagging, guid, saving
from tests.store.memory_node import MemoryNode

CHAIN_ID = f"x'{INBOX.mailbox_id.hex()}'"
OTHER_ROWS = ["by_uid WHERE mailbox", "checkpoint WHERE chain", "unproven WHERE chain", "recent WHERE mailbox"]


def full_node() -> MemoryNode:
    """Return a node with a row in each table that knows mailboxes."""
    node = MemoryNode("dc1.a")
    node.write(creating("INBOX", INBOX.mailbox_id))
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    statement = f"INSERT INTO checkpoint VALUES ({CHAIN_ID}, 3, 'dc1.a', 4, 1, 'alice', 7, 1)"
    node.write(lambda tx: tx.connection.execute(statement).rowcount)
    node.write(lambda tx: tx.connection.execute(f"INSERT INTO unproven VALUES ({CHAIN_ID}, 3)").rowcount)
    return node


def lose_chain(node: MemoryNode, *rows: str) -> None:
    """Delete the rows from the database, and make the writer forget its cache."""
    for table in ("chain WHERE id", *rows):
        assert node.connection.execute(f"DELETE FROM {table} = {CHAIN_ID}").rowcount
    node.read_anew()


def chain_of(node: MemoryNode) -> Chain:
    chain = load(node.connection, INBOX.mailbox_id)
    assert chain is not None
    return chain


@pytest.mark.parametrize("kept", OTHER_ROWS)
def test_any_other_row_of_a_lost_mailbox_prevents_numbering(kept: str) -> None:
    node = full_node()
    lose_chain(node, *(rows for rows in OTHER_ROWS if rows != kept))
    end = queries.log_end(node.connection)
    with pytest.raises(DamagedRowError, match="the row of the folder 'INBOX' of alice is missing") as caught:
        node.write(saving(b"text", guid(9)))
    assert "`replicator check --repair`" in str(caught.value)
    assert "`replicator rebuild --from-peers`" in str(caught.value)
    with pytest.raises(DamagedRowError):
        queries.messages(node.connection, INBOX.mailbox_id)
    assert queries.log_end(node.connection) == end
    assert load(node.connection, INBOX.mailbox_id) is None
    assert node.write(saving(b"text", guid(9), WORK)).uids == (1,)


@pytest.mark.parametrize("kept", OTHER_ROWS)
def test_check_reports_a_lost_mailbox_by_any_other_row(kept: str) -> None:
    node = full_node()
    lose_chain(node, *(rows for rows in OTHER_ROWS if rows != kept))
    node.connection.execute("DELETE FROM log")
    node.connection.execute("UPDATE origin SET collected = seq")
    assert INBOX.mailbox_id in chain_ids(node.connection)
    done = node.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False))
    (damage,) = done.damages
    assert (damage.kind, damage.can_be_mended, done.unproven) == ("chain", False, False)
    assert "`replicator resync alice INBOX`" in damage.what
    assert is_lost(node.connection, INBOX.mailbox_id)


def test_lost_tree_is_not_numbered_again() -> None:
    node = full_node()
    node.connection.execute("DELETE FROM chain WHERE uidvalidity = 0")
    node.read_anew()
    with pytest.raises(DamagedRowError, match=tree_id(ALICE).hex()):
        node.write(creating("Work", WORK.mailbox_id))


def test_mailbox_that_was_only_selected_counts_as_new() -> None:
    node = MemoryNode("dc1.a")
    assert node.write(lambda tx: recent.claim(tx.connection, INBOX.mailbox_id, 1)) == 1
    assert node.write(saving(b"text", guid(1))).uids == (1,)


def test_entry_that_would_restart_a_lost_mailbox_waits() -> None:
    node = full_node()
    lose_chain(node)
    add = MailAdd(1, guid(9), 1_000, (), 4, bytes(32), copied=False)
    first = Entry(Dot("dc2.a", 1), (), 1 << 30, 1, INBOX.user, INBOX.mailbox_id, INBOX.uidvalidity, (add,))
    node.receive(first, [b"text"])
    assert not node.applied(first.dot)
    assert load(node.connection, INBOX.mailbox_id) is None


# ---- adoption from another node ------------------------------------------------------------------------------------


def adoption_from(node: MemoryNode, base: Dot | None = None) -> Adoption:
    """Return an adoption of all that a node shows of INBOX."""
    theirs = chain_of(node)
    rows = tuple(queries.mailbox_rows(node.connection, INBOX.mailbox_id))
    context = tuple(Dot(*item) for item in sorted(theirs.context.items()))
    return Adoption(INBOX, base, theirs, Merge(theirs.uidnext, theirs.risen, context, rows, ()), 1, is_damaged=True)


def copy_of(node: MemoryNode, origin: str = "dc2.a") -> MemoryNode:
    other = MemoryNode(origin)
    for logged in node.log():
        other.take(logged)
    return other


@pytest.mark.parametrize("lost", [(), OTHER_ROWS[:1], OTHER_ROWS[:3], OTHER_ROWS])
def test_lost_mailbox_is_adopted_from_a_node_that_has_seen_as_much(lost: tuple[str, ...]) -> None:
    node = full_node()
    other = copy_of(node)
    lose_chain(node, *lost)
    assert node.write(lambda tx: adopt(tx, adoption_from(other)))
    assert chain_of(node).digest() == chain_of(other).digest()
    assert INBOX.mailbox_id in node.commits[-1].retired
    assert node.write(saving(b"text", guid(9))).uids == (4,)


@pytest.mark.parametrize("is_lost", [False, True])
def test_lost_mailbox_is_not_adopted_for_another_user(*, is_lost: bool) -> None:
    """The chain names the owner, and without the chain the folder does."""
    node = full_node()
    other = copy_of(node)
    other.write(saving(b"text", guid(4)))
    if is_lost:
        lose_chain(node, *OTHER_ROWS)
    before = node.digests()
    adoption = adoption_from(other, None if is_lost else chain_of(node).head)
    with pytest.raises(HistoryError, match="alice"):
        node.write(lambda tx: adopt(tx, replace(adoption, key=INBOX._replace(user="mallory"))))
    assert node.digests() == before
    assert node.write(lambda tx: adopt(tx, adoption_from(other, adoption.base)))
    assert chain_of(node).user == ALICE


@pytest.mark.parametrize("kept", ["log", "by_uid", "checkpoint", "recent", "unproven", "flags"])
def test_lost_mailbox_is_not_adopted_from_a_node_that_has_seen_less(kept: str) -> None:
    """One remaining row proves that this node has seen more."""
    node = full_node()
    other = copy_of(node)
    if kept == "flags":
        node.write(flagging(3, added=["\\Seen"]))
    else:
        node.write(saving(b"text", guid(4)))
    if kept in {"checkpoint", "unproven"}:
        node.connection.execute(f"UPDATE {kept} SET modseq = 4")
        node.connection.execute("UPDATE checkpoint SET seq = 5")
    node.write(lambda tx: recent.claim(tx.connection, INBOX.mailbox_id, 5 if kept == "recent" else 4))
    table = {"flags": "by_uid"}.get(kept, kept)
    lose_chain(node, *(rows for rows in OTHER_ROWS if not rows.startswith({"log": "recent"}.get(table, table))))
    if kept != "log":
        node.connection.execute("DELETE FROM log")
    if kept == "flags":
        node.connection.execute("DELETE FROM by_uid WHERE uid < 3")
    with pytest.raises(HistoryError, match=r"this node has (announced|shown)"):
        node.write(lambda tx: adopt(tx, adoption_from(other)))
    assert load(node.connection, INBOX.mailbox_id) is None


def test_adoption_reports_rows_that_collide_with_a_waiting_entry_as_damage() -> None:
    """The entry waits for the adopted head. Its UID belongs to a row that no entry has added."""
    node = full_node()
    other = copy_of(node)
    other.write(saving(b"text", guid(4)))
    adoption = adoption_from(other, chain_of(node).head)
    third = copy_of(other, "dc3.a")
    third.write(saving(b"text", guid(5)))
    node.take(third.log()[-1])
    columns = ", ".join(
        column for _, column, *_ in node.connection.execute("PRAGMA table_info(by_uid)") if column != "uid"
    )
    node.connection.execute(f"INSERT INTO by_uid (uid, {columns}) SELECT 5, {columns} FROM by_uid WHERE uid = 1")
    before = node.digests()
    with pytest.raises(DamageError, match="rows collide"):
        node.write(lambda tx: adopt(tx, adoption))
    assert node.digests() == before
