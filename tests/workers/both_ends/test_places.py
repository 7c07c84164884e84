"""Places of a door whose connections are in several processes."""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio
import trio.lowlevel
import trio.testing

from replicator.config import LimitsConfig
from replicator.lmtp import places_of
from replicator.runtime.metrics import RefusalMetrics
from replicator.runtime.places import Places
from tests.one_door import remote_places


def two_places() -> Places:
    return places_of(LimitsConfig(lmtp_connections=2), RefusalMetrics())


async def test_limits_hold_for_all_doors_together_and_the_oldest_stranger_is_dropped() -> None:
    places = two_places()
    async with remote_places(places) as one, remote_places(places) as other, AsyncExitStack() as stack:
        first = await stack.enter_async_context(one.admit("192.0.2.1"))
        second = await stack.enter_async_context(other.admit("192.0.2.2"))
        assert first is not None
        assert second is not None
        third = await stack.enter_async_context(other.admit("192.0.2.3"))
        await trio.testing.wait_all_tasks_blocked()
        assert third is not None
        assert (first.dropped, second.dropped, third.dropped) == (True, False, False)
        assert places.counts == (2, 2, 0)
    assert places.counts == (0, 0, 0)


async def test_nobody_is_dropped_while_busy_and_newcomers_are_refused_at_every_door() -> None:
    places = two_places()
    async with remote_places(places) as one, remote_places(places) as other, AsyncExitStack() as stack:
        for door in (one, other):
            place = await stack.enter_async_context(door.admit("192.0.2.1"))
            assert place is not None
            stack.enter_context(place.busy())
        await trio.testing.wait_all_tasks_blocked()
        for door in (one, other):
            async with door.admit("192.0.2.2") as refused:
                assert refused is None
        assert places.counts == (2, 0, 0)


async def test_a_door_that_ends_frees_its_places() -> None:
    places = two_places()
    entered = trio.Event()
    async with trio.open_nursery() as in_door:
        async with remote_places(places) as one:

            async def hold() -> None:
                async with one.admit("192.0.2.1"):
                    entered.set()
                    await trio.sleep_forever()

            in_door.start_soon(hold)
            await entered.wait()
            assert places.counts == (1, 1, 0)
        assert places.counts == (0, 0, 0)
        in_door.cancel_scope.cancel()


async def test_who_becomes_busy_while_the_core_drops_the_place_finishes_first() -> None:
    places = two_places()
    async with remote_places(places) as one:
        async with one.admit("192.0.2.1") as place:
            assert place is not None
            finished = False
            async with places.admit("192.0.2.2"), places.admit("192.0.2.3"):
                with place.busy():  # the core has dropped it already, and the door is about to hear that
                    await trio.lowlevel.checkpoint()
                    await trio.testing.wait_all_tasks_blocked()
                    assert not place.dropped
                    finished = True
                await trio.sleep_forever()  # cancelled at once
        assert finished
        assert place.dropped
