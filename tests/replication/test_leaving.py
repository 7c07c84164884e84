"""A node that is about to stop: what it waits for before it ends."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.replication import timing
from tests.replication.cluster import Cluster, cluster, until

FLAGGED = frozenset({"\\Flagged"})


async def test_node_answers_for_changes_that_wait_for_distant_disks(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A STORE under UNCHANGEDSINCE cannot be asked for again, so its client needs the reply."""
    async with cluster(tmp_path, autojump_clock, copies=3) as nodes:
        await nodes.make_line()
        await nodes["dc1"].save("mail")
        await nodes.converged()
        view, master = await nodes["dc2"].view(), nodes["dc1"]
        store = nodes["dc2"].mail.store_flags
        back, before = nodes.network.road("dc3", "dc2"), dict(master.store.context)
        async with trio.open_nursery() as nursery:
            back.hold()
            nursery.start_soon(partial(store, view, UidSet.of([1]), added=FLAGGED, unchanged_since=view.highestmodseq))
            await until(lambda: master.store.context != before)
            async with trio.open_nursery() as leaving:
                leaving.start_soon(master.coordinator.leave)
                await trio.sleep(timing.LEAVE_S / 2)
                back.release()
            await nodes.stop("dc1")
        assert view.messages[1].flags >= FLAGGED


async def peer_ends(nodes: Cluster) -> None:
    await nodes.stop("dc1")


async def node_drops_links(nodes: Cluster) -> None:
    nodes["dc2"].coordinator.connections.drop_links()


@pytest.mark.parametrize("end_link", [peer_ends, node_drops_links])
async def test_node_does_not_wait_for_a_peer_whose_link_ends(
    tmp_path: Path, autojump_clock: MockClock, end_link: Callable[[Cluster], Awaitable[None]]
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc2"].save("first mail")
        road = nodes.network.road("dc1", "dc2")
        async with trio.open_nursery() as nursery:
            road.hold()
            before = dict(nodes["dc2"].store.context)
            nursery.start_soon(nodes["dc2"].save, "next mail")
            await until(lambda: nodes["dc2"].store.context != before)
            began = trio.current_time()
            async with trio.open_nursery() as leaving:
                leaving.start_soon(nodes["dc2"].coordinator.leave)
                await trio.sleep(timing.LEAVE_S / 4)
                await end_link(nodes)
            assert trio.current_time() < began + timing.LEAVE_S / 2
            nursery.cancel_scope.cancel()
