"""Events that operators fear, one at a time. Each scenario ends with all checks of a swarm: see `scenario.running`."""

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet, sid_of
from replicator.config import DurabilityConfig, WhenShort
from replicator.errors import DiskFullError, DurabilityError, NotReadyError, UnavailableError
from replicator.replication import timing
from replicator.replication.links.link import PeerLink
from tests.replication.cluster import HEARTBEAT_S, TIMEOUT_S, USER
from tests.simulation.cache import Cache
from tests.simulation.disk import DiskFault
from tests.simulation.machine import Machine, NodeGoneError
from tests.simulation.plan import Plan
from tests.simulation.readers import Reader
from tests.simulation.scenario import bodies, have, reach, running, save
from tests.simulation.world import World

THREE = ("dc1", "dc2", "dc3")
REFUSING = DurabilityConfig(2, WhenShort.REFUSE)


# ---- disks


async def test_yesterdays_copy_of_a_disk_loses_nothing_and_names_nothing_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "before the copy")
        copy = world["dc1"].disk.copy()
        assert await save(world["dc1"], "after the copy", "and another") == [2, 3]
        await have(world, 3, THREE)
        world["dc1"].crash()
        world["dc1"].restore(copy)
        await world["dc1"].start()
        await save(world["dc1"], "on the restored disk")
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == [
                "after the copy",
                "and another",
                "before the copy",
                "on the restored disk",
            ]
        origins = {dot.origin for dot in world.history.entries if sid_of(dot.origin) == "dc1"}
        assert len(origins) == 2


async def test_a_copy_of_a_disk_that_was_taken_as_it_was_written_to_is_as_good(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, Plan(delay_s=(0.01, 0.05))) as world, trio.open_nursery() as nursery:
        for sid in THREE:
            nursery.start_soon(save, world[sid], *(f"{sid} {number}" for number in range(20)))
        await trio.sleep(0.5)
        copy = world["dc2"].disk.copy()
        await trio.sleep(1)
        world["dc2"].crash()
        world["dc2"].restore(copy)
        nursery.cancel_scope.cancel()


async def test_a_reported_mail_survives_the_loss_of_all_disks_but_one_of_its_copies(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plan = Plan(size=5, durability=DurabilityConfig(3, WhenShort.REFUSE), delay_s=(0.02, 0.1))
    async with running(tmp_path, autojump_clock, plan) as world:
        await save(world["dc5"], "reported")
        for sid in ("dc5", "dc4"):
            world[sid].crash(silently=True)
            world[sid].restore(None)
        await world.heal()
        for sid in world.sids:
            assert await bodies(world[sid]) == ["reported"]


async def test_a_lost_disk_serves_nobody_before_its_node_has_met_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "before")
        await have(world, 1, THREE)
        before = await world["dc1"].call(lambda node: node.inbox())
        world["dc3"].crash()
        world["dc3"].restore(None)
        world.cut(world.between(["dc3"]))
        await world["dc3"].start()
        await trio.sleep(30)
        is_refused = True
        with suppress(NotReadyError):
            await world["dc3"].call(lambda node: node.inbox())
            await save(world["dc3"], "too early")
            is_refused = False
        assert is_refused, "dc3 serves before it has met the others"
        await world.heal()
        assert await world["dc3"].call(lambda node: node.inbox()) == before


async def test_a_lost_disk_comes_back_slowly_and_shows_no_mailbox_in_part(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        large = [f"{number:03} {'x' * 20_000}" for number in range(100)]
        for text in large:
            await world["dc1"].call(lambda node, text=text: node.save(text, user="somebody"))  # type: ignore[misc]
        await save(world["dc1"], "one", "two", "three")
        await world.settle()
        world["dc3"].crash()
        world["dc3"].restore(None)
        for other in ("dc1", "dc2"):
            world.network.road(other, "dc3").bytes_per_s = 20_000
        await world["dc3"].start()
        shown: list[str] = []
        while not shown:
            with suppress(NotReadyError):
                shown = sorted(str(message.uid) for message in await world["dc3"].call(lambda node: node.messages()))
        assert shown == ["1", "2", "3"]
        assert world.coming_back.checked
        assert sum(world["dc3"].node.store.context.values()) < len(large), "it was not waited for until all was here"


async def test_a_full_disk_refuses_and_goes_on_reading_and_is_well_again_when_there_is_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        world["dc1"].disk.fault = DiskFault.FULL
        refused = 0
        for number in range(10):
            try:
                await save(world["dc1"], f"mail {number}")
            except DiskFullError:
                refused += 1
        assert refused >= 5
        assert "first" in await bodies(world["dc1"])
        world["dc1"].disk.fault = None
        await save(world["dc1"], "there is room")


@pytest.mark.parametrize("fault", DiskFault)
async def test_a_disk_that_takes_nothing_does_not_end_its_node_as_a_term_ends(
    tmp_path: Path, autojump_clock: MockClock, fault: DiskFault
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        world["dc1"].disk.fault = fault
        await world["dc3"].stop()
        await reach(world, "dc1", "dc2")
        assert world["dc1"].is_up
        assert await bodies(world["dc1"]) == ["first"]


async def test_when_all_lose_their_power_at_once_what_was_reported_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    reported: list[str] = []
    async with running(tmp_path, autojump_clock, Plan(sync_s=0.01)) as world:

        async def client(sid: str) -> None:
            with suppress(NodeGoneError):
                for number in range(1000):
                    await save(world[sid], f"{sid} {number}")
                    reported.append(f"{sid} {number}")

        async with trio.open_nursery() as nursery:
            for sid in THREE:
                nursery.start_soon(client, sid)
            await trio.sleep(2)
            for sid in THREE:
                world[sid].crash(silently=True)
        await world.heal()
        assert len(reported) > 20
        for sid in THREE:
            assert set(reported) <= set(await bodies(world[sid]))


async def test_an_older_copy_of_a_disk_shows_a_mailbox_only_as_its_clients_know_it_from_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, Plan(users=(USER,))) as world, trio.open_nursery() as nursery:
        dc1 = world["dc1"]
        await save(dc1, "expunged", "one")
        old = dc1.disk.copy()
        large = [f"{number:03} {'x' * 20_000}" for number in range(100)]
        for text in large:
            await dc1.call(lambda node, text=text: node.save(text, user="somebody"))  # type: ignore[misc]
        await save(dc1, "two", "three")
        await dc1.call(lambda node: node.expunge(1))
        await dc1.call(lambda node: node.flag(2))
        await world.settle()
        cache = await remember(dc1)
        dc1.crash()
        dc1.restore(old)
        world.coming_back.begins("dc1")
        for other in ("dc2", "dc3"):
            world.network.road(other, "dc1").bytes_per_s = 20_000
        nursery.start_soon(Reader(world, 1).run)
        await dc1.start()
        cache = await remember(dc1, cache)
        assert sorted(cache.messages) == [2, 3, 4]
        assert world.coming_back.checked
        assert len(large) > sum(dc1.node.store.context.values()), "it was not waited for until all was here"
        await world.heal()
        await Reader(world, 2).insist(dc1)
        nursery.cancel_scope.cancel()


async def remember(machine: Machine, cache: Cache | None = None) -> Cache:
    """A client's memory of INBOX, brought up to date as soon as the node shows the mailbox."""
    while True:
        with suppress(NotReadyError):
            view = await machine.call(lambda node: node.view())
            context = dict(machine.node.store.context)
            return cache.resync(view, context) if cache else Cache.fetch("INBOX", view, context)


# ---- one node, two processes


def links_of(world: World, *sids: str) -> list[PeerLink]:
    """Return all links of these nodes."""
    return [link for sid in sids for link in world[sid].node.coordinator.connections.links]


async def end(copy: Machine, original: str) -> None:
    """Wait until the copy has found out that another run is the node."""
    with trio.move_on_after(4 * TIMEOUT_S):
        await copy.ended.wait()
    assert copy.gave_way is not None, f"{copy.name} goes on beside the node"
    assert f"{copy.sid} already runs as {original}" in copy.gave_way


async def take_place(world: World, copy: Machine) -> None:
    """End the node, and let the copy take its place."""
    await world[copy.sid].stop()
    world.take_place(copy)
    await copy.start()
    await reach(world, *THREE)


@pytest.mark.parametrize("sid", ["dc1", "dc3"])
async def test_a_copy_of_a_node_that_runs_ends_and_may_take_its_place_when_that_has_ended(
    tmp_path: Path, autojump_clock: MockClock, sid: str
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        original = world[sid].node.store.origin
        await save(world[sid], "before")
        copy, links = world.copy(sid), links_of(world, *THREE)
        await copy.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, copy, original)
            for number in range(5):
                await save(world[sid], f"meanwhile {number}")
        assert links_of(world, *THREE) == links
        await take_place(world, copy)
        await save(world[sid], "at the copy")
        await world.heal()
        there = ["at the copy", "before", *(f"meanwhile {number}" for number in range(5))]
        assert [await bodies(world[each]) for each in THREE] == [there] * 3
        assert world[sid].node.store.origin != original


@pytest.mark.parametrize("roads", [[("dc2", "dc3")], [("dc1", "dc3"), ("dc2", "dc3")]])
async def test_a_copy_that_a_part_of_the_cluster_took_for_the_node_ends_when_the_parts_meet(
    tmp_path: Path, autojump_clock: MockClock, roads: list[tuple[str, str]]
) -> None:
    """`roads`: the links that are mended first. The copy's part consists of the copy and dc3."""
    async with running(tmp_path, autojump_clock) as world:
        original = world["dc1"].node.store.origin
        await save(world["dc1"], "before")
        await have(world, 1, THREE)
        world.cut(world.between(["dc3"]))
        await reach(world, "dc1", "dc2")
        copy, links = world.copy("dc1"), links_of(world, "dc1")
        world.network.cut((copy.address, "dc2"))
        await copy.start()
        await reach(world, "dc1", "dc3", at=[world["dc3"], copy])
        await save(copy, "at the copy")
        await save(world["dc3"], "beside the copy")
        await save(world["dc1"], "at the node")
        await save(world["dc2"], "beside the node")
        world.mend_roads(roads)
        await end(copy, original)
        assert world["dc1"].node.store.origin == original
        assert [link for link in links_of(world, "dc1") if link.sid == "dc2"] == links
        await world.heal()
        there = ["at the copy", "at the node", "before", "beside the copy", "beside the node"]
        assert [await bodies(world[sid]) for sid in THREE] == [there] * 3
        await take_place(world, copy)
        await save(world["dc1"], "in its place")
        await world.heal()
        assert [await bodies(world[sid]) for sid in THREE] == [[*there, "in its place"]] * 3


async def test_what_a_copy_alone_has_taken_is_there_when_it_takes_the_place_of_the_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "before")
        copy = world.copy("dc1")
        world.network.cut(*((copy.address, other) for other in ("dc2", "dc3")))
        await copy.start()
        await reach(world, "dc1", at=[copy])
        await save(copy, "at the copy")
        await save(world["dc1"], "at the node")
        original = world["dc1"].node.store.origin
        world.network.mend(*((copy.address, other) for other in ("dc2", "dc3")))
        await end(copy, original)
        await take_place(world, copy)
        await world.heal()
        assert [await bodies(world[sid]) for sid in THREE] == [["at the copy", "at the node", "before"]] * 3


# ---- the network


async def test_all_apart_take_mail_and_all_of_it_is_everywhere_afterwards(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "together")
        world.cut(world.pairs)
        for sid in THREE:
            await reach(world, sid)
            assert await save(world[sid], f"alone at {sid}") == [2]
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == ["alone at dc1", "alone at dc2", "alone at dc3", "together"]


async def test_the_smaller_side_refuses_where_copies_are_asked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, Plan(durability=REFUSING)) as world:
        world.hold(world.between(["dc1"]))
        await reach(world, "dc2", "dc3")
        await save(world["dc2"], "taken")
        with pytest.raises(DurabilityError, match="can be reached"):
            await save(world["dc1"], "refused")
        world.mend_roads()
        await world.heal()
        assert await bodies(world["dc1"]) == ["taken"]


async def test_silence_in_one_direction_is_a_cut_for_both(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        for other in ("dc2", "dc3"):
            world.network.road("dc1", other).hold()  # dc1 hears them, and is not heard
        await reach(world, "dc2", "dc3")
        await reach(world, "dc1")
        await save(world["dc1"], "at the one that is not heard")
        await save(world["dc2"], "at the others")
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == ["at the one that is not heard", "at the others", "first"]


async def test_in_a_line_changes_go_by_the_node_in_between(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc3"], "makes dc3 the master")
        world.cut([("dc1", "dc3")])
        await trio.sleep(TIMEOUT_S)
        began = trio.current_time()
        await save(world["dc1"], "by dc2")
        assert trio.current_time() - began < 1
        assert await bodies(world["dc3"]) == ["by dc2", "makes dc3 the master"]


async def test_a_link_that_flaps_costs_time_and_nothing_else(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, Plan(size=2, delay_s=(0.005, 0.02))) as world:

        async def flap() -> None:
            while True:
                world.cut(world.pairs)
                await trio.sleep(world.dice.uniform(0.05, 1))
                world.mend_roads()
                await trio.sleep(world.dice.uniform(0.05, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flap)
            for number in range(20):
                await save(world["dc1"], f"dc1 {number}")
                await save(world["dc2"], f"dc2 {number}")
            nursery.cancel_scope.cancel()
        await world.heal()
        assert len(await bodies(world["dc1"])) == 40


# ---- branches that are not joined yet


async def test_a_copy_is_of_what_its_client_sees_where_the_master_shows_another_mail_under_that_uid(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        await world["dc1"].node.mail.create_folder(USER, "Work")
        await world.settle()
        world.cut(world.between(["dc1"]))
        await reach(world, "dc1")
        await reach(world, "dc2", "dc3")
        assert await save(world["dc1"], "seen") == await save(world["dc2"], "not seen") == [2]
        world.mend_roads()
        await reach(world, *THREE)
        dc1, dc2 = world["dc1"].node, world["dc2"].node
        await dc2.save("makes dc2 the master", "Work")
        inbox = await dc1.view()
        assert inbox.messages[2].size_bytes == len("seen")
        assert 2 in (await dc2.view()).messages, "nothing is joined yet"
        await dc1.mail.copy(inbox, UidSet.of([2]), await dc1.mail.folder(USER, "Work"))
        await world.heal()
        assert sorted((await world["dc3"].node.bodies("Work")).values()) == ["makes dc2 the master", "seen"]


# ---- nodes and clocks


async def test_a_master_that_stands_still_for_three_minutes_is_replaced_and_comes_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "makes dc1 the master")
        world["dc1"].freeze()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(save, world["dc1"], "at the one that stands still")
            began = trio.current_time()
            await save(world["dc2"], "at another")
            assert trio.current_time() - began < TIMEOUT_S + 2
            await trio.sleep(180)
            world["dc1"].thaw()
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == ["at another", "at the one that stands still", "makes dc1 the master"]


@pytest.mark.parametrize("seed", ["0", "4", "11", "18"])
@pytest.mark.parametrize("still_s", [3.6, 3.9, 10.0])
async def test_a_master_that_stood_still_numbers_nothing_of_its_past(
    tmp_path: Path, autojump_clock: MockClock, seed: str, still_s: float
) -> None:
    """Work that waited there, at its doors or its disk, is done once it has links: no fork, and UIDs stay as told."""
    plan = Plan(seed, delay_s=(0.0001, 0.01), sync_s=0.02)
    async with running(tmp_path, autojump_clock, plan) as world:
        told = {"makes dc1 the master": await save(world["dc1"], "makes dc1 the master")}
        await have(world, 1, THREE)

        async def client(sid: str, text: str) -> None:
            told[text] = await save(world[sid], text)

        await trio.sleep(world.dice.uniform(0, HEARTBEAT_S))
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(client, "dc1", f"waits for the disk, {number}")
                await trio.sleep(world.dice.uniform(0, 0.01))
            world["dc1"].freeze()
            for number in range(5):
                nursery.start_soon(client, "dc1", f"waits at the door, {number}")
                nursery.start_soon(client, "dc2", f"elsewhere, {number}")
            await trio.sleep(still_s)
            world["dc1"].thaw()
        await world.settle()
        assert not world.history.merges
        for sid in THREE:
            shown = await world[sid].call(lambda node: node.bodies())
            assert {text: [uid] for uid, text in shown.items()} == told


async def test_a_node_that_stands_still_as_it_catches_up_does_not_take_itself_for_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        world["dc3"].crash()
        for number in range(50):
            await save(world["dc1"], f"{number} {'x' * 20_000}")
        for other in ("dc1", "dc2"):
            world.network.road(other, "dc3").bytes_per_s = 20_000
        await world["dc3"].start()
        await trio.sleep(2 * TIMEOUT_S)
        world["dc3"].freeze()
        await trio.sleep(2 * TIMEOUT_S)
        world["dc3"].thaw()
        await reach(world, *THREE)
        await trio.sleep(2)
        assert world["dc3"].node.coordinator.readiness.problem() is not None


async def test_the_master_crashes_and_others_wait_no_longer_than_the_timeout(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "makes dc1 the master")
        await save(world["dc2"], "by dc1")
        world["dc1"].crash(silently=True)
        began = trio.current_time()
        await save(world["dc2"], "after")
        assert trio.current_time() - began < TIMEOUT_S + 2


@pytest.mark.parametrize("ahead_s", [240, -240])
async def test_a_clock_that_is_four_minutes_off_does_no_harm(
    tmp_path: Path, autojump_clock: MockClock, ahead_s: float
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        world["dc2"].clock.set(ahead_s)
        world["dc2"].crash()
        await world["dc2"].start()
        await world.settle()
        for sid in THREE:
            await save(world[sid], f"at {sid}")
            await world[sid].call(lambda node: node.flag(1))
        world["dc2"].clock.set(0)
        for sid in THREE:
            await world[sid].call(lambda node: node.flag(1, added=["$Later"]))
        assert (await world["dc2"].call(lambda node: node.messages()))[0].flags == {"\\Seen", "$Later"}


async def test_a_clock_that_is_six_minutes_off_parts_a_node_from_the_others_until_it_is_set(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        world["dc3"].clock.set(360)
        world["dc3"].crash()
        await world["dc3"].start()
        await reach(world, "dc1", "dc2")
        await trio.sleep(20)
        await reach(world, "dc3")
        await save(world["dc1"], "without dc3")
        world["dc3"].clock.set(0)
        await world.settle()
        assert await bodies(world["dc3"]) == ["without dc3"]


async def test_a_request_is_answered_in_time_whatever_happens(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, Plan(durability=DurabilityConfig(3))) as world:
        await save(world["dc1"], "first")
        for other in ("dc2", "dc3"):
            world.network.road("dc1", other).bytes_per_s = 500  # alive, and of no use
        began = trio.current_time()
        with suppress(UnavailableError):
            await save(world["dc1"], "x" * 100_000)
        assert trio.current_time() - began <= timing.REQUEST_TIMEOUT_S + 1


# ---- elections


async def test_terms_change_without_a_fork_where_all_can_talk(tmp_path: Path, autojump_clock: MockClock) -> None:
    """No node numbers before all have dropped what they mastered, and a new master knows what the last one did."""
    async with running(tmp_path, autojump_clock, Plan(size=4, delay_s=(0.001, 0.2), jitter_s=0.1)) as world:

        async def client(sid: str) -> None:
            while True:
                await save(world[sid], f"at {sid}, {trio.current_time()}")
                await trio.sleep(world.dice.uniform(0, 0.1))

        async with trio.open_nursery() as nursery:
            for sid in THREE:
                nursery.start_soon(client, sid)
            for _ in range(10):
                world.cut(world.between(["dc4"]))
                await trio.sleep(world.dice.uniform(0.5, 3))
                world.mend_roads()
                await trio.sleep(world.dice.uniform(0.5, 3))
            nursery.cancel_scope.cancel()
        await world.heal()
        assert len(world.history.added) > 50
        assert not world.history.merges
