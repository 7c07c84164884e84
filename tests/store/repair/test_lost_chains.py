"""A mailbox or tree whose row in table chain is gone: it is not numbered again from the beginning."""

from dataclasses import replace
from functools import partial

import pytest

from protocol.values import Dot
from replicator.errors import HistoryError
from replicator.store.db import queries, recent
from replicator.store.db.chain import Chain, is_lost, load
from replicator.store.db.message_rows import DamagedRowError
from replicator.store.log.snapshot_install import Adoption, adopt
from replicator.store.repair.mailbox_check import chain_ids
from replicator.store.repair.row_repair import compare_and_mend
from resync.entry import Entry, MailAdd, Merge, tree_id
from tests.store.harness import ALICE, INBOX, WORK, creating, flagging, guid, saving
from tests.store.memory_node import MemoryNode

OF_CHAIN = f"x'{INBOX.mailbox_id.hex()}'"
OTHERS = ["by_uid WHERE mailbox", "checkpoint WHERE chain", "unproven WHERE chain", "recent WHERE mailbox"]


def full_node() -> MemoryNode:
    """With a row in each table that knows mailboxes."""
    node = MemoryNode("dc1.a")
    node.write(creating("INBOX", INBOX.mailbox_id))
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    statement = f"INSERT INTO checkpoint VALUES ({OF_CHAIN}, 3, 'dc1.a', 4, 1, 'alice', 7, 1)"
    node.write(lambda tx: tx.connection.execute(statement).rowcount)
    node.write(lambda tx: tx.connection.execute(f"INSERT INTO unproven VALUES ({OF_CHAIN}, 3)").rowcount)
    return node


def lose(node: MemoryNode, *rows: str) -> None:
    """Behind the writer's back, who remembers nothing either."""
    for table in ("chain WHERE id", *rows):
        assert node.connection.execute(f"DELETE FROM {table} = {OF_CHAIN}").rowcount
    node.read_anew()


def known(node: MemoryNode) -> Chain:
    chain = load(node.connection, INBOX.mailbox_id)
    assert chain is not None
    return chain


@pytest.mark.parametrize("kept", OTHERS)
def test_whatever_else_knows_the_mailbox_keeps_it_from_being_numbered(kept: str) -> None:
    node = full_node()
    lose(node, *(rows for rows in OTHERS if rows != kept))
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


@pytest.mark.parametrize("kept", OTHERS)
def test_a_check_tells_of_it_whatever_else_knows_it(kept: str) -> None:
    node = full_node()
    lose(node, *(rows for rows in OTHERS if rows != kept))
    node.connection.execute("DELETE FROM log")
    node.connection.execute("UPDATE origin SET collected = seq")
    assert INBOX.mailbox_id in chain_ids(node.connection)
    done = node.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False))
    (damage,) = done.damages
    assert (damage.kind, damage.can_be_mended, done.unproven) == ("chain", False, False)
    assert "`replicator resync alice INBOX`" in damage.what
    assert is_lost(node.connection, INBOX.mailbox_id)


def test_a_tree_does_not_begin_again_either() -> None:
    node = full_node()
    node.connection.execute("DELETE FROM chain WHERE uidvalidity = 0")
    node.read_anew()
    with pytest.raises(DamagedRowError, match=tree_id(ALICE).hex()):
        node.write(creating("Work", WORK.mailbox_id))


def test_a_mailbox_that_clients_have_only_looked_at_is_new() -> None:
    node = MemoryNode("dc1.a")
    assert node.write(lambda tx: recent.claim(tx.connection, INBOX.mailbox_id, 1)) == 1
    assert node.write(saving(b"text", guid(1))).uids == (1,)


def test_what_would_begin_it_again_elsewhere_waits() -> None:
    node = full_node()
    lose(node)
    add = MailAdd(1, guid(9), 1_000, (), 4, bytes(32), copied=False)
    first = Entry(Dot("dc2.a", 1), (), 1 << 30, 1, INBOX.user, INBOX.mailbox_id, INBOX.uidvalidity, (add,))
    node.receive(first, [b"text"])
    assert not node.applied(first.dot)
    assert load(node.connection, INBOX.mailbox_id) is None


# ---- taking it over ----------------------------------------------------------------------------------------------


def adoption_from(node: MemoryNode, base: Dot | None = None) -> Adoption:
    """All that a node shows of INBOX."""
    theirs = known(node)
    rows = tuple(queries.mailbox_rows(node.connection, INBOX.mailbox_id))
    context = tuple(Dot(*item) for item in sorted(theirs.context.items()))
    return Adoption(INBOX, base, theirs, Merge(theirs.uidnext, theirs.risen, context, rows, ()), 1, is_damaged=True)


def copy_of(node: MemoryNode) -> MemoryNode:
    other = MemoryNode("dc2.a")
    for logged in node.log():
        other.take(logged)
    return other


@pytest.mark.parametrize("lost", [(), OTHERS[:1], OTHERS[:3], OTHERS])
def test_it_is_taken_over_from_a_node_that_has_seen_as_much(lost: tuple[str, ...]) -> None:
    node = full_node()
    other = copy_of(node)
    lose(node, *lost)
    assert node.write(lambda tx: adopt(tx, adoption_from(other)))
    assert known(node).digest() == known(other).digest()
    assert INBOX.mailbox_id in node.commits[-1].retired
    assert node.write(saving(b"text", guid(9))).uids == (4,)


@pytest.mark.parametrize("is_lost", [False, True])
def test_it_is_not_taken_over_as_another_users(*, is_lost: bool) -> None:
    """Its chain says whose it is, or else its folder."""
    node = full_node()
    other = copy_of(node)
    other.write(saving(b"text", guid(4)))
    if is_lost:
        lose(node, *OTHERS)
    before = node.digests()
    adoption = adoption_from(other, None if is_lost else known(node).head)
    with pytest.raises(HistoryError, match="alice"):
        node.write(lambda tx: adopt(tx, replace(adoption, key=INBOX._replace(user="mallory"))))
    assert node.digests() == before
    assert node.write(lambda tx: adopt(tx, adoption_from(other, adoption.base)))
    assert known(node).user == ALICE


@pytest.mark.parametrize("kept", ["log", "by_uid", "checkpoint", "recent", "unproven", "flags"])
def test_it_is_not_taken_over_from_a_node_that_has_seen_less(kept: str) -> None:
    """One thing is left that says so."""
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
    lose(node, *(rows for rows in OTHERS if not rows.startswith({"log": "recent"}.get(table, table))))
    if kept != "log":
        node.connection.execute("DELETE FROM log")
    if kept == "flags":
        node.connection.execute("DELETE FROM by_uid WHERE uid < 3")
    with pytest.raises(HistoryError, match=r"this node has (announced|shown)"):
        node.write(lambda tx: adopt(tx, adoption_from(other)))
    assert load(node.connection, INBOX.mailbox_id) is None
