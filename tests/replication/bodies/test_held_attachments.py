"""Attachments of acknowledged messages stay on disk, whatever ends, breaks or is full meanwhile."""

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
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.links import link
from replicator.store.attachments.construction import Holding, Replacement
from tests.replication.bodies.large_messages import (
    LOGO,
    answer_chunks,
    attachment_files,
    bodies,
    check_holders,
    contents,
    message,
    raise_disk_full,
    save,
)
from tests.replication.cluster import USER, Node, cluster
from tests.replication.mastership.masters import master
from tests.replication.metrics import value
from tests.replication.slow_disk import delay_writes
from tests.replication.tasks.running import scrub

T = TypeVar("T")


class Gate:
    """A gate before the next batch of a node's writer."""

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


async def test_attachments_are_held_when_the_client_leaves_during_the_write(
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
        uid = await save(node, message(1))  # a retry
        assert (await bodies(node))[uid] == message(1)
        await check_holders(node)


async def test_attachments_are_held_when_the_link_breaks_during_the_write(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
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
        await check_holders(nodes["dc2"])
        assert [file.read_bytes() for file in contents(nodes["dc2"])] == [LOGO]


async def test_message_without_its_attachments_does_not_count_as_a_copy(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again")]
    answer_chunks(monkeypatch, lambda _: busy[0] if busy else None)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        with pytest.raises(MailError):
            await save(nodes["dc1"], message(1))
        assert await bodies(nodes["dc2"]) == {}
        busy.clear()
        await nodes.converged()
        assert await bodies(nodes["dc2"]) == {1: message(1)}


async def test_message_with_lost_attachments_does_not_count_for_a_waiting_client(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [Refused(RefusalCode.NO_CONTENT, "this node does not have this content")]
    answer_chunks(monkeypatch, lambda _: lost[0] if lost else None)
    async with cluster(tmp_path, autojump_clock, 2, when_short=WhenShort.REFUSE) as nodes:
        with pytest.raises(MailError):
            await save(nodes["dc1"], message(1))
        assert len((await nodes["dc2"].view()).messages) == 0
        await trio.sleep(60)
        assert len((await nodes["dc2"].view()).messages) == 1  # after a time the message is shown without its body
        assert (await nodes["dc2"].report.node_status()).texts_lacking == 1
        assert value(nodes["dc2"].registry, "texts_lost_total") == 1


async def test_link_may_break_during_the_download_of_attachments(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        cuts = [1, 2]

        def cutting(_: FetchPart) -> None:
            if cuts:
                cuts.pop()
                nodes.network.cut(("dc1", "dc2"))

        answer_chunks(monkeypatch, cutting, delay_s=0.1)
        await save(nodes["dc1"], message(1))
        await trio.sleep(30)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await trio.sleep(30)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await nodes.converged()
        assert await bodies(nodes["dc2"]) == {1: message(1)}


async def test_full_disk_for_attachments_breaks_no_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        with monkeypatch.context() as patch:
            patch.setattr(nodes["dc3"].store.attachments, "build", raise_disk_full)
            term = nodes["dc1"].coordinator.mastership.masters.term
            await save(nodes["dc1"], message(1))
            await trio.sleep(30)
            assert nodes["dc1"].coordinator.mastership.masters.term == term
        await nodes.converged()
        assert await bodies(nodes["dc3"]) == {1: b"first", 2: message(1)}


async def test_save_succeeds_while_the_masters_disk_is_full(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        with monkeypatch.context() as patch:
            patch.setattr(nodes["dc1"].store.attachments, "build", raise_disk_full)
            await save(nodes["dc2"], message(1))
        await nodes.converged()
        assert await master(nodes) == "dc2", "dc1 hands the mailbox to the node that asks"


async def test_attachment_that_many_saves_need_is_fetched_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = list[int]()
    answer_chunks(monkeypatch, lambda command: chunks.append(command.start), delay_s=0.1)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        users = [f"user{number}" for number in range(16)]
        for user in users:
            await save(nodes["dc1"], b"first", user)
        await nodes.converged()
        mail = nodes["dc2"].mail
        async with mail.receive() as sink:
            await sink.write(message(1))
            body = await sink.finish()
            async with trio.open_nursery() as nursery:
                for user in users:
                    nursery.start_soon(mail.save, await mail.folder(user, "INBOX"), NewMessage(body))
        assert len(chunks) == 3


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"x" * len(LOGO))])
async def test_new_delivery_replaces_a_damaged_attachment(
    tmp_path: Path, autojump_clock: MockClock, harm: Callable[[Path], object]
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        (file,) = contents(node)
        harm(file)
        await save(node, message(2))
        assert await bodies(node) == {1: message(1), 2: message(2)}


async def test_repeated_delivery_restores_lost_attachments(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        for file in (*contents(node), *attachment_files(node, "holders/*")):
            file.unlink()
        for holders in attachment_files(node, "holders"):
            holders.rmdir()
            holders.parent.rmdir()
        uid = await save(node, message(1))
        assert (await bodies(node))[uid] == message(1)
        await check_holders(node)


async def test_delivery_without_attachments_replaces_a_body_that_lost_them(
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


async def test_repeated_delivery_replaces_a_damaged_body(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for body in (b"a mail", message(2)):
            await save(node, body)
        node.damage("UPDATE content SET body = x'00'")
        for body in (b"a mail", message(2)):
            await save(node, body)
        assert await bodies(node) == {1: b"a mail", 2: message(2), 3: b"a mail", 4: message(2)}


async def test_holdings_are_released_in_time_or_left_to_the_sweep(tmp_path: Path, autojump_clock: MockClock) -> None:
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


async def test_holding_of_unknown_use_is_released_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One holding belongs to no body; the other belongs to a body that is written by then."""
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
        await check_holders(node)


async def test_damaged_attachment_is_repaired_once_however_often_it_is_read(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        (file,) = contents(nodes["dc2"])
        file.write_bytes(b"x" * len(LOGO))
        attachments, repairs = nodes["dc2"].store.attachments, list[object]()
        replace = attachments.replace

        def counting(what: Holding | bytes) -> Replacement:
            repairs.append(what)
            return replace(what)

        monkeypatch.setattr(attachments, "replace", counting)
        for _ in range(3):
            assert await bodies(nodes["dc2"]) == {1: message(1)}
        await trio.sleep(60)
        assert len(repairs) == 1


async def test_one_message_for_several_users_keeps_its_attachments(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for user in ("bob", USER):
            await save(nodes["dc1"], b"first", user)
        mail = nodes["dc1"].mail
        async with mail.receive() as sink:
            await sink.write(message(1))
            body = await sink.finish()
            for user in ("bob", USER):
                await mail.save(await mail.folder(user, "INBOX"), NewMessage(body))
            await save(nodes["dc1"], message(1))  # the same octets, with another holder
            await mail.save(await mail.folder("bob", "INBOX"), NewMessage(body))
        await nodes.converged()
        for node in nodes.all():
            assert await bodies(node, "bob") == {1: b"first", 2: message(1), 3: message(1)}
            assert await bodies(node) == {1: b"first", 2: message(1), 3: message(1)}
            await check_holders(node)


async def test_removed_attachment_directory_is_created_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        await nodes.converged()
        shutil.rmtree(node.config.node.data / "attachments")
        await save(node, message(2))
        await nodes.converged()
        assert (await bodies(node))[2] == message(2)
        assert await scrub_unrepaired(node) == await scrub_unrepaired(node) == 0
        assert await bodies(node) == {1: message(1), 2: message(2)}
        await check_holders(node)


async def scrub_unrepaired(node: Node) -> int:
    """Scrub, and return the number of unrepaired findings."""
    return (await scrub(node)).unrepaired


async def test_health_reports_unwritable_attachments(tmp_path: Path, autojump_clock: MockClock) -> None:
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


async def test_many_large_messages_leave_room_for_other_requests(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are scaled down: they are 64 chunks and 1024 requests."""
    monkeypatch.setattr(link, "MAX_REQUESTS", 32)
    monkeypatch.setattr(link, "CHUNKS_AT_ONCE", 24)
    answer_chunks(monkeypatch, lambda _: None, delay_s=0.1)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        users = [f"user{number}" for number in range(8)]
        for user in users:
            await save(nodes["dc1"], b"first", user)
        await nodes.converged()
        async with trio.open_nursery() as nursery:
            for number, user in enumerate(users):
                body = message(number, random.Random(number).randbytes(1_100_000))
                nursery.start_soon(save, nodes["dc2"], body, user)


async def test_requests_of_a_slow_peer_do_not_fill_memory(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are made only as fast as they can be sent."""
    answered = list[int]()
    answer_chunks(monkeypatch, lambda command: answered.append(command.start))
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
        assert 0 < len(answered) <= 2 * link.LARGE_REPLIES_AT_ONCE
