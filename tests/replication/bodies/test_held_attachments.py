"""What is acknowledged rests on parts that are on this disk, whatever ends, breaks or is full meanwhile."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import FetchPart, RefusalCode, Refused
from replicator.config import ContentConfig, WhenShort
from replicator.errors import MailError
from replicator.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.links import link
from replicator.store.attachments.construction import Holding, Replacement
from tests.replication.bodies.large_messages import LOGO, answering, bodies, contents, found, full, held, message, save
from tests.replication.cluster import USER, Node, cluster
from tests.replication.metrics import value
from tests.replication.slow_disk import delay_writes
from tests.replication.tasks.running import scrub

T = TypeVar("T")


class Gate:
    """The writer of a node stands still before its next batch until the gate is opened."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.opened = trio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.opened.wait()


@asynccontextmanager
async def gate(node: Node) -> AsyncIterator[Gate]:
    made = Gate()
    delay_writes(node, made.wait)
    try:
        yield made
    finally:
        made.opened.set()
        await node.store.flush()


async def test_what_the_writer_still_writes_when_its_client_goes_is_held(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save(node, b"first")
        inbox, scope = await node.mail.folder(USER, "INBOX"), trio.CancelScope()

        async def leaving() -> None:
            with scope:
                await node.mail.save(inbox, NewMessage(message(1)))

        async with gate(node) as closed, trio.open_nursery() as nursery:
            nursery.start_soon(leaving)
            await closed.reached.wait()
            scope.cancel()
            await trio.sleep(1)
            closed.opened.set()
        uid = await save(node, message(1))  # tries again
        assert (await bodies(node))[uid] == message(1)
        await held(node)


async def test_what_is_written_when_the_link_breaks_is_held(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, when_short=WhenShort.REFUSE) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        async with gate(nodes["dc2"]) as closed, trio.open_nursery() as nursery:
            nursery.start_soon(save, nodes["dc1"], message(1))
            await closed.reached.wait()
            link = nodes["dc1"].coordinator.connections.link("dc2")
            assert link is not None
            link.scope.cancel()
            await trio.sleep(0.5)
            closed.opened.set()
        await nodes.converged()
        await held(nodes["dc2"])
        assert [file.read_bytes() for file in contents(nodes["dc2"])] == [LOGO]


async def test_a_message_without_its_parts_is_no_copy(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again")]
    answering(monkeypatch, lambda _: busy[0] if busy else None)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        with pytest.raises(MailError):
            await save(nodes["dc1"], message(1))
        assert await bodies(nodes["dc2"]) == {}
        busy.clear()
        await nodes.converged()
        assert await bodies(nodes["dc2"]) == {1: message(1)}


async def test_a_message_whose_parts_are_lost_is_no_copy_while_anyone_waits_for_one(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [Refused(RefusalCode.NO_CONTENT, "this node does not have this content")]
    answering(monkeypatch, lambda _: lost[0] if lost else None)
    async with cluster(tmp_path, autojump_clock, 2, when_short=WhenShort.REFUSE) as nodes:
        with pytest.raises(MailError):
            await save(nodes["dc1"], message(1))
        assert len((await nodes["dc2"].view()).messages) == 0
        await trio.sleep(60)
        assert len((await nodes["dc2"].view()).messages) == 1  # nobody is kept waiting for ever
        assert (await nodes["dc2"].report.node_status()).texts_lacking == 1
        assert value(nodes["dc2"].registry, "texts_lost_total") == 1


async def test_a_link_that_breaks_while_parts_come_ends_no_node(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        cuts = [1, 2]

        def cutting(_: FetchPart) -> None:
            if cuts:
                cuts.pop()
                nodes.network.cut(("dc1", "dc2"))

        answering(monkeypatch, cutting, delay_s=0.1)
        await save(nodes["dc1"], message(1))
        await trio.sleep(30)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await trio.sleep(30)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await nodes.converged()
        assert await bodies(nodes["dc2"]) == {1: message(1)}


async def test_a_disk_without_room_for_parts_breaks_no_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        with monkeypatch.context() as patch:
            patch.setattr(nodes["dc3"].store.attachments, "build", full)
            term = nodes["dc1"].coordinator.mastership.masters.term
            await save(nodes["dc1"], message(1))
            await trio.sleep(30)
            assert nodes["dc1"].coordinator.mastership.masters.term == term
        await nodes.converged()
        assert await bodies(nodes["dc3"]) == {1: b"first", 2: message(1)}


async def test_a_master_without_room_for_parts_hands_the_mailbox_on(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        with monkeypatch.context() as patch:
            patch.setattr(nodes["dc1"].store.attachments, "build", full)
            await save(nodes["dc2"], message(1))
        await nodes.converged()


async def test_a_part_that_many_wait_for_is_fetched_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = list[int]()
    answering(monkeypatch, lambda command: chunks.append(command.start), delay_s=0.1)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        users = [f"user{number}" for number in range(16)]
        for user in users:
            await save(nodes["dc1"], b"first", user)
        await nodes.converged()
        mail = nodes["dc2"].mail
        async with mail.receive() as sink:
            await sink.write(message(1))
            text = await sink.finish()
            async with trio.open_nursery() as nursery:
                for user in users:
                    nursery.start_soon(mail.save, await mail.folder(user, "INBOX"), NewMessage(text))
        assert len(chunks) == 3


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"x" * len(LOGO))])
async def test_a_new_delivery_takes_the_place_of_a_damaged_part(
    tmp_path: Path, autojump_clock: MockClock, harm: Callable[[Path], object]
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        (file,) = contents(node)
        harm(file)
        await save(node, message(2))
        assert await bodies(node) == {1: message(1), 2: message(2)}


async def test_a_message_that_is_delivered_again_brings_its_parts_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        for file in (*contents(node), *found(node, "holders/*")):
            file.unlink()
        for holders in found(node, "holders"):
            holders.rmdir()
            holders.parent.rmdir()
        uid = await save(node, message(1))
        assert (await bodies(node))[uid] == message(1)
        await held(node)


async def test_a_text_that_is_delivered_again_whole_takes_the_place_of_one_whose_parts_are_lost(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.stop("dc1")
        shutil.rmtree(nodes.data("dc1") / "attachments")
        nodes.content = ContentConfig(inline_max_bytes=1 << 20)
        await nodes.start("dc1")
        await save(nodes["dc1"], message(1))
        assert await bodies(nodes["dc1"]) == {1: message(1), 2: message(1)}


async def test_a_text_that_is_damaged_here_is_replaced_by_one_that_is_delivered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for text in (b"a mail", message(2)):
            await save(node, text)
        node.damage("UPDATE content SET body = x'00'")
        for text in (b"a mail", message(2)):
            await save(node, text)
        assert await bodies(node) == {1: b"a mail", 2: message(2), 3: b"a mail", 4: message(2)}


async def test_what_is_held_is_let_go_in_time_or_left_to_a_sweep(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        attachments = node.coordinator.bodies._attachments
        holdings = []
        for number in range(10):
            construction = node.store.attachments.build()
            construction.write(b"%d" % number)
            holdings.append(construction.finish())
        run = attachments._run_in_thread

        async def slow(work: Callable[[], T]) -> T:
            await trio.sleep(3)
            return await run(work)

        attachments._run_in_thread = slow
        await attachments.let_go(holdings)
        assert not node.store.attachments.in_flight()


async def test_what_could_not_be_known_when_it_was_let_go_goes_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Of what is held for nothing, and of what a text has by then."""
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save(node, b"first")
        inbox, scope = await node.inbox(), trio.CancelScope()

        async def leaving() -> None:
            with scope:
                await node.mail.save(inbox, NewMessage(message(2, b"other" * 50_000)))

        async with gate(node) as closed, trio.open_nursery() as nursery:
            nursery.start_soon(leaving)
            await closed.reached.wait()
            scope.cancel()
            async with node.mail.receive() as sink:
                await sink.write(message(1))
                await sink.finish()
            await trio.sleep(timing.DOWNLOAD_FLUSH_TIMEOUT_S)
            assert len(node.store.attachments.in_flight()) == 2
            closed.opened.set()
        await trio.sleep(timing.DOWNLOAD_UNKNOWN_RETRY_S)
        assert node.store.attachments.in_flight() == frozenset()
        assert [file.read_bytes() for file in contents(node)] == [b"other" * 50_000]
        await held(node)


async def test_damage_is_mended_once_however_often_it_is_read(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        (file,) = contents(nodes["dc2"])
        file.write_bytes(b"x" * len(LOGO))
        attachments, mended = nodes["dc2"].store.attachments, list[object]()
        replace = attachments.replace

        def counting(what: Holding | bytes) -> Replacement:
            mended.append(what)
            return replace(what)

        monkeypatch.setattr(attachments, "replace", counting)
        for _ in range(3):
            assert await bodies(nodes["dc2"]) == {1: message(1)}
        await trio.sleep(60)
        assert len(mended) == 1


async def test_one_message_for_many_is_held_once_and_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for user in ("bob", USER):
            await save(nodes["dc1"], b"first", user)
        mail = nodes["dc1"].mail
        async with mail.receive() as sink:
            await sink.write(message(1))
            text = await sink.finish()
            for user in ("bob", USER):
                await mail.save(await mail.folder(user, "INBOX"), NewMessage(text))
            await save(nodes["dc1"], message(1))  # the same octets, held once more meanwhile
            await mail.save(await mail.folder("bob", "INBOX"), NewMessage(text))
        await nodes.converged()
        for node in nodes.all():
            assert await bodies(node, "bob") == {1: b"first", 2: message(1), 3: message(1)}
            assert await bodies(node) == {1: b"first", 2: message(1), 3: message(1)}
            await held(node)


async def test_a_directory_that_is_removed_under_a_node_is_made_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        await nodes.converged()
        shutil.rmtree(node.config.node.data / "attachments")
        await save(node, message(2))
        await nodes.converged()
        assert (await bodies(node))[2] == message(2)
        assert await scrubbed(node) == await scrubbed(node) == 0
        assert await bodies(node) == {1: message(1), 2: message(2)}
        await held(node)


async def scrubbed(node: Node) -> int:
    """What is left unrepaired."""
    return (await scrub(node)).unrepaired


async def test_health_tells_of_attachments_that_cannot_be_written(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        found_ill = list[str]()

        async def ask() -> None:
            found_ill.extend(await node.report.healthy())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert not found_ill
        await trio.sleep(60)
        shutil.rmtree(node.config.node.data / "attachments")
        (node.config.node.data / "attachments").write_bytes(b"no directory")
        (problem,) = await node.report.healthy()
        assert "attachments cannot be written" in problem


async def test_many_large_messages_at_once_leave_room_for_other_requests(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To scale: it is 64 chunks, and 1024 requests."""
    monkeypatch.setattr(link, "MAX_REQUESTS", 32)
    monkeypatch.setattr(link, "CHUNKS_AT_ONCE", 24)
    answering(monkeypatch, lambda _: None, delay_s=0.1)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        users = [f"user{number}" for number in range(8)]
        for user in users:
            await save(nodes["dc1"], b"first", user)
        await nodes.converged()
        async with trio.open_nursery() as nursery:
            for number, user in enumerate(users):
                text = message(number, random.Random(number).randbytes(1_100_000))
                nursery.start_soon(save, nodes["dc2"], text, user)


async def test_what_a_slow_peer_asks_for_does_not_fill_memory(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are made as they can be sent."""
    answered = list[int]()
    answering(monkeypatch, lambda command: answered.append(command.start))
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        there, back = nodes["dc1"].coordinator.connections.link("dc2"), nodes["dc2"].coordinator.connections.link("dc1")
        assert there is not None
        assert back is not None
        answered.clear()

        async def full_line(_: bytes) -> None:
            await trio.sleep_forever()

        with monkeypatch.context() as patch:
            patch.setattr(there._stream, "send_all", full_line)
            async with trio.open_nursery() as nursery:
                for _ in range(200):
                    nursery.start_soon(back.request, FetchPart(hashlib.sha256(LOGO).digest(), 0))
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
        assert 0 < len(answered) <= 2 * link.CONTENT_AT_ONCE
