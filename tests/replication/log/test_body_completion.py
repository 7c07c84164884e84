"""Entries of messages with attachments: which entries wait for attachments, and for how long."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import FetchPart, Parts, RefusalCode, Refused, Reply
from replicator.config import ContentConfig, WhenShort
from replicator.errors import MailError
from replicator.replication import timing
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.links.entry_codec import Arrived
from replicator.replication.links.link import PeerLink
from replicator.replication.log import body_completion as body_completion_module
from replicator.replication.log import receiver, sender
from replicator.replication.writes.prestage import Prestage
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, CHUNK_HASH_BYTES, Attached
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.store import Store
from resync.entry import Entry
from tests.replication.bodies.large_messages import answer_chunks, bodies, contents, message, raise_disk_full, save
from tests.replication.cluster import Cluster, Node, cluster, until
from tests.replication.slow_disk import delay_writes

T = TypeVar("T")

UNAVAILABLE = Refused(RefusalCode.UNAVAILABLE, "the disk is ill")


def with_attachment(number: int) -> bytes:
    return message(number, random.Random(number).randbytes(200_000))


async def test_full_receiver_still_reads_the_attachments_that_it_asked_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attachments come on the link itself, which would otherwise fall silent and be dropped again and again."""
    monkeypatch.setattr(receiver, "WAITING_BYTES", 50_000)
    monkeypatch.setattr(body_completion_module, "LARGE_TOGETHER_BYTES", 100_000)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        for number in range(30):
            await save(nodes["dc1"], random.Random(number).randbytes(10_000))
            if number % 12 == 11:
                await save(nodes["dc1"], with_attachment(number))
        delay_writes(nodes["dc2"], partial(trio.sleep, 0.5))
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        link = nodes["dc2"].coordinator.connections.link("dc1")
        assert link is not None
        await nodes.converged()
        assert not link.closed


async def wait_for_log(nodes: Cluster) -> float:
    """Wait until dc2 has dc1's log; return the seconds that it took."""
    began = trio.current_time()
    one, two = nodes["dc1"].store, nodes["dc2"].store
    await until(lambda: two.context == one.context)
    return trio.current_time() - began


async def test_lost_attachments_of_old_messages_delay_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client waits for an OK from long ago. A lost directory of a peer must not delay its log for days."""
    monkeypatch.setattr(body_completion_module, "LARGE_TOGETHER_BYTES", 100_000)
    monkeypatch.setattr(body_completion_module, "CLOCKS_APART_MS", 300_000)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes.stop("dc2")
        for number in range(3):
            await save(nodes["dc1"], with_attachment(number))
        await trio.sleep(600)
        shutil.rmtree(nodes["dc1"].config.node.data / "attachments")
        await nodes.start("dc2")
        assert await wait_for_log(nodes) < 10


async def test_many_lost_attachments_of_young_messages_delay_the_log_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is looked for apart from the others. They have all arrived together, so all their clients wait as long."""
    monkeypatch.setattr(body_completion_module, "LARGE_TOGETHER_BYTES", 100_000)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        for number in range(5):
            await save(nodes["dc1"], with_attachment(number))
        shutil.rmtree(nodes["dc1"].config.node.data / "attachments")
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        assert timing.REQUEST_TIMEOUT_S < await wait_for_log(nodes) < 2 * timing.REQUEST_TIMEOUT_S


async def test_attachments_of_forgotten_messages_are_not_requested(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's tail in memory still has the recipes of the messages."""
    monkeypatch.setattr(body_completion_module, "LARGE_TOGETHER_BYTES", 100_000)
    keeping = ContentConfig(keep_expunged_s=100.0)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, content=keeping) as nodes:
        await nodes.stop("dc2")
        for number in range(3):
            await save(nodes["dc1"], with_attachment(number))
        await nodes["dc1"].expunge(1, 2, 3)
        await trio.sleep(200)
        assert contents(nodes["dc1"]) == []
        await nodes.start("dc2")
        assert await wait_for_log(nodes) < 10


async def test_node_with_full_disk_asks_for_attachments_only_now_and_then(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    answer_chunks(monkeypatch, lambda command: asked.append(command.start))
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        attachments = nodes["dc2"].store.attachments

        def no_room() -> None:
            asked.append(-1)
            raise_disk_full()

        with monkeypatch.context() as patch:
            patch.setattr(attachments, "build", no_room)
            await save(nodes["dc1"], with_attachment(1))
            await trio.sleep(600)
            assert 5 < len(asked) < 20
        await trio.sleep(timing.COMPLETION_FULL_RETRY_MOST_S)
        assert (await bodies(nodes["dc2"]))[2] == with_attachment(1)


@pytest.mark.long
async def test_peer_with_bad_disk_does_not_delay_the_log_for_ever(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that cannot say whether it has an attachment may never be able to."""
    with monkeypatch.context() as patch:
        answer_chunks(patch, lambda _: UNAVAILABLE)
        async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
            await save(nodes["dc1"], b"first")
            await nodes.converged()
            await save(nodes["dc1"], with_attachment(1))
            await trio.sleep(timing.COMPLETION_UNAVAILABLE_S - 60)
            assert len(await nodes["dc2"].messages()) == 1
            await trio.sleep(60 + 2 * timing.COMPLETION_FULL_RETRY_MOST_S)
            assert len(await nodes["dc2"].messages()) == 2
            patch.undo()
            assert (await bodies(nodes["dc2"]))[2] == with_attachment(1)


async def test_clock_differences_along_a_line_make_no_entry_old(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours' clocks differ by less than five minutes, which is allowed. If dc3 took the entry for an old one,
    it would give the body up at once, and still count as a copy.
    """
    answer = peer_fetch.answer_fetch

    async def without_content(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
        if isinstance(command, FetchPart) and link.sid == "dc3":
            return Refused(RefusalCode.NO_CONTENT, "this node does not have this content")
        return await answer(store, link, command, read_chunk)

    async with cluster(tmp_path, autojump_clock, 3, copies=3, when_short=WhenShort.REFUSE, start=["dc1"]) as nodes:
        nodes.network.cut(("dc1", "dc3"))
        nodes.clock_ahead_s = {"dc2": 250.0, "dc3": 500.0}
        await nodes.start("dc2", "dc3")
        await nodes.linked()
        monkeypatch.setattr(peer_fetch, "answer_fetch", without_content)
        with trio.move_on_after(20) as scope:
            await save(nodes["dc1"], message(1))
        has_body = message(1) in (await bodies(nodes["dc1"])).values()
        lacking = (await nodes["dc3"].report.node_status()).texts_lacking
        monkeypatch.setattr(peer_fetch, "answer_fetch", answer)
        await nodes.converged()
        assert has_body
        assert scope.cancelled_caught, f"OK with three copies asked for; dc3 lacks {lacking} bodies"


async def test_peer_that_was_busy_for_half_a_minute_delays_nothing_afterwards(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again")]
    answer_chunks(monkeypatch, lambda _: busy[0] if busy else None)
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_save_is_refused, nodes["dc1"])
            await trio.sleep(32)
            busy.clear()
            with trio.move_on_after(20) as scope:
                await nodes["dc1"].save("small")
        await nodes.converged()
        assert not scope.cancelled_caught


async def _save_is_refused(node: Node) -> None:
    with pytest.raises(MailError):
        await save(node, message(1))


async def test_damaged_page_of_bodies_does_not_stop_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is in the log's tail in memory; only the query whether its body still exists fails."""

    def malformed(*_: object) -> bool:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        with monkeypatch.context() as patch:
            patch.setattr(sender, "is_here", malformed)
            await save(nodes["dc1"], message(1))
            await nodes["dc1"].save("small", user="bob")
            await trio.sleep(300)
            seen = nodes["dc2"].store.context == nodes["dc1"].store.context
        await nodes.converged()
        assert seen


async def test_attachment_arrives_over_a_link_that_keeps_breaking(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each download goes on where the last one ended."""
    asked = list[int]()
    answer_chunks(monkeypatch, lambda command: asked.append(command.start), delay_s=1.0)
    large = message(1, random.Random(1).randbytes(6 << 20))
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await save(nodes["dc1"], large)
        for _ in range(20):
            await trio.sleep(3)
            nodes.network.cut(("dc1", "dc2"))
            await until(lambda: not nodes["dc2"].coordinator.connections.links)
            nodes.network.mend(("dc1", "dc2"))
            await nodes.linked()
        await nodes.converged()
        assert (await bodies(nodes["dc2"]))[2] == large
        assert len(asked) < 3 * len(set(asked))


async def test_download_interrupted_after_its_last_chunk_repeats_no_chunk(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"a" * CHUNK_BYTES + b"the rest"
    hashes = [hashlib.sha256(chunk).digest()[:CHUNK_HASH_BYTES] for chunk in (data[:CHUNK_BYTES], data[CHUNK_BYTES:])]
    attached = Attached(hashlib.sha256(data).digest(), len(data), 0, b"".join(hashes))

    async def fetched(_: Attached, number: int) -> bytes:
        return data[number * CHUNK_BYTES :][:CHUNK_BYTES]

    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        attachments, scope = nodes["dc1"].coordinator.bodies._attachments, trio.CancelScope()
        run = attachments._run_in_thread

        async def cancelling(work: Callable[[], T]) -> T:
            done = await run(work)
            if contents(nodes["dc1"]) and contents(nodes["dc1"])[0].stat().st_size == len(data):
                scope.cancel()
                await trio.lowlevel.checkpoint()
            return done

        with monkeypatch.context() as patch, scope:
            patch.setattr(attachments, "_run_in_thread", cancelling)
            await attachments.obtain(attached, fetched)
        assert scope.cancelled_caught
        holding = await attachments.obtain(attached, fetched)
        assert holding is not None
        assert holding.hash == attached.hash
        assert [file.read_bytes() for file in contents(nodes["dc1"])] == [data]


@pytest.mark.long
async def test_abandoned_partial_download_is_removed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_chunks(monkeypatch, lambda command: None if command.start < 3 << 20 else UNAVAILABLE)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        async with nodes["dc1"].mail.receive() as sink:
            await sink.write(message(1, random.Random(1).randbytes(6 << 20)))
            received = await sink.finish()
            assert isinstance(received, StoredBody)
            coordinator = nodes["dc1"].coordinator
            prestage = Prestage(coordinator.store, coordinator.bodies, lambda: coordinator.connections.links, 1)
            assert received.parts is not None
            await prestage.offer(received.parts)
        assert contents(nodes["dc2"])
        await trio.sleep(timing.PARTIAL_DOWNLOADS_KEPT_S + 2 * timing.PARTIAL_DOWNLOADS_LOOK_EVERY_S)
        assert not contents(nodes["dc2"])
        assert not nodes["dc2"].store.attachments.in_flight()


async def test_entry_that_came_from_another_peer_is_not_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The entry delays those behind it on a link whose peer lacks its attachments."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        await save(one, b"first")
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        await save(one, with_attachment(1))
        (entry, recipe) = await last_entry_of(one)
        shutil.rmtree(one.config.node.data / "attachments")
        nodes.rejoin("dc2")
        await nodes.linked()
        body_completion = two.coordinator.feeds["dc1"].receiver._body_completion
        is_missing, began = True, trio.current_time()
        async with trio.open_nursery() as nursery:

            async def comes() -> None:
                nonlocal is_missing
                await trio.sleep(7)
                is_missing = False

            nursery.start_soon(comes)
            arrived = Arrived(entry, [], [recipe], trio.current_time())
            async with body_completion.completed([arrived], lambda _: is_missing) as whole:
                assert whole == []
        assert trio.current_time() - began < 2 * timing.COMPLETION_LOST_RETRY_S + 1


async def last_entry_of(node: Node) -> tuple[Entry, Parts]:
    """Return the node's last entry, and the recipe of its message."""
    (*_, logged) = await node.store.log_after(0)
    (body,) = logged.bodies.values()
    assert body.parts is not None
    return logged.entry, body.parts
