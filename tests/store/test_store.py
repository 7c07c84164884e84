from pathlib import Path

import trio

from protocol.values import Dot, UidSet
from replicator.environment import Environment
from replicator.store import numbering, reading
from replicator.store.content import StoredText
from replicator.store.reading import MailboxKey
from replicator.store.store import Store

KEY = MailboxKey("alice", b"m" * 16, 7)


async def save(store: Store, text: bytes, guid: bytes | None = None) -> numbering.Placed:
    guid = guid or Environment().new_guid()
    stored = StoredText.of(text)
    return await store.write(lambda tx: numbering.save(tx, KEY, stored, guid=guid, received_ms=1, flags=()))


async def test_saves_number_from_one_and_show_in_the_view(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        view = await store.view(KEY)
        assert (await save(store, b"one")).uids == (1,)
        assert (await save(store, b"two")).uids == (2,)
        assert list(view.messages) == [1, 2]
        assert view.uidnext == 3
        result = await store.write(lambda tx: numbering.store(tx, KEY, UidSet.of([1]), added=["\\Seen"], removed=[]))
        assert result.dot == Dot("dc1.a", 3)
        assert view.unseen == 1
        await store.write(lambda tx: numbering.expunge(tx, KEY, UidSet.of([1, 2, 9])))
        assert list(view.messages) == []
    async with Store.open(tmp_path / "node.db", "dc1.b", Environment()) as store:
        assert (await save(store, b"three")).uids == (3,)
        assert store.context == {"dc1.a": 4, "dc1.b": 1}


async def test_a_second_store_that_receives_the_log_has_the_same_digest(tmp_path: Path) -> None:
    async with trio.open_nursery(), Store.open(tmp_path / "a.db", "dc1.a", Environment()) as store:
        for number in range(50):
            await save(store, b"text %d" % number)
        logged = await store.log_after(0)
        assert len(logged) == 50
        assert await store.read(lambda reader: reading.log_after(reader, 0, 64, 1 << 20)) == logged
        digest = await store.read(lambda reader: [chain.digest() for chain in reading.chains_of(reader, None)])
        from replicator.store.apply import receive

        async with Store.open(tmp_path / "b.db", "dc2.a", Environment()) as other:
            for item in reversed(logged[:3]):
                await other.write(lambda tx, item=item: receive(tx, item.entry, [StoredText.of(t) for t in item.texts.values()]))  # type: ignore[misc]
            assert other.context == {"dc1.a": 1}
            for item in logged:
                await other.write(lambda tx, item=item: receive(tx, item.entry, [StoredText.of(t) for t in item.texts.values()]))  # type: ignore[misc]
            await other.wait_applied(Dot("dc1.a", 50))
            assert digest == await other.read(lambda reader: [chain.digest() for chain in reading.chains_of(reader, None)])
