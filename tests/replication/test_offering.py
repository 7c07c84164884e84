"""Large messages travel before they are numbered: no entry waits for its parts, and nothing waits for the entry."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Reply
from replicator.config import WhenShort
from replicator.errors import DurabilityError
from replicator.replication import offering
from replicator.replication.changes import REQUEST_TIMEOUT_S
from replicator.replication.intake import Received
from replicator.replication.offering import HELD_S
from replicator.replication.operations import Operation
from tests.replication.cluster import Node, cluster
from tests.replication.test_held_parts import answering
from tests.replication.test_parts import contents, found, held, message, save, texts

LARGE = message(1, random.Random(5).randbytes(3 << 20))
SLOW_S = 5.0  # for each chunk, of which 8 are asked for at once: 15 s for all


def is_held(node: Node) -> bool:
    return bool(found(node, "holders/*"))


async def test_small_changes_do_not_wait_for_a_large_message(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, lambda _: None, delay_s=SLOW_S)
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(save, nodes["dc1"], LARGE)
            await trio.sleep(SLOW_S)
            with trio.fail_after(1):
                await nodes["dc1"].save("small")
                await nodes["dc2"].flag(1)
            assert await nodes["dc2"].texts() == {1: "first", 2: "small"}
        await nodes.converged()
        assert (await texts(nodes["dc2"]))[3] == LARGE


@pytest.mark.parametrize("at", ["dc1", "dc2"])
async def test_the_entry_finds_its_parts_at_every_neighbour(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    asked = list[int]()
    answering(monkeypatch, lambda command: asked.append(command.start))
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        master = nodes["dc1"]
        number, counts = master.coordinator.changes._run, list[int]()

        async def numbering(operation: Operation) -> Reply:
            counts.extend(len(contents(node)) for node in nodes.all())
            return await number(operation)

        monkeypatch.setattr(master.coordinator.changes, "_run", numbering)
        await save(nodes[at], LARGE)
        assert counts == [1, 1, 1]
        await nodes.converged()
        assert len(asked) == 2 * len(set(asked)), "each chunk went to two nodes"
        for node in nodes.all():
            await trio.sleep(HELD_S + 1)
            assert (await texts(node))[2] == LARGE
            await held(node)


async def test_what_is_not_numbered_in_the_end_is_let_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2, when_short=WhenShort.REFUSE) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        link = nodes["dc1"].coordinator.connections.link("dc2")
        assert link is not None
        async with nodes["dc1"].mail.receive() as sink:
            await sink.write(LARGE)
            received = await sink.finish()
            assert isinstance(received, Received)
            await nodes["dc1"].coordinator.offering.offer(received.stored.message)
            assert len(contents(nodes["dc2"])) == 1
        await trio.sleep(HELD_S - 1)
        assert is_held(nodes["dc2"])
        await trio.sleep(2)
        assert not contents(nodes["dc2"])
        assert not nodes["dc2"].store.attachments.in_flight()


async def test_what_is_held_is_let_go_when_the_node_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await save(nodes["dc1"], LARGE)
        node = nodes["dc2"]
        assert len(found(node, "holders/*")) == 2
        await nodes.stop("dc2")
        assert len(found(node, "holders/*")) == 1


async def test_who_does_not_take_it_gets_it_with_the_entry(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "HELD_MAX", 1)
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        asked = list[int]()
        for number in range(3):
            asked.append(await save(nodes["dc1"], message(number, random.Random(number).randbytes(2 << 20))))
        await nodes.converged()
        assert list(await texts(nodes["dc2"])) == [1, *asked]
        await trio.sleep(2 * HELD_S)
        await held(nodes["dc2"])


async def test_a_neighbour_without_room_holds_up_an_offer_no_longer_than_it_takes_to_say_so(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()

        def full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(nodes["dc2"].store.attachments, "build", full)
        with trio.fail_after(1):
            await save(nodes["dc1"], LARGE)
        link = nodes["dc1"].coordinator.connections.link("dc2")
        assert link is not None
        assert not link.closed


async def test_an_offer_that_takes_too_long_leaves_time_for_the_change(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The slowest neighbour of three gets the parts with the entry; the client hears OK in time."""
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc1", "dc3").bytes_per_s = 50_000
        with trio.fail_after(REQUEST_TIMEOUT_S / 2):
            assert await save(nodes["dc1"], LARGE) == 2
        assert len(await nodes["dc2"].messages()) == 2
        nodes.network.road("dc1", "dc3").bytes_per_s = None
        await nodes.converged()
        assert (await texts(nodes["dc3"]))[2] == LARGE


async def test_what_cannot_be_durable_any_more_is_not_numbered(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client would hear that nobody knows whether it was made, and deliver it again."""
    answering(monkeypatch, lambda _: None, delay_s=SLOW_S)
    async with cluster(tmp_path, autojump_clock, 3, copies=3, when_short=WhenShort.REFUSE) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()

        async def stop() -> None:
            await trio.sleep(SLOW_S)
            await nodes.stop("dc3")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            with pytest.raises(DurabilityError):
                await save(nodes["dc1"], LARGE)
        assert len(await nodes["dc1"].messages()) == 1
        await nodes.start("dc3")
        await nodes.converged()
