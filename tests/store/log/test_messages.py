from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import MailboxFullError
from replicator.mail.view import SEEN
from replicator.runtime.environment import Environment
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import forks
from replicator.store.log.sequencing.sequencer import Placed
from resync.row import Row
from tests.store import consistency
from tests.store.harness import INBOX, WORK, copying, expunging, flagging, guid, open_store, save, saving, source
from tests.store.memory_node import MemoryNode

FLAGGED = "\\Flagged"


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def rows(node: MemoryNode, key: MailboxKey = INBOX) -> dict[int, Row]:
    return {row.uid: row for row in queries.mailbox_rows(node.connection, key.mailbox_id)}


async def test_saved_messages_survive_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        assert [await save(store, number) for number in (1, 2)] == [1, 2]
    async with open_store(tmp_path, "dc1.b") as store:
        assert await save(store, 3) == 3
        assert store.context == {"dc1.a": 2, "dc1.b": 1}
        by_uid = await store.read(lambda reader: queries.content_hash_of_uid(reader, INBOX.mailbox_id, 2))
        assert by_uid == await store.read(lambda reader: queries.content_hash_of_guid(reader, guid(2)))


def test_repeated_save_returns_the_same_uid(node: MemoryNode) -> None:
    first = node.write(saving(b"text", guid(1)))
    node.write(saving(b"other", guid(2)))
    assert first == Placed((1,), Dot("dc1.a", 1))
    assert node.write(saving(b"text", guid(1))) == Placed((1,), Dot("dc1.a", 2), brought_by=(Dot("dc1.a", 1),)), (
        "as durable as the head"
    )
    assert list(rows(node)) == [1, 2]


def test_repeated_save_after_a_merge_names_the_entries_with_the_body(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    for each in (node, other):
        each.write(saving(b"text", guid(1)))
    for item in other.log():
        node.take(item)
    (head,) = forks.branch_heads(node.connection, INBOX.mailbox_id)
    branch = forks.replay_branch(node.connection, head)
    assert branch is not None
    merge = node.write(lambda tx: forks.merge_branch(tx, INBOX, branch))
    assert merge == Dot("dc1.a", 2)
    (row,) = rows(node).values()
    assert (row.uid, row.placements()) == (2, ((Dot("dc1.a", 1), 0), (Dot("dc2.a", 1), 0)))
    again = node.write(saving(b"text", guid(1)))
    assert again == Placed((2,), merge, brought_by=(Dot("dc1.a", 1), Dot("dc2.a", 1)))


def test_a_guid_may_be_in_two_mailboxes(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    assert node.write(saving(b"text", guid(1), WORK)).uids == (1,)


def test_copies_keep_guid_flags_and_date_in_order(node: MemoryNode) -> None:
    for number in (1, 2, 3):
        node.write(saving(b"text %d" % number, guid(number), flags=[SEEN]))
    node.write(saving(b"old", guid(9), WORK))
    placed = node.write(copying(INBOX, [source(1), source(3)], WORK))
    assert placed == Placed((2, 3), Dot("dc1.a", 5))
    for old, new in ((1, 2), (3, 3)):
        before, after = rows(node)[old], rows(node, WORK)[new]
        assert (after.guid, after.content_hash, after.received_ms, after.size_bytes) == (
            before.guid, before.content_hash, before.received_ms, before.size_bytes,
        )  # fmt: skip
        assert after.visible_flags() == {SEEN}


def test_copy_is_all_or_nothing(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    assert node.write(copying(INBOX, [source(1), source(2)], WORK)) is None
    assert node.write(copying(INBOX, [source(2, uid=1)], WORK)) is None, "another GUID under that UID"
    assert node.write(copying(INBOX, [], WORK)) == Placed((), None)
    assert rows(node, WORK) == {}
    assert len(node.log()) == 1


def test_copy_into_the_same_mailbox_gets_a_new_guid(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    assert node.write(copying(INBOX, [source(1)], INBOX)) == Placed((2,), Dot("dc1.a", 2))
    node.write(copying(INBOX, [source(1)], WORK))
    node.write(copying(INBOX, [replace(source(1), spare_guid=guid(7))], WORK))
    assert [row.guid for row in rows(node).values()] == [guid(1), guid(1001)]
    assert [row.guid for row in rows(node, WORK).values()] == [guid(1), guid(7)]


def test_repeated_copy_with_a_spare_guid_makes_no_third_message(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    node.write(saving(b"text", guid(2)))
    second = [node.write(copying(INBOX, [source(1)], WORK)) for _ in range(2)][1]
    assert second == Placed((2,), Dot("dc1.a", 4))
    assert node.write(copying(INBOX, [source(1)], WORK)) == second
    assert node.write(copying(INBOX, [source(1), source(2)], WORK)) == Placed((2, 3), Dot("dc1.a", 5))


def test_expunged_uids_are_not_reused(node: MemoryNode) -> None:
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    assert node.write(expunging(2, 3, 9)) == Dot("dc1.a", 4)
    assert node.write(expunging(2, 3, 9)) == Dot("dc1.a", 4)
    assert list(rows(node)) == [1]
    assert node.write(saving(b"text", guid(4))).uids == (4,)


def test_expunged_guid_may_return_under_a_new_uid(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    node.write(expunging(1))
    assert node.write(saving(b"text", guid(1))).uids == (2,)


def test_flags_are_changed_only_on_messages_that_differ(node: MemoryNode) -> None:
    for number in (1, 2):
        node.write(saving(b"text", guid(number), flags=[SEEN] if number == 1 else []))
    result = node.write(flagging(1, 2, 9, added=[SEEN]))
    assert (result.dot, result.modseq, result.refused) == (Dot("dc1.a", 3), 3, UidSet())
    assert [row.modseq for row in rows(node).values()] == [1, 3]
    result = node.write(flagging(1, 2, added=[SEEN], removed=[FLAGGED]))
    assert (result.dot, result.modseq) == (Dot("dc1.a", 3), 3)


def test_one_request_sets_and_clears_flags(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1), flags=[SEEN]))
    node.write(flagging(1, added=[FLAGGED], removed=[SEEN]))
    assert rows(node)[1].visible_flags() == {FLAGGED}
    assert len(node.log()) == 2


def test_flags_ignore_case(node: MemoryNode) -> None:
    for number, flags in ((1, ["Junk"]), (2, ["junk", "Work"])):
        node.write(saving(b"text", guid(number), flags=flags))
    assert node.write(flagging(1, 2, added=["JUNK"])).dot == Dot("dc1.a", 2), "both have the flag already"
    node.write(flagging(1, 2, removed=["JUNK"]))
    assert [row.visible_flags() for row in rows(node).values()] == [set(), {"Work"}]


def test_flags_keep_the_stamp_of_their_last_change(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1), flags=[SEEN]))
    node.write(flagging(1, added=[FLAGGED]))
    node.now_ms += 5
    node.write(flagging(1, removed=[SEEN]))
    first, second, third = (logged.entry.stamp for logged in node.log())
    assert first < second < third
    assert rows(node)[1].flags == {FLAGGED: (*second, True), SEEN: (*third, False)}
    assert third.ms == node.now_ms


def test_stamps_are_above_all_that_the_node_has_received(node: MemoryNode) -> None:
    ahead = MemoryNode("dc2.a", now_ms=node.now_ms + 60_000)
    ahead.write(saving(b"text", guid(1)))
    node.take(ahead.log()[0])
    node.write(flagging(1, added=[SEEN]))
    first, second = (logged.entry.stamp for logged in node.log())
    assert first < second


async def test_stamps_rise_although_the_clock_is_set_back(tmp_path: Path) -> None:
    async with open_store(tmp_path, "dc1.a", Environment(clock_ms=lambda: 60_000)) as store:
        await save(store, 1)
    async with open_store(tmp_path, "dc1.b", Environment(clock_ms=lambda: 50_000)) as store:
        await save(store, 2)
        first, second = (logged.entry.stamp for logged in await store.log_after(0))
    assert first < second
    assert first.ms == second.ms == 60_000


def test_unchanged_since_refuses_messages_changed_later(node: MemoryNode) -> None:
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    node.write(flagging(1, added=[SEEN]))
    result = node.write(flagging(1, 2, 3, added=[FLAGGED], unchanged_since=2))
    assert (result.refused, result.modseq) == (UidSet.of([1, 3]), 5)
    assert [row.visible_flags() for row in rows(node).values()] == [{SEEN}, {FLAGGED}, set()]
    result = node.write(flagging(1, added=[FLAGGED], unchanged_since=0))
    assert (result.refused, result.dot, result.modseq) == (UidSet.of([1]), Dot("dc1.a", 5), 5)


def test_save_is_refused_when_no_uid_is_left() -> None:
    node = MemoryNode("dc1.a")  # without the check at the end: no history leads to this state

    def use_up(tx: Transaction) -> None:
        tx.chain_to_change(INBOX.mailbox_id, INBOX.user, INBOX.uidvalidity).uidnext = UID_MAX - 1

    node.write(saving(b"text", guid(1)))
    node.write(use_up)
    assert node.write(saving(b"text", guid(2))).uids == (UID_MAX - 1,)
    with pytest.raises(MailboxFullError):
        node.write(saving(b"text", guid(3)))
