"""Comparison with the log finds no damage in any history, repairs real damage, and undoes no change."""

import random
from functools import partial
from pathlib import Path

import msgpack
import pytest

from protocol.values import Dot
from replicator.store.db import schema
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.log import forks
from replicator.store.log.replay import past_at
from replicator.store.repair.head_evidence import log_lacks
from replicator.store.repair.mailbox_check import LogComparison, chain_ids, exhausted
from replicator.store.repair.row_repair import compare_and_mend, mend
from replicator.store.repair.table_check import FIRST, stray_pointers, stray_rows, strays_of_trees, unseen_chains
from resync.entry import tree_id
from tests.effort import examples
from tests.store.branching import World
from tests.store.consistency import check
from tests.store.harness import ALICE, INBOX, WORK, creating, expunging, flagging, guid, renaming, saving, subscribing
from tests.store.memory_node import MemoryNode


def damages(node: MemoryNode) -> list[tuple[str, str]]:
    """Return all that a check finds."""
    connection = node.connection
    compared = [exhausted(LogComparison(connection, chain_id)) for chain_id in chain_ids(connection)]
    found = [damage for comparison in compared for damage in comparison.damages]
    found += strays_of_trees(connection)
    found += stray_rows(connection, FIRST).found
    found += stray_pointers(connection, FIRST).found
    unseen = [("chain", chain_id.hex()) for chain_id in unseen_chains(connection, 0).found]
    return unseen + [(damage.kind, damage.what) for damage in found]


@pytest.mark.parametrize("seed", range(examples(5, 25)))
def test_check_finds_no_damage_in_any_history(seed: int) -> None:
    world = World(random.Random(seed), 3)
    for step in range(120):
        world.step()
        if step % 20 == 19:
            assert [damages(one.node) for one in world.all] == [[], [], []]
            assert [log_lacks(one.node.connection) for one in world.all] == [0, 0, 0]
    for one in world.all:
        one.node.connection.close()


@pytest.mark.parametrize("seed", range(10))
def test_lost_rows_of_projections_are_restored(seed: int) -> None:
    world = World(random.Random(seed), 3)
    for _ in range(120):
        world.step()
    rng = random.Random(seed)
    for one in world.all:
        node = one.node
        before = node.digests()
        for table in ("by_uid", "by_guid", "folder", "subscription"):
            node.connection.execute(f"DELETE FROM {table} WHERE abs(random()) % ? = 0", (rng.randint(1, 4),))
        node.connection.execute("UPDATE chain SET unseen = unseen + 1, fingerprint = zeroblob(16), messages = 0")
        for chain_id in chain_ids(node.connection):
            node.write(partial(compare_and_mend, chain_id=chain_id, doubted=False))
        assert (node.digests(), damages(node)) == (before, [])
        check(node.connection)
        node.connection.close()


def test_outdated_comparison_repairs_nothing() -> None:
    node = MemoryNode("dc1.a")
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
    node.connection.execute("DELETE FROM by_uid WHERE uid = 1")
    comparison = exhausted(LogComparison(node.connection, INBOX.mailbox_id))
    node.write(flagging(2, added=["\\Seen"]))
    assert node.write(partial(mend, comparison=comparison)) is False
    assert ("by_uid", "is missing") in damages(node)
    done = node.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False))
    assert [damage.kind for damage in done.damages] == ["by_uid"]
    assert damages(node) == []
    check(node.connection)


def test_repair_sees_earlier_changes_of_its_batch() -> None:
    node = MemoryNode("dc1.a")
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
    node.connection.execute("DELETE FROM by_uid WHERE uid = 1")
    comparison = exhausted(LogComparison(node.connection, INBOX.mailbox_id))
    node.write_together([expunging(2), partial(mend, comparison=comparison)])
    assert ("by_uid", "is missing") in damages(node)
    node.write_together([saving(b"text", guid(3)), partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False)])
    assert damages(node) == []
    check(node.connection)


def test_repair_updates_the_writers_cache() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    node.connection.execute("UPDATE chain SET uidnext = 50, messages = 8")
    node.write_together([])
    node.read_anew()
    node.write(flagging(1, added=["\\Flagged"]))
    node.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False))
    assert node.write(saving(b"text", guid(2))).uids == (2,)
    assert damages(node) == []
    check(node.connection)


def test_counters_changed_in_the_same_batch_are_repaired() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    node.connection.execute("UPDATE chain SET messages = 8")
    node.read_anew()
    mending = partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False)
    node.write_together([flagging(1, added=["\\Flagged"]), mending])
    assert damages(node) == []
    check(node.connection)


def test_mailbox_unknown_to_the_log_is_removed() -> None:
    node, unknown = MemoryNode("dc1.a"), bytes(16)
    node.write(saving(b"text", guid(1)))
    columns = "?, user, 9, 1, 0, NULL, NULL, context, 0, 0, 0, fingerprint, 0, x''"
    node.connection.execute(f"INSERT INTO chain SELECT {columns} FROM chain", (unknown,))
    assert node.write(lambda tx: tx.chain(unknown)) is not None
    node.write(partial(compare_and_mend, chain_id=unknown, doubted=False))
    assert node.write(lambda tx: tx.chain(unknown)) is None
    check(node.connection)


def test_mailbox_unknown_to_the_log_can_be_created_after_a_repair() -> None:
    node, unknown = MemoryNode("dc1.a"), MailboxKey(ALICE, bytes(16), 9)
    node.write(saving(b"text", guid(1)))
    node.connection.execute("INSERT INTO recent VALUES (?, 5)", (unknown.mailbox_id,))
    with pytest.raises(DamagedRowError):
        node.write(saving(b"text", guid(2), unknown))
    assert damages(node) == [("chain", "the log has no such mailbox")]
    node.write(partial(compare_and_mend, chain_id=unknown.mailbox_id, doubted=False))
    assert damages(node) == []
    assert node.write(saving(b"text", guid(2), unknown)).uids == (1,)
    check(node.connection)


def test_chain_ids_are_listed_in_slices_from_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    node = MemoryNode("dc1.a")
    keys = [MailboxKey(ALICE, bytes([number] * 16), 9) for number in range(9)]
    for number, key in enumerate(keys):
        for copy in range(3):
            node.write(saving(b"text", guid(10 * number + copy), key))
    node.connection.execute("DELETE FROM chain WHERE id > x'03'")
    node.connection.execute("DELETE FROM recent WHERE mailbox < x'05' OR mailbox > x'07'")
    monkeypatch.setattr("replicator.store.repair.mailbox_check.SLICE_ROWS", 2)
    found: list[bytes] = []
    while some := chain_ids(node.connection, found[-1] if found else None):
        found += some
    assert found == [key.mailbox_id for key in keys]


def test_folders_of_a_lost_tree_are_not_removed() -> None:
    node = MemoryNode("dc1.a")
    node.write(creating("Work", WORK.mailbox_id))
    node.write(subscribing("Work"))
    node.connection.execute("DELETE FROM chain")
    assert [damage.can_be_mended for damage in strays_of_trees(node.connection)] == [False, False]
    node.connection.execute("DELETE FROM recent")
    assert [damage.can_be_mended for damage in strays_of_trees(node.connection)] == [True, True]


def test_repair_updates_a_tree_in_the_writers_cache() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    jobs = (creating("Work", WORK.mailbox_id), subscribing("Work"), renaming(WORK.mailbox_id, "Play"))
    for job in jobs:
        node.write(job)
    created, subscribed, renamed = node.log()
    other.take(created)
    other.connection.execute("DELETE FROM folder")
    other.read_anew()
    other.take(subscribed)  # the writer reads the tree, whose folder is missing
    other.write(partial(compare_and_mend, chain_id=tree_id(ALICE), doubted=False))
    other.take(renamed)
    assert other.digests() == node.digests()
    check(other.connection)


def test_log_with_two_applied_branches_is_damage() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    node.write(saving(b"text", guid(1)))
    other.write(saving(b"text", guid(2)))
    node.take(other.log()[0])
    node.connection.execute("UPDATE log SET applied = 1")
    node.connection.execute("DELETE FROM chain")
    (damage,) = exhausted(LogComparison(node.connection, INBOX.mailbox_id)).damages
    assert (damage.kind, damage.can_be_mended) == ("log", False)


def test_order_of_packed_flags_is_no_damage() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1), flags=["\\Seen", "\\Flagged"]))
    (packed,) = node.connection.execute("SELECT flags FROM by_uid").fetchone()
    turned = msgpack.packb(dict(reversed(msgpack.unpackb(packed).items())))
    assert turned != packed
    node.connection.execute("UPDATE by_uid SET flags = ?", (turned,))
    assert damages(node) == []


def test_outdated_chain_row_is_repaired_without_reusing_uids() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    old = node.connection.execute("SELECT * FROM chain").fetchone()
    node.write(saving(b"text", guid(2)))
    node.connection.execute(f"REPLACE INTO chain VALUES ({','.join('?' * len(old))})", old)
    assert unseen_chains(node.connection, 0).found == [INBOX.mailbox_id]
    done = node.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=True))
    assert [damage.kind for damage in done.damages] == ["chain"]
    assert node.write(saving(b"text", guid(3))).uids == (3,)
    check(node.connection)


def test_waiting_entry_is_applied_with_the_repair_of_its_head() -> None:
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    node.write(saving(b"text", guid(1)))
    for item in node.log():
        other.take(item)
    old = other.connection.execute("SELECT * FROM chain").fetchone()
    node.write(saving(b"text", guid(2)))
    node.write(saving(b"text", guid(3)))
    other.take(node.log()[1])
    other.connection.execute(f"REPLACE INTO chain VALUES ({','.join('?' * len(old))})", old)
    other.read_anew()
    other.take(node.log()[2])
    assert other.digests() != node.digests()
    other.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=True))
    assert other.digests() == node.digests()
    check(other.connection)


def test_log_without_its_end_does_not_revert_a_mailbox() -> None:
    node = MemoryNode("dc1.a")
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
    node.connection.execute("DELETE FROM log WHERE seq = 2")
    assert log_lacks(node.connection) == 1
    (damage,) = exhausted(LogComparison(node.connection, INBOX.mailbox_id)).damages
    assert (damage.kind, damage.can_be_mended) == ("log", False)
    node.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=False))
    assert node.connection.execute("SELECT COUNT(*) FROM by_uid").fetchone() == (2,)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x97\x01\x01\x01\x01\x01\x01\x01"])
def test_unreadable_log_is_reported(body: bytes) -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    node.connection.execute("UPDATE log SET body = ?", (body,))
    (damage,) = exhausted(LogComparison(node.connection, INBOX.mailbox_id)).damages
    assert (damage.kind, damage.can_be_mended) == ("log", False)


def test_entry_listed_under_another_mailbox_reverts_none() -> None:
    node, unknown = MemoryNode("dc1.a"), bytes(16)
    for number in (1, 2):
        node.write(saving(b"text", guid(number)))
    node.connection.execute("UPDATE log SET chain = ? WHERE seq = 1", (unknown,))
    assert unseen_chains(node.connection, 0).found == [unknown]
    done = node.write(partial(compare_and_mend, chain_id=unknown, doubted=True))
    assert [(damage.kind, damage.can_be_mended) for damage in done.damages] == [("log", False)]
    assert node.write(saving(b"text", guid(3))).uids == (3,)


def test_rows_whose_entry_is_lost_are_not_removed() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    for table in ("log", "chain"):
        node.connection.execute(f"DELETE FROM {table}")
    (damage,) = stray_rows(node.connection, FIRST).found
    assert (damage.kind, damage.can_be_mended) == ("by_uid", False)


def test_merge_is_replayed_over_the_branch_that_is_there() -> None:
    one, other, joins, late = (MemoryNode(f"dc{number}.a") for number in (1, 2, 3, 4))
    one.write(saving(b"text", guid(1)))
    other.write(saving(b"text", guid(2)))
    (first,), (second,) = one.log(), other.log()
    for item in (first, second):
        joins.take(item)
    (head,) = forks.branch_heads(joins.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(joins.connection, head)
    assert branch is not None
    joins.write(lambda tx: forks.merge_branch(tx, INBOX, branch))
    merge = joins.log()[-1]
    for item in (second, merge):
        late.take(item)
    assert past_at(late.connection, merge.entry.dot) is None
    assert past_at(late.connection, merge.entry.dot, detours=True) is not None
    assert damages(late) == []


def test_comparison_does_not_block_the_writer(tmp_path: Path) -> None:
    writer, reader = schema.open_writer(tmp_path / "node.db"), schema.open_reader(tmp_path / "node.db")
    node = MemoryNode("dc1.a")
    for number in range(3):
        node.write(saving(b"text", guid(number)))
    node.write(creating("INBOX", INBOX.mailbox_id))
    node.write(subscribing("INBOX"))
    node.connection.backup(writer)
    comparison = LogComparison(reader, tree_id(ALICE))
    steps = comparison.steps()
    next(steps)
    writer.execute("DELETE FROM folder")
    assert list(steps)
    assert comparison.damages == [], "the comparison reads one snapshot"
    assert exhausted(LogComparison(reader, tree_id(ALICE))).damages != []
    assert comparison.past is not None
    assert comparison.past.head == Dot("dc1.a", 5)
    writer.close()
    reader.close()
