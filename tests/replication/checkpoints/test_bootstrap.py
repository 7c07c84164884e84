"""Bootstrap: a new node begins with the checkpoints of another node."""

import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import LogConfig
from replicator.replication import timing
from replicator.replication.checkpoints import bootstrap as bootstrap_module
from replicator.replication.checkpoints.log_truncation import LogTruncation
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.manifest import Manifest
from replicator.store.db import queries
from replicator.store.db.entry_validation import NamedHead
from replicator.store.log.entry_removal import collect
from replicator.store.store import Store
from tests.effort import first
from tests.replication.checkpoints.bootstrapping import Alone, archive_of, bootstrap_of
from tests.replication.cluster import USER, Node, cluster, until, virtual_environment
from tests.store.harness import open_store


async def write_checkpoints(node: Node, archive: Archive) -> None:
    log_truncation = LogTruncation(node.store, archive, Alone(), LogConfig(), node.environment)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log_truncation.run)
        await log_truncation.checkpoint_now()
        nursery.cancel_scope.cancel()
    await trio.sleep(timing.BOOTSTRAP_AGE_MIN_S)


async def digests(store: Store) -> dict[bytes, bytes]:
    return await store.read(lambda reader: {one.id: one.digest() for one in queries.chains_of(reader, None)})


@asynccontextmanager
async def node_with_mail(path: Path, clock: MockClock) -> AsyncIterator[Node]:
    async with cluster(path, clock, 1) as nodes:
        node = nodes["dc1"]
        for number in range(1200):
            await node.save(f"{number}")
        await node.flag(1, 2, 3)
        await node.expunge(5)
        await node.mail.create_folder(USER, "Work")
        await node.mail.subscribe(USER, "Work", subscribed=True)
        await node.mail.annotate(USER, await node.mail.folder(USER, "Work"), {"/private/comment": b"x"})
        for number in range(20):
            await node.save("text", user=f"user{number}")
        yield node


async def test_new_node_installs_checkpoints_and_goes_on_from_there(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with node_with_mail(tmp_path, autojump_clock) as node:
        await write_checkpoints(node, archive_of(tmp_path, "dc1", autojump_clock))
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", virtual_environment(autojump_clock, "a")) as store:
            bootstrap = bootstrap_of(store, tmp_path, autojump_clock)
            await bootstrap.run()
            assert bootstrap.done == bootstrap.total == 42
            assert await digests(store) == await digests(node.store)
            assert store.context == store.collected == node.store.context
            view = await store.view(queries.MailboxKey(USER, (await node.inbox()).mailbox_id, 1))
            assert len(view.messages) == 1199
            assert view.messages[2].flags == {"\\Seen"}
            work = (await node.mail.folders(USER))[1]
            assert work.name == "Work"
            known = await store.read(lambda reader: queries.annotations_of(reader, USER, work.mailbox_id))
            assert known == {"/private/comment": b"x"}
        async with open_store(tmp_path / "new", "dc9.b", virtual_environment(autojump_clock, "b")) as store:
            again = bootstrap_of(store, tmp_path, autojump_clock)
            await again.run()
            assert again.total == 0, "the node is not new any more"


@pytest.mark.long
async def test_damaged_checkpoint_makes_the_node_ask_for_the_whole_log(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with node_with_mail(tmp_path, autojump_clock) as node:
        await write_checkpoints(node, archive_of(tmp_path, "dc1", autojump_clock))
        next((tmp_path / "objects").rglob("*.mailbox")).write_bytes(b"damaged")
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", virtual_environment(autojump_clock, "a")) as store:
            await bootstrap_of(store, tmp_path, autojump_clock).run()
            assert store.context == {}
            assert len(await digests(store)) == 41
        assert "1 of 42 checkpoints could not be installed, so other nodes send what they hold" in caplog.text


async def test_node_without_its_object_store_begins_empty(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "objects").write_text("a file in its place")
    async with open_store(tmp_path, "dc9.a", virtual_environment(autojump_clock, "a")) as store:
        await bootstrap_of(store, tmp_path, autojump_clock).run()
        assert store.context == {}
    assert "does not begin with checkpoints" in caplog.text


@pytest.mark.long
async def test_bootstrap_ignores_checkpoints_that_are_too_recent(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that acknowledges an entry must have the entry's bodies on disk: clients wait for that."""
    async with node_with_mail(tmp_path, autojump_clock) as node:
        await write_checkpoints(node, archive_of(tmp_path, "dc1", autojump_clock))
        monkeypatch.setattr(timing, "BOOTSTRAP_AGE_MIN_S", 2 * timing.BOOTSTRAP_AGE_MIN_S)
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", virtual_environment(autojump_clock, "a")) as store:
            await bootstrap_of(store, tmp_path, autojump_clock).run()
            assert store.context == {}


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garble_the_end(path: Path) -> None:
    """Change the last octet, which belongs to the checksum."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("is_log_there", [True, False])
@pytest.mark.parametrize(("spoil", "taken_over"), first(1, [(garble_the_end, 15), (cut_short, 0), (Path.unlink, 0)]))
async def test_manifest_damaged_while_it_is_read_leaves_the_rest_to_the_log(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    taken_over: int,
    *,
    is_log_there: bool,
) -> None:
    """The manifest is whole when its heads are counted, and damaged when they are taken over."""
    heads, readings = Archive.heads, 0

    def path_of(name: str) -> Path:
        return next(tmp_path.rglob(Path(name).name))

    async def spoil_and_read_heads(self: Archive, listed: Manifest) -> AsyncGenerator[NamedHead, None]:
        nonlocal readings
        readings += 1
        if readings == 2:
            spoil(path_of(listed.name))
        async for head in heads(self, listed):
            yield head

    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"], shares_objects=True) as nodes:
        one = nodes["dc1"]
        for number in range(9):
            await one.save("text", user=f"user{number}")
        status = await one.coordinator.log_truncation.checkpoint_now()
        assert status.mailboxes == 18
        if not is_log_there:
            await one.store.write(partial(collect, upto=dict(one.store.context)))
        await trio.sleep(timing.BOOTSTRAP_AGE_MIN_S)
        monkeypatch.setattr(Archive, "heads", spoil_and_read_heads)
        monkeypatch.setattr(bootstrap_module, "SLICE", 5)
        await nodes.start("dc2")
        await nodes.linked()
        two = nodes["dc2"]
        await nodes.converged()
        assert readings == 2
        assert two.coordinator.bootstrap is not None
        assert (two.coordinator.bootstrap.done, two.coordinator.bootstrap.total) == (taken_over, 18)
        assert two.store.context == one.store.context
        assert bool(two.store.collected) != is_log_there
        assert await two.save("more", user="user8") == 2
        assert await one.bodies(user="user8") == await two.bodies(user="user8") == {1: "text", 2: "more"}


@contextmanager
def hanging_checkpoint(path: Path) -> Iterator[None]:
    """Replace one of the checkpoints by a FIFO, which nobody can open until somebody writes to it."""
    hanging = next(path.rglob("*.mailbox"))
    hanging.unlink()
    os.mkfifo(hanging)
    try:
        yield
    finally:
        os.close(os.open(hanging, os.O_RDWR))


async def test_hanging_object_store_blocks_neither_the_log_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The test runs in real threads, because a read that hangs occupies one."""
    monkeypatch.setattr(timing, "BOOTSTRAP_AGE_MIN_S", 0)
    monkeypatch.setattr(timing, "BOOTSTRAP_READ_TIMEOUT_S", 0.5)
    async with cluster(tmp_path, None, 2, start=["dc1"]) as nodes:
        for number in range(3):
            await nodes["dc1"].save("text", user=f"user{number}")
        assert (await nodes["dc1"].coordinator.log_truncation.checkpoint_now()).mailboxes == 6
        with hanging_checkpoint(tmp_path):
            await nodes.start("dc2")
            await nodes.linked()
            await nodes.converged()
            await until(lambda: nodes["dc2"].store.context == nodes["dc1"].store.context)  # published after the commit
            assert "does not begin with checkpoints: the object store did not answer" in caplog.text
            await nodes.stop("dc2")
            for path in nodes.data("dc2").glob("node.db*"):
                path.unlink()
            monkeypatch.setattr(timing, "BOOTSTRAP_READ_TIMEOUT_S", math.inf)
            await nodes.start("dc2")
            bootstrap = nodes["dc2"].coordinator.bootstrap
            assert bootstrap is not None
            await until(lambda: bootstrap.done == 5)
            with trio.fail_after(60):
                await nodes.stop("dc2")
