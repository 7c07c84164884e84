"""A peer that invents numbers of adverts, SETTLED and terms does not part nodes for long."""

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from master_election.number_bounds import AHEAD_MAX, LEAP, MAX_CLOCK_DIFFERENCE_MS
from protocol.commands import Command, Dropped, LinkAdvert, Links, Root, Settled
from protocol.values import Dot
from replicator.replication import timing
from tests.master_election.adverts import adverts_of
from tests.replication.cluster import EPOCH_MS, cluster, until
from tests.replication.stranger import ORIGIN, visit

FAR = EPOCH_MS + AHEAD_MAX + (1 << 32)


@pytest.mark.parametrize(
    "command",
    [
        Links((LinkAdvert("dc2.x", 1, FAR, ()),)),
        Links((LinkAdvert("dc3.x", 1, FAR, (("dc2", 1),)),)),
        Links((LinkAdvert(ORIGIN, 1, FAR, (("dc2", 1),)),)),
        Root(FAR, "dc1"),
        Dropped(FAR, "dc1", ()),
        Settled("dc3", FAR, (Dot("dc9.x", 1),)),
        Settled("dc1", FAR, (Dot("dc9.x", 1),)),
    ],
)
async def test_number_above_the_bound_is_ignored(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, command: Command
) -> None:
    """The link stays, because the peer may have passed on the number of another node."""
    caplog.set_level(logging.INFO)
    async with cluster(tmp_path, autojump_clock, start=["dc2", "dc3"]) as nodes:
        await nodes.linked(["dc2", "dc3"])
        async with visit(nodes) as stranger:
            for _ in range(3):
                await stranger.send(command)
            assert not await stranger.ended()
        told = [record for record in caplog.records if FAR in (record.args or ())]
        if isinstance(command, Settled):
            assert {record.levelno for record in told} == {logging.INFO}
        else:
            assert [record.levelno for record in told] == [logging.WARNING]
        assert nodes["dc2"].component == nodes["dc3"].component == {"dc2", "dc3"}
        assert all(node.coordinator.elections.machine.term < FAR for node in nodes.all())
        assert all("dc9.x" not in settled for settled in nodes["dc2"].coordinator.settled_logs.known().values())
        assert await nodes["dc3"].save("x") == 1


async def test_highest_believed_number_parts_no_node_for_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A stranger forges the numbers of linked nodes. They send a higher number once all nodes believe it."""
    async with cluster(tmp_path, autojump_clock, start=["dc2", "dc3"]) as nodes:
        await nodes.linked(["dc2", "dc3"])
        async with visit(nodes) as stranger:
            highest = EPOCH_MS + int(trio.current_time() * 1000) + AHEAD_MAX
            await stranger.send(Links((LinkAdvert(nodes["dc3"].store.origin, 1, highest, ()),)))
            await stranger.send(Links((LinkAdvert(nodes["dc2"].store.origin, 1, highest, ()),)))
            await stranger.send(Settled("dc3", highest, (Dot("dc9.x", 1),)))
            await until(lambda: nodes["dc2"].component == {"dc2"})
        await trio.sleep((MAX_CLOCK_DIFFERENCE_MS + LEAP) / 1000 + 2 * timing.ELECTIONS_REFRESH_S)
        assert nodes["dc2"].component == nodes["dc3"].component == {"dc2", "dc3"}
        assert await nodes["dc3"].save("x") == 1
        await nodes.converged()
        known = nodes["dc2"].coordinator.settled_logs.known
        await until(lambda: known()["dc3"] == nodes["dc3"].store.settled())


@pytest.mark.parametrize("ahead_s", [-290, 290])
async def test_node_overrides_a_forged_number_of_its_own(
    tmp_path: Path, autojump_clock: MockClock, ahead_s: float
) -> None:
    """The number is the highest that the node heeds. The other node believes the answer, whatever their clocks say."""
    async with cluster(tmp_path, autojump_clock, start=["dc3"]) as nodes:
        nodes.clock_ahead_s["dc2"] = ahead_s
        await nodes.start("dc2")
        await nodes.linked(["dc2", "dc3"])
        async with visit(nodes) as stranger:
            clock_ms = EPOCH_MS + int((trio.current_time() + ahead_s) * 1000)
            highest = clock_ms + AHEAD_MAX - MAX_CLOCK_DIFFERENCE_MS - LEAP - 1
            await stranger.send(Links((LinkAdvert("dc2.x", 1, highest, ()),)))
            table = nodes["dc3"].coordinator.mastership.table
            await until(lambda: adverts_of(table)["dc2"].sequence == highest + LEAP + 1)
        assert nodes["dc3"].component == {"dc2", "dc3"}
