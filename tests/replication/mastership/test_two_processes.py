"""Two processes that run as one node: one stays, one ends, and no node is kept out for longer than necessary."""

import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Hello, LinkAdvert, Links, RefusalCode, Refused
from protocol.stream_codec import Encoder, Response
from tests.effort import examples, first
from tests.master_election.adverts import adverts_of
from tests.replication.cluster import EPOCH_MS, TIMEOUT_S, Cluster, Node, cluster, copy_of, until
from tests.replication.stranger import HELLO, ORIGIN, Stranger, approach, visit

MINUTE_S = 60


def linked_origin(node: Node, sid: str) -> str | None:
    """Return the peer's origin on the node's link to it."""
    link = node.coordinator.connections.link(sid)
    return link.hello.origin if link is not None else None


def all_linked_to(nodes: Cluster, sid: str, origin: str) -> bool:
    """Return whether all other nodes are linked to this run of the node."""
    return all(linked_origin(node, sid) == origin for node in nodes.all() if node.sid != sid)


async def lose_power(nodes: Cluster, sid: str) -> None:
    """Stop the node as if its machine had lost power: its peers hear nothing of that."""
    nodes.network.end_connections(sid, silently=True)
    await nodes.stop(sid)


def set_frozen(nodes: Cluster, sid: str, *, frozen: bool) -> None:
    """Stop all traffic from and to the node, or let it go on."""
    for other in nodes.sids:
        for road in (nodes.network.road(sid, other), nodes.network.road(other, sid)):
            road.hold() if frozen else road.release()


async def end(nodes: Cluster, copy: Node) -> None:
    copy.scope.cancel()
    await copy.stopped.wait()
    nodes.network.end_connections(copy_of(copy.sid))


@asynccontextmanager
async def taken_over(nodes: Cluster, sid: str, *, within_s: float) -> AsyncIterator[Node]:
    """Freeze a node and start a copy of it. After the block all nodes know the copy; the node goes on, and ends."""
    old = nodes[sid]
    set_frozen(nodes, sid, frozen=True)
    copy = await nodes.start_copy(sid)
    yield copy
    await trio.sleep(MINUTE_S)
    assert all_linked_to(nodes, sid, copy.store.origin)
    set_frozen(nodes, sid, frozen=False)
    with trio.fail_after(within_s):
        await old.stopped.wait()
    assert f"{sid} already runs as {copy.store.origin}" in nodes.gave_way[sid]


@pytest.mark.parametrize("sid", ["dc1", "dc2", "dc3"])
async def test_copy_of_a_running_node_ends_and_the_node_keeps_its_links(
    tmp_path: Path, autojump_clock: MockClock, sid: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc2"].save("before")
        await nodes.converged()
        links = {node.sid: node.coordinator.connections.links for node in nodes.all()}
        term = nodes["dc1"].coordinator.mastership.masters.term
        copy = await nodes.start_copy(sid)
        with trio.fail_after(TIMEOUT_S + 1):
            await copy.stopped.wait()
        said, original = nodes.gave_way[copy_of(sid)], nodes[sid].store.origin
        assert f"{sid} already runs as {original}, which is linked to dc" in said
        assert f"the refused process is {copy.store.origin}; stop one of the two; another node needs" in said
        assert {node.sid: node.coordinator.connections.links for node in nodes.all()} == links
        assert nodes["dc1"].coordinator.mastership.masters.term == term
        assert not any(copy.store.origin in node.store.context for node in nodes.all())


@pytest.mark.parametrize("silently", [False, True])
async def test_copy_is_linked_after_the_node_has_ended(
    tmp_path: Path, autojump_clock: MockClock, *, silently: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        first = await nodes.start_copy("dc1")
        await first.stopped.wait()
        await (lose_power(nodes, "dc1") if silently else nodes.stop("dc1"))
        copy = await nodes.start_copy("dc1")
        with trio.fail_after(TIMEOUT_S + 0.5):
            await until(lambda: all_linked_to(nodes, "dc1", copy.store.origin))
        await until(lambda: copy.component == {"dc1", "dc2", "dc3"})
        await copy.save("after")
        await until(lambda: all(copy.store.origin in node.store.context for node in nodes.all()))
        await end(nodes, copy)
        await nodes.start("dc1")
        await nodes.linked()
        assert set((await nodes["dc3"].bodies()).values()) == {"before", "after"}


@pytest.mark.parametrize("sid", ["dc1", "dc3"])
async def test_node_is_back_within_the_timeout_after_a_power_loss(
    tmp_path: Path, autojump_clock: MockClock, sid: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await lose_power(nodes, sid)
        await nodes.start(sid)
        began = trio.current_time()
        await until(lambda: all_linked_to(nodes, sid, nodes[sid].store.origin))
        assert trio.current_time() - began <= TIMEOUT_S + 0.5
        await nodes.linked()
        assert not nodes.gave_way


async def test_restarted_node_is_linked_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes.stop("dc1")
        await nodes.start("dc1")
        with trio.fail_after(1):
            await nodes.linked()


async def test_isolated_node_rejoins_with_its_origin(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        origin = nodes["dc1"].store.origin
        for seconds in (0.1, MINUTE_S):
            nodes.isolate("dc1")
            await trio.sleep(seconds)
            nodes.rejoin("dc1")
            await nodes.linked()
            assert all_linked_to(nodes, "dc1", origin)


async def test_stalled_node_ends_after_a_copy_has_taken_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        async with taken_over(nodes, "dc1", within_s=2 * TIMEOUT_S) as copy:
            pass
        assert all_linked_to(nodes, "dc1", copy.store.origin)
        await end(nodes, copy)


async def test_dialled_node_ends_after_a_copy_has_taken_its_address(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        async with taken_over(nodes, "dc3", within_s=3 * TIMEOUT_S) as copy:
            nodes.network.accepting[copy_of("dc3")] = copy.coordinator.connections.accept
            for sid in ("dc1", "dc2"):
                nodes.renamed[sid, "dc3"] = copy_of("dc3")
        await end(nodes, copy)


async def test_copy_linked_only_to_nodes_without_the_original_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.network.cut(("dc1", "dc3"))
        await nodes.linked()
        copy = await nodes.start_copy("dc1", cut_from=["dc2"])
        with trio.fail_after(4 * TIMEOUT_S):
            while not copy.stopped.is_set():
                assert linked_origin(nodes["dc3"], "dc1") is None
                await trio.sleep(0.1)
        original = nodes["dc1"].store.origin
        assert f"dc1 already runs as {original}, which can be reached from dc3" in nodes.gave_way[copy_of("dc1")]
        assert linked_origin(nodes["dc2"], "dc1") == original


@pytest.mark.parametrize("only_neighbours_rejoin", [False, True])
async def test_older_run_stays_when_partitions_rejoin(
    tmp_path: Path, autojump_clock: MockClock, *, only_neighbours_rejoin: bool
) -> None:
    """Mail that the newer run has numbered is kept."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        original = nodes["dc1"].store.origin
        await nodes["dc1"].save("before")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        copy = await nodes.start_copy("dc1", cut_from=["dc2"])
        await until(lambda: copy.component == {"dc1", "dc3"})
        await copy.save("at the copy")
        await nodes["dc1"].save("at the original")
        await until(lambda: copy.store.origin in nodes["dc3"].store.context)
        if only_neighbours_rejoin:
            nodes.network.mend(("dc2", "dc3"))
        else:
            nodes.rejoin("dc3")
        with trio.fail_after(4 * TIMEOUT_S):
            await copy.stopped.wait()
        assert original in nodes.gave_way[copy_of("dc1")]
        nodes.rejoin("dc3")
        await nodes.linked()
        assert nodes["dc1"].store.origin == original
        await nodes.converged()
        assert set((await nodes["dc2"].bodies()).values()) == {"before", "at the copy", "at the original"}


async def test_copy_started_during_an_outage_gives_way_to_the_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        original = nodes["dc1"].store.origin
        nodes.isolate("dc1")
        copy = await nodes.start_copy("dc1")
        await until(lambda: all_linked_to(nodes, "dc1", copy.store.origin))
        nodes.rejoin("dc1")
        with trio.fail_after(2 * TIMEOUT_S):
            await copy.stopped.wait()
        await nodes.linked()
        assert all_linked_to(nodes, "dc1", original)
        assert original in nodes.gave_way[copy_of("dc1")]


# ---- strangers, and changed bytes --------------------------------------------------------------------------------


@asynccontextmanager
async def answering(stranger: Stranger) -> AsyncIterator[None]:
    """Let the stranger answer requests during the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stranger.ended)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("origin", "code"), [("dc1.stranger2", RefusalCode.RUNS_TWICE), ("dc1.older", RefusalCode.REPLACED)]
)
async def test_run_that_answers_stays_and_the_other_is_refused(
    tmp_path: Path, autojump_clock: MockClock, origin: str, code: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as first, answering(first):
            await until(lambda: linked_origin(nodes["dc2"], "dc1") == ORIGIN)
            second = await approach(nodes)
            answer = await second.greet(origin=origin)
            assert isinstance(answer, Response)
            assert isinstance(answer.reply, Refused)
            assert answer.reply.code == code
            assert f"dc1 already runs as {ORIGIN}, which is linked to dc2" in answer.reply.text
            assert await second.ended()
            assert linked_origin(nodes["dc2"], "dc1") == ORIGIN
        await until(lambda: linked_origin(nodes["dc2"], "dc1") is None)
        answer = await (await approach(nodes)).greet(origin=origin)
        assert isinstance(answer, Response)
        assert isinstance(answer.reply, Hello)


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("stays", [False, True])
async def test_hello_with_a_false_origin_does_not_keep_the_node_out(
    tmp_path: Path, autojump_clock: MockClock, *, is_linked: bool, stays: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(5):
            if not is_linked:
                nodes.network.cut(("dc1", "dc2"))
                await until(lambda: linked_origin(nodes["dc2"], "dc1") is None)
                nodes.network.mend(("dc1", "dc2"))
            stranger = Stranger(await nodes.network.connect("stranger", "dc2"))
            await stranger.greet(origin=f"dc1.false{number}", clock_ms=EPOCH_MS + int(trio.current_time() * 1000))
            if not stays:
                await trio.aclose_forcefully(stranger.stream)
            elif not is_linked:
                await stranger.send(Links(()))
            await until(lambda: all_linked_to(nodes, "dc1", nodes["dc1"].store.origin))
            began = trio.current_time()
            await nodes.linked()
            assert trio.current_time() - began <= 2 * TIMEOUT_S
        assert not nodes.gave_way


async def test_links_advert_of_another_origin_than_hello_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.send(Links((LinkAdvert("dc1.other", 100, EPOCH_MS, ()),)))
        assert await stranger.ended()
        said, state = f"its LINKS name another origin than its HELLO, {ORIGIN}", nodes["dc2"].coordinator
        await until(lambda: state.connections.peers["dc1"].error == said)


async def forge_advert(nodes: Cluster, *neighbours: str) -> None:
    """Let dc2 send dc1 an advert of an older run of dc1, with a number above that of dc1's last advert."""
    link = nodes["dc2"].coordinator.connections.link("dc1")
    (last,) = [advert for advert in adverts_at(nodes["dc1"]) if advert.sid == "dc1"]
    named = tuple((sid, 100) for sid in neighbours)
    assert link is not None
    link.post(Links((LinkAdvert("dc1.0", 100, last.sequence + 1, named),)))
    await trio.sleep(0.1)


def adverts_at(node: Node) -> list[LinkAdvert]:
    return list(adverts_of(node.coordinator.mastership.table).values())


@pytest.mark.parametrize("neighbours", first(1, [("dc2",), (), ("dc2", "dc3", "dc7")]))
async def test_adverts_of_an_impossible_run_do_not_end_the_node(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, neighbours: tuple[str, ...]
) -> None:
    """The neighbours that the adverts name are linked to the real dc1, and a node has one link to each SID."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        caplog.set_level(logging.WARNING)
        origin, began = nodes["dc1"].store.origin, trio.current_time()
        while trio.current_time() < began + MINUTE_S:
            await forge_advert(nodes, *neighbours)
        assert not nodes.gave_way
        told = [record.getMessage() for record in caplog.records if "keep reporting" in record.getMessage()]
        assert len(told) == 1
        assert f"that dc1 also runs as dc1.0, and this process, {origin}, stays" in told[0]
        assert all_linked_to(nodes, "dc1", origin)
        await nodes.linked()
        await nodes["dc1"].save("after")
        await nodes.converged()


async def test_stale_adverts_of_a_past_run_do_not_end_the_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Such adverts, with ever higher numbers, come when parts of a cluster rejoin."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.network.cut(("dc1", "dc3"))
        await nodes.linked()
        for _ in range(20):
            for _ in range(3):
                await forge_advert(nodes, "dc3")
            await trio.sleep(TIMEOUT_S + 1)
        assert not nodes.gave_way
        await nodes.linked()


@dataclass
class Flipping(trio.abc.Stream):
    """Change one byte of a connection's first piece in one direction."""

    stream: trio.abc.Stream
    change: Callable[[bytes], bytes]
    sent: bool  # or received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(self._changed(bytes(data), now=self.sent))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return self._changed(bytes(await self.stream.receive_some(max_bytes)), now=not self.sent)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()

    def _changed(self, data: bytes, *, now: bool) -> bytes:
        if not now or not data:
            return data
        change, self.change = self.change, lambda data: data
        return change(data)


def flip(dice: random.Random, data: bytes) -> bytes:
    """Change one byte of the first line, but not of its end."""
    at = dice.randrange(data.index(b"\r\n"))
    return (
        data[:at]
        + bytes([dice.choice(b'0123456789abcdefxyz-_. "(){}') if dice.random() < 0.7 else dice.randrange(256)])
        + data[at + 1 :]
    )


@pytest.mark.parametrize("seed", range(examples(1, 8)))
async def test_changed_byte_of_a_hello_does_not_keep_a_node_out(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    dice = random.Random(seed)
    async with cluster(tmp_path, autojump_clock) as nodes:
        whole = nodes.line

        def bad(stream: trio.abc.Stream) -> trio.abc.Stream:
            if dice.random() < 0.5:
                return Flipping(stream, partial(flip, dice), dice.random() < 0.5)
            return stream

        origins = {node.sid: node.store.origin for node in nodes.all()}
        for _ in range(25):
            nodes.line = bad
            one, other = dice.sample(nodes.sids, 2)
            nodes.network.cut((one, other))
            if dice.random() < 0.5:
                await trio.sleep(dice.uniform(0, 2 * TIMEOUT_S))
            nodes.network.mend((one, other))
            await trio.sleep(dice.uniform(0, 1))
            nodes.line = whole
            with trio.fail_after(2 * TIMEOUT_S):
                await until(lambda: all(all_linked_to(nodes, sid, origin) for sid, origin in origins.items()))
        assert not nodes.gave_way
        await nodes.linked()
        await nodes["dc1"].save("text")
        await nodes.converged()


def test_changed_bytes_reach_every_field() -> None:
    dice = random.Random(0)
    line = Encoder().request("hello", replace(HELLO, capabilities=("SCOPE=mailbox",)))
    changed = {
        at for _ in range(2000) for at, (old, new) in enumerate(zip(line, flip(dice, line), strict=True)) if old != new
    }
    assert changed == set(range(len(line) - 2))
