"""Attachments of large messages are in the attachment store of each node, and cross links once."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Content, FetchPart, Reply
from replicator.errors import ContentUnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.checkpoints.checkpoint_reader import LogAlone
from replicator.replication.links.link import PeerLink
from replicator.replication.tasks.check import CheckTask
from replicator.runtime.environment import Environment
from replicator.store.store import Store
from replicator.tasks import CheckOptions, CheckStatus
from tests.replication.bodies.large_messages import (
    LOGO,
    attachment_files,
    bodies,
    check_holders,
    contents,
    garble,
    keep_apart,
    message,
    save,
)
from tests.replication.cluster import USER, Node, cluster
from tests.replication.tasks.running import scrub


def affected(status: CheckStatus) -> list[tuple[str | None, str | None, int | None]]:
    return [(one.user, one.folder, one.uid) for one in status.findings]


async def test_attachment_of_a_large_message_is_stored_apart_at_every_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        assert await save(nodes["dc2"], message(1)) == 1
        await nodes.converged()
        for node in nodes.all():
            assert await bodies(node) == {1: message(1)}
            assert [file.read_bytes() for file in contents(node)] == [LOGO]
            await check_holders(node)


async def test_large_message_reaches_a_master_two_links_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], b"")  # makes dc1 the master
        await nodes.converged()
        await nodes.make_line()
        assert await save(nodes["dc3"], message(1)) == 2
        await nodes.converged()
        for node in nodes.all():
            assert (await bodies(node))[2] == message(1)
            await check_holders(node)


async def test_attachment_is_fetched_once_by_each_node(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks: list[tuple[str, int]] = []
    answer = peer_fetch.answer_fetch

    async def counting(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
        if isinstance(command, FetchPart):
            chunks.append((link.sid, command.start))
        return await answer(store, link, command, read_chunk)

    monkeypatch.setattr(peer_fetch, "answer_fetch", counting)
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in range(1, 6):
            await save(nodes["dc1"], message(number))
        await nodes.converged()
        for node in nodes.all():
            assert await bodies(node) == {number: message(number) for number in range(1, 6)}
            assert len(contents(node)) == 1
            await check_holders(node)
    assert sorted(chunks) == sorted((sid, start) for sid in ("dc2", "dc3") for start in (0, 1 << 17, 1 << 18))


async def test_equal_messages_share_one_holder(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for user in (USER, USER, "bob"):
            await save(nodes["dc1"], message(1), user)
        await save(nodes["dc2"], message(1))
        await nodes.converged()
        for node in nodes.all():
            assert len(attachment_files(node, "holders/*")) == 1
            await check_holders(node)


async def test_unsaved_messages_leave_no_attachments(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        mail = nodes["dc1"].mail
        inbox = await mail.folder(USER, "INBOX")
        with trio.move_on_after(0):
            await mail.save(inbox, NewMessage(message(1)))
        async with mail.receive() as sink:
            await sink.write(message(2))
            await sink.finish()
        async with mail.receive() as sink:
            await sink.write(message(3)[:200_000])
        await nodes.converged()
        for node in nodes.all():
            assert attachment_files(node, "content*") == attachment_files(node, "holders/*") == []


def cut_short(node: Node) -> None:
    (file,) = contents(node)
    file.write_bytes(file.read_bytes()[:1000])


def lose_content(node: Node) -> None:
    (file,) = contents(node)
    file.unlink()


def lose_all(node: Node) -> None:
    shutil.rmtree(node.config.node.data / "attachments")


HARM = [garble, cut_short, lose_content, lose_all]


@pytest.mark.parametrize("harm", HARM)
async def test_damaged_attachment_is_fetched_from_a_neighbour(
    tmp_path: Path, autojump_clock: MockClock, harm: object
) -> None:
    assert callable(harm)
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        harm(nodes["dc3"])
        assert await bodies(nodes["dc3"]) == {1: message(1)}
        if harm is not lose_all:
            await trio.sleep(1)
            assert [file.read_bytes() for file in contents(nodes["dc3"])] == [LOGO]
            await check_holders(nodes["dc3"])


async def test_attachment_stored_under_its_holder_is_sent_to_other_nodes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        for sid in ("dc1", "dc2"):
            await keep_apart(nodes[sid])
        lose_content(nodes["dc3"])
        for node in nodes.all():
            assert await bodies(node) == {1: message(1)}


async def test_check_reports_missing_attachments(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        node = nodes["dc2"]
        lose_content(node)
        for repair, unrepaired in ((False, 1), (True, 0)):
            job = CheckTask(CheckOptions(repair), node.store, Environment(), node.coordinator.bodies.heal, LogAlone())
            await job.run()
            assert (job.status.damage, job.status.unrepaired) == ({"content": 1}, unrepaired)
            assert affected(job.status) == [(USER, "INBOX", 1)]
        assert [file.read_bytes() for file in contents(node)] == [LOGO]


@pytest.mark.parametrize("harm", HARM)
async def test_scrub_repairs_attachments(tmp_path: Path, autojump_clock: MockClock, harm: object) -> None:
    assert callable(harm)
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in (1, 2):
            await save(nodes["dc1"], message(number))
        await nodes.converged()
        data, node = nodes["dc3"].config.node.data, nodes["dc3"]
        await nodes.stop("dc3")
        harm(node)
        assert data.exists()
        await nodes.start("dc3")
        await nodes.linked()
        status = await scrub(nodes["dc3"])
        assert status.damage["content"] >= 1
        assert status.unrepaired == 0
        again = await scrub(nodes["dc3"])
        assert again.damage == {}
        assert [file.read_bytes() for file in contents(nodes["dc3"])] == [LOGO]
        await check_holders(nodes["dc3"])


async def test_scrub_reports_bodies_that_no_node_has_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], message(1))
        await save(nodes["dc1"], message(2), "bob")
        await nodes.converged()
        for node in nodes.all():
            garble(node)
        with pytest.raises(ContentUnavailableError):
            await bodies(nodes["dc3"])
        status = await scrub(nodes["dc3"])
        assert (status.damage, status.unrepaired) == ({"content": 2}, 2)
        assert sorted(affected(status)) == [(USER, "INBOX", 1), ("bob", "INBOX", 1)]


async def test_scrub_reports_the_message_of_a_lost_holder(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await save(nodes["dc1"], message(1))
        (holder,) = attachment_files(nodes["dc1"], "holders/*")
        holder.unlink()
        status = await scrub(nodes["dc1"])
        assert (status.damage, affected(status)) == ({"attachment": 1}, [(USER, "INBOX", 1)])


async def test_partial_read_reads_at_most_two_chunks(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = random.Random(2).randbytes(2_000_000)
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await save(nodes["dc1"], message(1, large))
        attachments, reads = nodes["dc1"].store.attachments, list[int]()
        read = attachments.read

        def counting(what: bytes, start: int, length: int) -> bytes:
            reads.append(start)
            return read(what, start, length)

        monkeypatch.setattr(attachments, "read", counting)
        body = await nodes["dc1"].mail.read_body((await nodes["dc1"].messages())[0])
        octets = b"".join([chunk async for chunk in body.read(1_500_000, 1_500_100)])
        assert octets == message(1, large)[1_500_000:1_500_100]
        assert len(reads) <= 2


async def test_attachment_chunks_of_another_content_are_rejected(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        answer, lies = peer_fetch.answer_fetch, [b"x" * (1 << 17)] * 3

        async def lying(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
            if isinstance(command, FetchPart) and lies:
                return Content(lies.pop())
            return await answer(store, link, command, read_chunk)

        monkeypatch.setattr(peer_fetch, "answer_fetch", lying)
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        await trio.sleep(60)
        assert await bodies(nodes["dc2"]) == {1: message(1)}
        await check_holders(nodes["dc2"])
