"""Gaps: entries that are missing or unreadable in the middle of the log."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from protocol.values import Dot, UidSet, context_dots
from replicator.runtime.environment import Environment
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.log import gaps
from replicator.store.log.apply import receive
from replicator.store.log.entry_removal import collect
from replicator.store.log.gaps import LogGap, begin_after_gap, log_piecewise, look_for_gap
from replicator.store.log.snapshot_install import Adoption, adopt
from replicator.store.repair.head_evidence import log_lacks
from replicator.store.store import Store
from resync.entry import Change, Entry, MailAdd, MailDel, Merge
from tests.store.branching import with_histories
from tests.store.harness import INBOX, WORK, guid, open_store, save

ORIGIN = "dc1.a"
DELETE = "DELETE FROM log WHERE seq = ?"
GARBLE = "UPDATE log SET body = x'00' WHERE seq = ?"


async def execute(store: Store, statement: str, *parameters: object) -> None:
    await store.write(lambda tx: tx.connection.execute(statement, parameters).rowcount)


async def gap_after(store: Store, after: int = 0) -> LogGap | None:
    gap, _ = await store.read(partial(look_for_gap, origin=ORIGIN, after=after))
    return gap


@pytest.mark.parametrize("lose", [DELETE, GARBLE])
async def test_log_begins_after_a_gap_and_still_counts_it(tmp_path: Path, lose: str) -> None:
    async with open_store(tmp_path) as store:
        for number in range(8):
            await save(store, number)
        assert await gap_after(store) is None
        for seq in (3, 5, 6):
            await execute(store, lose, seq)
        assert await gap_after(store) == LogGap(ORIGIN, 3, 3)
        gap = await gap_after(store, 3)
        assert gap == LogGap(ORIGIN, 5, 6)
        assert await gap_after(store, 6) is None
        readable, end = await store.read(partial(log_piecewise, position=0, end=store.tail.end))
        assert [item.entry.dot.seq for item in readable] == [1, 2, 4, 7, 8]
        assert end == 8
        assert await store.write(partial(begin_after_gap, gap=gap)) is None
        assert store.collected == {ORIGIN: 6}
        assert store.context == {ORIGIN: 8}
        assert await store.read(log_lacks) == (3 if lose == DELETE else 2)
        assert await save(store, 8) == 9
        assert await store.write(partial(begin_after_gap, gap=gap)) is None, "the gap is already closed"
        await store.write(partial(collect, upto={ORIGIN: 4}))
        assert await store.read(queries.log_counts) == (3, 0)
        await store.write(partial(collect, upto={ORIGIN: 6}))
        assert not await store.read(lambda reader: reader.execute("SELECT 1 FROM log WHERE seq <= 6").fetchall())
        assert await store.read(log_lacks) == 0, "a checkpoint covers the gap"


async def test_gap_is_forgotten_when_its_whole_log_is_removed(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, 0)
        await execute(store, DELETE, 1)
        assert await store.write(partial(begin_after_gap, gap=LogGap(ORIGIN, 1, 1))) is None
        assert await store.read(log_lacks) == 1
        await store.write(partial(collect, upto={ORIGIN: 1}))
        assert await store.read(log_lacks) == 0


async def test_log_does_not_begin_after_entries_that_are_not_shown(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(5):
            await save(store, number)
        kept = await store.read(lambda reader: reader.execute("SELECT * FROM log WHERE seq = 4").fetchone())
        await execute(store, DELETE, 4)
        close = partial(begin_after_gap, gap=LogGap(ORIGIN, 4, 4))
        await execute(store, "UPDATE log SET applied = 0 WHERE seq = 2")
        assert "wait" in str(await store.write(close))
        await execute(store, "UPDATE log SET applied = 1 WHERE seq = 2")
        await execute(store, f"INSERT INTO log VALUES ({','.join('?' * len(kept))})", *kept)
        assert await store.write(close) is None
        assert store.collected == {}, "the entry is there again"
        assert await store.read(partial(queries.entry_at, dot=Dot(ORIGIN, 4))) is not None


async def test_gaps_are_searched_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "SLICE_ENTRIES", 3)
    async with open_store(tmp_path) as store:
        for number in range(8):
            await save(store, number)
        await execute(store, "DELETE FROM log WHERE seq BETWEEN 2 AND 6")
        look = partial(look_for_gap, origin=ORIGIN)
        assert await store.read(partial(look, after=0)) == (LogGap(ORIGIN, 2, 3), 3)
        assert await store.read(partial(look, after=3)) == (LogGap(ORIGIN, 4, 6), 6)
        assert await store.read(partial(look, after=6)) == (None, 8)
        assert await store.write(partial(begin_after_gap, gap=LogGap(ORIGIN, 2, 6))) is None


async def test_entry_with_an_unreadable_body_is_no_gap(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(3):
            await save(store, number)
        garbled = "UPDATE content SET body = CAST(x'ff' AS TEXT) WHERE id = 2"
        kept = await store.read(lambda reader: reader.execute("SELECT body FROM content WHERE id = 2").fetchone())
        await execute(store, garbled)
        assert await gap_after(store) is None
        readable, end = await store.read(partial(log_piecewise, position=0, end=store.tail.end))
        assert [(item.entry.dot.seq, len(item.bodies)) for item in readable] == [(1, 1), (2, 0), (3, 1)]
        assert end == 3
        await execute(store, "UPDATE content SET body = ? WHERE id = 2", *kept)


async def test_lost_waiting_entry_blocks_only_its_origin_until_shown(tmp_path: Path) -> None:
    """The lost entry of dc2 was on another branch of INBOX. The node shows it once dc3's merge arrives."""
    async with open_store(tmp_path) as store:
        for number in range(4):
            await save(store, number)
        await receive_on_inbox(store, Dot("dc2.b", 1), (Dot("dc3.c", 1),), MailDel(UidSet.of([1])))
        await save(store, 4)
        await execute(store, LOSE_OTHER)
        await execute(store, DELETE, 3)
        assert await store.write(partial(begin_after_gap, gap=LogGap(ORIGIN, 3, 3))) is None
        close = partial(begin_after_gap, gap=LogGap("dc2.b", 1, 1))
        assert "`replicator resync`" in str(await store.write(close))
        await save(store, 5)
        assert "`replicator resync`" in str(await store.write(close))
        await receive_merge(store)
        assert await store.write(close) is None
        assert store.collected == {ORIGIN: 3, "dc2.b": 1}


@pytest.mark.parametrize("predecessors", [(), (Dot("dc3.c", 1),), (Dot("dc3.c", 1), Dot("dc4.d", 1))])
async def test_gap_stays_until_its_waiting_entry_is_shown(tmp_path: Path, predecessors: tuple[Dot, ...]) -> None:
    """Of the lost entries, dc2.b 1 was on another branch of INBOX, and dc2.b 2 was applied to another mailbox."""
    async with open_store(tmp_path) as store:
        await lose_two_entries(store, predecessors)
        close = partial(begin_after_gap, gap=LogGap("dc2.b", 1, 2))
        assert "`replicator resync`" in str(await store.write(close))
        await receive_merge(store)
        assert store.settled() == {ORIGIN: 4, "dc2.b": 2, "dc3.d": 1}
        assert not store.has_waiting(INBOX.mailbox_id)
        assert await store.write(close) is None


@pytest.mark.parametrize("adopted", [False, True])
async def test_lost_waiting_entry_is_known_after_a_restart(tmp_path: Path, *, adopted: bool) -> None:
    """The entry is not settled and stays in the log until a merge or an adoption contains it."""
    async with Store.open(tmp_path / "node.db", ORIGIN, Environment()) as store:
        await lose_two_entries(store, (Dot("dc3.c", 1),))
        assert store.settled() == {ORIGIN: 4}
    async with open_store(tmp_path, "dc1.b") as store:
        assert store.settled() == {ORIGIN: 4}
        assert store.is_waiting(Dot("dc2.b", 1))
        await store.write(partial(collect, upto={"dc2.b": 2}))
        assert store.collected == {}
        await (adopt_merged if adopted else receive_merge)(store)
        assert store.settled() == {ORIGIN: 4, "dc2.b": 2} | ({} if adopted else {"dc3.d": 1})
        assert not store.is_waiting(Dot("dc2.b", 1))
        assert await store.write(partial(begin_after_gap, gap=LogGap("dc2.b", 1, 2))) is None


async def test_entry_that_counts_a_lost_waiting_entry_as_seen_waits(tmp_path: Path) -> None:
    """dc2.b 1 was on another branch, dc2.b 3 is on this one. Applied, it would make both count as shown."""
    async with open_store(tmp_path) as store:
        await lose_two_entries(store, (Dot("dc3.c", 1),))
        chain = await inbox(store)
        assert chain.head is not None
        await receive_on_inbox(store, Dot("dc2.b", 3), (chain.head,), MailDel(UidSet.of([1])))
        assert store.is_waiting(Dot("dc2.b", 3))
        assert (await inbox(store)).head == chain.head
        await receive_merge(store, 3)
        assert await store.write(partial(begin_after_gap, gap=LogGap("dc2.b", 1, 2))) is None


LOSE_OTHER = "DELETE FROM log WHERE origin = 'dc2.b'"


async def lose_two_entries(store: Store, predecessors: tuple[Dot, ...]) -> None:
    """Save four messages, receive two entries of dc2 of which the first waits, and lose both."""
    for number in range(4):
        await save(store, number)
    change = Merge(2, 0, predecessors, (), ()) if len(predecessors) > 1 else MailDel(UidSet.of([1]))
    await receive_on_inbox(store, Dot("dc2.b", 1), predecessors, change)
    add = MailAdd(1, guid(9), 1, (), 3, b"h" * 32, copied=True)
    applied = Entry(Dot("dc2.b", 2), (), 1 << 56, 1, *WORK, (add,))
    await store.write(partial(receive, entry=applied, bodies=()))
    assert store.is_waiting(Dot("dc2.b", 1))
    assert not store.is_waiting(Dot("dc2.b", 2))
    await execute(store, LOSE_OTHER)


async def receive_merge(store: Store, seen: int = 1) -> None:
    """Receive dc3's merge of this node's state and of dc2's branch up to the entry `seen`."""
    chain = await inbox(store)
    assert chain.head is not None
    merge = Merge(chain.uidnext, 0, context_dots({**chain.context, "dc2.b": seen, "dc3.c": 1}), (), ())
    await receive_on_inbox(store, Dot("dc3.d", 1), (chain.head, Dot("dc2.b", seen)), merge)


async def adopt_merged(store: Store) -> None:
    """Adopt the state that `receive_merge` leads to."""
    chain = await inbox(store)
    context = {**chain.context, "dc2.b": 1, "dc3.c": 1}
    merge = Merge(chain.uidnext, 0, context_dots(context), (), ())
    theirs = replace(chain, head=Dot("dc3.d", 1), highestmodseq=chain.highestmodseq + 1, context=context | {"dc3.d": 1})
    assert await store.write(partial(adopt, adoption=Adoption(INBOX, chain.head, theirs, merge, 1)))


async def inbox(store: Store) -> Chain:
    chain = await store.read(partial(chains.load, chain_id=INBOX.mailbox_id))
    assert chain is not None
    return chain


async def receive_on_inbox(store: Store, dot: Dot, predecessors: tuple[Dot, ...], change: Change) -> None:
    modseq = (await inbox(store)).highestmodseq + 1
    on_inbox = Entry(dot, predecessors, 1 << 56, modseq, *INBOX, (change,))
    entry = await store.read(partial(with_histories, entry=on_inbox))
    await store.write(partial(receive, entry=entry, bodies=()))
