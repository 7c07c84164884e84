"""Entries whose messages come in parts: what waits for these, for how long, and what does not."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import RefusalCode, Refused
from replicator.config import ContentConfig
from replicator.replication import completing, receiving
from replicator.replication.completing import RETRY_MOST_S, UNAVAILABLE_S
from tests.replication.cluster import Cluster, Node, cluster, until
from tests.replication.test_held_parts import answering, full
from tests.replication.test_parts import contents, message, save, texts

T = TypeVar("T")


def parted(number: int) -> bytes:
    return message(number, random.Random(number).randbytes(200_000))


async def test_a_link_is_read_on_when_parts_are_asked_for_behind_what_was_too_much(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts come on the link itself: it would fall silent, and be dropped, again and again."""
    monkeypatch.setattr(receiving, "WAITING_BYTES", 50_000)
    monkeypatch.setattr(completing, "PARTED_BYTES", 100_000)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        for number in range(30):
            await save(nodes["dc1"], random.Random(number).randbytes(10_000))
            if number % 12 == 11:
                await save(nodes["dc1"], parted(number))
        slow_down(nodes["dc2"])
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        link = nodes["dc2"].coordinator.connections.link("dc1")
        assert link is not None
        await nodes.converged()
        assert not link.closed


def slow_down(node: Node) -> None:
    writer = node.store._writer
    run = writer._run_in_thread

    async def slow(work: Callable[[], T]) -> T:
        await trio.sleep(0.5)
        return await run(work)

    writer._run_in_thread = slow


async def caught_up(nodes: Cluster) -> float:
    """When dc2 has the log; how long that took."""
    began = trio.current_time()
    one, two = nodes["dc1"].store, nodes["dc2"].store
    await until(lambda: two.context == one.context)
    return trio.current_time() - began


async def test_parts_of_old_messages_that_nobody_has_hold_up_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an OK of long ago: else a lost directory of a peer would hold up its log for days."""
    monkeypatch.setattr(completing, "PARTED_BYTES", 100_000)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes.stop("dc2")
        for number in range(3):
            await save(nodes["dc1"], parted(number))
        await trio.sleep(600)
        shutil.rmtree(nodes["dc1"].config.node.data / "attachments")
        await nodes.start("dc2")
        assert await caught_up(nodes) < 10


async def test_messages_that_were_forgotten_are_not_looked_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's tail in memory still has their recipes."""
    monkeypatch.setattr(completing, "PARTED_BYTES", 100_000)
    content = ContentConfig(keep_expunged_s=100.0)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, content=content) as nodes:
        await nodes.stop("dc2")
        for number in range(3):
            await save(nodes["dc1"], parted(number))
        await nodes["dc1"].expunge(1, 2, 3)
        await trio.sleep(200)
        assert contents(nodes["dc1"]) == []
        await nodes.start("dc2")
        assert await caught_up(nodes) < 10


async def test_what_comes_to_a_full_disk_in_vain_does_not_come_all_the_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    answering(monkeypatch, lambda command: asked.append(command.start))
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await save(nodes["dc1"], b"first")
        await nodes.converged()
        attachments = nodes["dc2"].store.attachments

        def no_room() -> None:
            asked.append(-1)
            full()

        with monkeypatch.context() as patch:
            patch.setattr(attachments, "build", no_room)
            await save(nodes["dc1"], parted(1))
            await trio.sleep(600)
            assert 5 < len(asked) < 20
        await trio.sleep(RETRY_MOST_S)
        assert (await texts(nodes["dc2"]))[2] == parted(1)


async def test_an_ill_disk_elsewhere_does_not_hold_up_the_log_for_ever(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot say whether it has a part may be that way for good."""
    with monkeypatch.context() as patch:
        answering(patch, lambda _: Refused(RefusalCode.UNAVAILABLE, "the disk is ill"))
        async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
            await save(nodes["dc1"], b"first")
            await nodes.converged()
            await save(nodes["dc1"], parted(1))
            await trio.sleep(UNAVAILABLE_S - 60)
            assert len(await nodes["dc2"].messages()) == 1
            await trio.sleep(60 + 2 * RETRY_MOST_S)
            assert len(await nodes["dc2"].messages()) == 2
            patch.undo()
            assert (await texts(nodes["dc2"]))[2] == parted(1)
