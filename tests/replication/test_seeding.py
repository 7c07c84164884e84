"""A new node begins with the checkpoints of another one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Context
from replicator.config import LogConfig
from replicator.objects import ObjectStore
from replicator.replication import seeding
from replicator.replication.collecting import Collector
from replicator.replication.seeding import AGE_MIN_S, Seeder
from replicator.store import reading
from replicator.store.archive import Archive
from replicator.store.checkpoint import Home
from replicator.store.store import Store
from tests.replication.cluster import USER, Node, cluster, virtual_environment
from tests.store.harness import open_store


class Alone:
    """No other node is known."""

    def lacking(self, context: Context) -> Sequence[str]:  # noqa: ARG002
        return ()


def archive_of(path: Path, sid: str, clock: MockClock) -> Archive:
    environment = virtual_environment(clock, sid)
    return Archive(ObjectStore((path / "objects").as_uri(), environment), Home("mail", sid))


def seeder_of(store: Store, path: Path, clock: MockClock) -> Seeder:
    return Seeder(store, archive_of(path, "dc9", clock), virtual_environment(clock, "dc9").clock_ms)


async def checkpointed(node: Node, archive: Archive) -> None:
    collector = Collector(node.store, archive, Alone(), LogConfig(), node.store._environment)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collector.run)
        await collector.checkpoint_now()
        nursery.cancel_scope.cancel()
    await trio.sleep(AGE_MIN_S)


async def digests(store: Store) -> dict[bytes, bytes]:
    return await store.read(lambda reader: {one.id: one.digest() for one in reading.chains_of(reader, None)})


@asynccontextmanager
async def filled(path: Path, clock: MockClock) -> AsyncIterator[Node]:
    async with cluster(path, clock, 1) as nodes:
        node = nodes["dc1"]
        for number in range(1200):
            await node.save(f"{number}")
        await node.flag(1, 2, 3)
        await node.expunge(5)
        await node.mail.create_folder(USER, "Work")
        await node.mail.subscribe(USER, "Work", subscribed=True)
        for number in range(20):
            await node.save("text", user=f"user{number}")
        yield node


async def test_a_new_node_shows_what_the_checkpoints_do_and_goes_on_from_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with filled(tmp_path, autojump_clock) as node:
        await checkpointed(node, archive_of(tmp_path, "dc1", autojump_clock))
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", virtual_environment(autojump_clock, "a")) as store:
            seeder = seeder_of(store, tmp_path, autojump_clock)
            await seeder.run()
            assert seeder.done == seeder.total == 42
            assert await digests(store) == await digests(node.store)
            assert store.context == store.collected == node.store.context
            view = await store.view(reading.MailboxKey(USER, (await node.inbox()).mailbox_id, 1))
            assert len(view.messages) == 1199
            assert view.messages[2].flags == {"\\Seen"}
            assert (await node.mail.folders(USER))[1].name == "Work"
        async with open_store(tmp_path / "new", "dc9.b", virtual_environment(autojump_clock, "b")) as store:
            again = seeder_of(store, tmp_path, autojump_clock)
            await again.run()
            assert again.total == 0, "it is not new any more"


async def test_without_one_of_the_checkpoints_the_log_is_asked_for_whole(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(tmp_path, autojump_clock) as node:
        await checkpointed(node, archive_of(tmp_path, "dc1", autojump_clock))
        next((tmp_path / "objects").rglob("*.mailbox")).write_bytes(b"damaged")
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", virtual_environment(autojump_clock, "a")) as store:
            await seeder_of(store, tmp_path, autojump_clock).run()
            assert store.context == {}
            assert len(await digests(store)) == 41
        assert "1 of 42 checkpoints" in caplog.text


async def test_without_an_object_store_a_node_begins_with_nothing(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "objects").write_text("a file in its place")
    async with open_store(tmp_path, "dc9.a", virtual_environment(autojump_clock, "a")) as store:
        await seeder_of(store, tmp_path, autojump_clock).run()
        assert store.context == {}
    assert "does not begin with checkpoints" in caplog.text


async def test_checkpoints_of_what_clients_may_still_wait_for_are_no_beginning(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who says that it has an entry has its text on disk, where copies are counted."""
    async with filled(tmp_path, autojump_clock) as node:
        await checkpointed(node, archive_of(tmp_path, "dc1", autojump_clock))
        monkeypatch.setattr(seeding, "AGE_MIN_S", 2 * AGE_MIN_S)
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", virtual_environment(autojump_clock, "a")) as store:
            await seeder_of(store, tmp_path, autojump_clock).run()
            assert store.context == {}
