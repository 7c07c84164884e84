"""Events that operators fear, one at a time. Each scenario ends with all checks of a swarm: see `scenario.running`."""

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet, sid_of
from replicator.config import ContentConfig, DurabilityConfig, WhenShort
from replicator.errors import DiskFullError, DurabilityError, NotReadyError, UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.links.link import PeerLink
from replicator.store.db.queries import MailboxKey
from tests.effort import first
from tests.replication.cluster import HEARTBEAT_S, TIMEOUT_S, USER, Node, until
from tests.simulation.checks import settling
from tests.simulation.checks.bodies import holds_bodies
from tests.simulation.clients.reader import Reader
from tests.simulation.machine import Machine, NodeGoneError
from tests.simulation.plan import Plan
from tests.simulation.records.cache import Cache
from tests.simulation.runtime.disk import DiskFault
from tests.simulation.scenario import bodies, large_body, running, save, wait_for_component, wait_for_mails
from tests.simulation.world import World

THREE = ("dc1", "dc2", "dc3")
REFUSING = DurabilityConfig(2, WhenShort.REFUSE)


# ---- disks


async def test_restored_disk_copy_loses_no_mail_and_reuses_no_entry_name(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "before the copy")
        copy = world["dc1"].disk.copy()
        assert await save(world["dc1"], "after the copy", "and another") == [2, 3]
        await wait_for_mails(world, 3, THREE)
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


async def test_disk_copy_taken_during_writes_can_be_restored(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, Plan(delay_s=(0.01, 0.05))) as world, trio.open_nursery() as nursery:
        for sid in THREE:
            nursery.start_soon(save, world[sid], *(f"{sid} {number}" for number in range(20)))
        await trio.sleep(0.5)
        copy = world["dc2"].disk.copy()
        await trio.sleep(1)
        world["dc2"].crash()
        world["dc2"].restore(copy)
        nursery.cancel_scope.cancel()


async def test_acknowledged_mail_survives_on_its_last_copy(tmp_path: Path, autojump_clock: MockClock) -> None:
    plan = Plan(size=5, durability=DurabilityConfig(3, WhenShort.REFUSE), delay_s=(0.02, 0.1))
    async with running(tmp_path, autojump_clock, plan) as world:
        await save(world["dc5"], "acknowledged")
        for sid in ("dc5", "dc4"):
            world[sid].crash(silently=True)
            world[sid].restore(None)
        await world.heal()
        for sid in world.sids:
            assert await bodies(world[sid]) == ["acknowledged"]


async def test_node_with_a_lost_disk_refuses_clients_until_it_has_links(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "before")
        await wait_for_mails(world, 1, THREE)
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


@pytest.mark.long
async def test_node_with_a_lost_disk_shows_mailboxes_only_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as world:
        large = [large_body(number) for number in range(100)]
        for body in large:
            await world["dc1"].call(lambda node, body=body: node.save(body, user="somebody"))  # type: ignore[misc]
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
        assert world.rejoining.checked
        assert sum(world["dc3"].node.store.context.values()) < len(large), "it was not waited for until all was here"


async def test_full_disk_refuses_writes_and_allows_reads_until_there_is_room(
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


async def test_damaged_attachment_is_healed_before_mail_that_needs_it_is_acknowledged(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plan = Plan(size=2, durability=REFUSING, content=ContentConfig(inline_max_bytes=64))
    async with running(tmp_path, autojump_clock, plan) as world:
        head, attached = "Content-Type: text/plain; charset=us-ascii\r\n\r\n", "attached " * 100
        await save(world["dc1"], head + attached)
        await wait_for_mails(world, 1, ("dc1", "dc2"))
        files = world["dc2"].disk.files
        stored = [name for name, octets in files.tree().items() if octets == attached.encode()]
        assert stored, "the text is no attachment"
        for name in stored:
            files.corrupt(name, b"x" * len(attached))
        await save(world["dc1"], f"Subject: again\r\n{head}{attached}")
        messages = await world["dc1"].call(lambda node: node.messages())
        assert len(messages) == 2
        hashes = [message.content_hash for message in messages]
        assert holds_bodies(world["dc2"], hashes), "dc2 has acknowledged a mail without its attachment"


@pytest.mark.parametrize("fault", DiskFault)
async def test_failing_disk_does_not_end_its_node_at_a_new_term(
    tmp_path: Path, autojump_clock: MockClock, fault: DiskFault
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        world["dc1"].disk.fault = fault
        await world["dc3"].stop()
        await wait_for_component(world, "dc1", "dc2")
        assert world["dc1"].is_up
        assert await bodies(world["dc1"]) == ["first"]


async def test_master_that_cannot_catch_up_does_not_claim_to_show_everything(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its disk fails when the line comes back, so it may number the mailbox without the other side's mail."""
    plan = Plan(size=2, durability=DurabilityConfig(1, WhenShort.PROCEED))
    async with running(tmp_path, autojump_clock, plan) as world:
        await save(world["dc1"], "before the cut")
        await wait_for_mails(world, 1, ["dc2"])
        world.cut(world.between(["dc2"]))
        await wait_for_component(world, "dc2", at=[world["dc2"]])
        await save(world["dc1"], "heard OK at dc1")
        await save(world["dc2"], "heard OK at dc2")
        world.mend_roads()
        await wait_for_component(world, "dc1", "dc2")
        world["dc2"].disk.fault = DiskFault.BROKEN
        with pytest.raises(UnavailableError):
            await save(world["dc2"], "refused")
        assert await world["dc2"].call(_may_number_inbox)
        assert not await world["dc2"].call(lambda node: node.mail.catch_up(USER, "INBOX"))
        world["dc2"].disk.fault = None
        await world.settle()
        assert await world["dc2"].call(lambda node: node.mail.catch_up(USER, "INBOX"))
        assert await bodies(world["dc2"]) == ["before the cut", "heard OK at dc1", "heard OK at dc2"]


async def _may_number_inbox(node: Node) -> bool:
    return node.coordinator.mastership.may_number(MailboxKey.of(await node.inbox()))


async def test_acknowledged_mail_survives_power_loss_at_all_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    acknowledged: list[str] = []
    async with running(tmp_path, autojump_clock, Plan(sync_s=0.01)) as world:

        async def client(sid: str) -> None:
            with suppress(NodeGoneError):
                for number in range(1000):
                    await save(world[sid], f"{sid} {number}")
                    acknowledged.append(f"{sid} {number}")

        async with trio.open_nursery() as nursery:
            for sid in THREE:
                nursery.start_soon(client, sid)
            await trio.sleep(2)
            for sid in THREE:
                world[sid].crash(silently=True)
        await world.heal()
        assert len(acknowledged) > 20
        for sid in THREE:
            assert set(acknowledged) <= set(await bodies(world[sid]))


@pytest.mark.long
async def test_node_with_an_older_disk_copy_shows_mailboxes_only_as_last_seen(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, Plan(users=(USER,))) as world, trio.open_nursery() as nursery:
        dc1 = world["dc1"]
        await save(dc1, "expunged", "one")
        old = dc1.disk.copy()
        large = [large_body(number) for number in range(100)]
        for body in large:
            await dc1.call(lambda node, body=body: node.save(body, user="somebody"))  # type: ignore[misc]
        await save(dc1, "two", "three")
        await dc1.call(lambda node: node.expunge(1))
        await dc1.call(lambda node: node.flag(2))
        await world.settle()
        cache = await refresh_cache(dc1)
        dc1.crash()
        dc1.restore(old)
        world.rejoining.begins("dc1")
        for other in ("dc2", "dc3"):
            world.network.road(other, "dc1").bytes_per_s = 20_000
        nursery.start_soon(Reader(world, 1).run)
        await dc1.start()
        cache = await refresh_cache(dc1, cache)
        assert sorted(cache.messages) == [2, 3, 4]
        assert world.rejoining.checked
        assert len(large) > sum(dc1.node.store.context.values()), "it was not waited for until all was here"
        await world.heal()
        await Reader(world, 2).check_view(dc1)
        nursery.cancel_scope.cancel()


async def refresh_cache(machine: Machine, cache: Cache | None = None) -> Cache:
    """Return a client's cache of INBOX, brought up to date as soon as the node shows the mailbox."""
    while True:
        with suppress(NotReadyError):
            view = await machine.call(lambda node: node.view())
            context = dict(machine.node.store.context)
            return cache.resync(view, context) if cache else Cache.fetch("INBOX", view, context)


# ---- one node, two processes


def links_of(world: World, *sids: str) -> list[PeerLink]:
    """Return all links of these nodes."""
    return [link for sid in sids for link in world[sid].node.coordinator.connections.links]


async def wait_for_end(copy: Machine, original: str) -> None:
    """Wait until the copy has ended because another run is the node."""
    with trio.move_on_after(4 * TIMEOUT_S):
        await copy.unwound()
    assert copy.gave_way is not None, f"{copy.name} goes on beside the node"
    assert f"{copy.sid} already runs as {original}" in copy.gave_way


async def replace_by(world: World, copy: Machine) -> None:
    """Stop the node, and let the copy take its place."""
    await world[copy.sid].stop()
    world.replace_by(copy)
    await copy.start()
    await wait_for_component(world, *THREE)


@pytest.mark.parametrize("sid", ["dc1", "dc3"])
async def test_copied_node_ends_beside_the_original_and_may_replace_it_later(
    tmp_path: Path, autojump_clock: MockClock, sid: str
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        original = world[sid].node.store.origin
        await save(world[sid], "before")
        copy, links = world.copy(sid), links_of(world, *THREE)
        await copy.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_end, copy, original)
            for number in range(5):
                await save(world[sid], f"meanwhile {number}")
        assert links_of(world, *THREE) == links
        await replace_by(world, copy)
        await save(world[sid], "at the copy")
        await world.heal()
        there = ["at the copy", "before", *(f"meanwhile {number}" for number in range(5))]
        assert [await bodies(world[each]) for each in THREE] == [there] * 3
        assert world[sid].node.store.origin != original


@pytest.mark.long
@pytest.mark.parametrize("roads", [[("dc2", "dc3")], [("dc1", "dc3"), ("dc2", "dc3")]])
async def test_copied_node_accepted_in_one_partition_ends_when_partitions_meet(
    tmp_path: Path, autojump_clock: MockClock, roads: list[tuple[str, str]]
) -> None:
    """`roads`: the links that are mended first. The copy's part consists of the copy and dc3."""
    async with running(tmp_path, autojump_clock) as world:
        original = world["dc1"].node.store.origin
        await save(world["dc1"], "before")
        await wait_for_mails(world, 1, THREE)
        world.cut(world.between(["dc3"]))
        await wait_for_component(world, "dc1", "dc2")
        copy, links = world.copy("dc1"), links_of(world, "dc1")
        world.network.cut((copy.address, "dc2"))
        await copy.start()
        await wait_for_component(world, "dc1", "dc3", at=[world["dc3"], copy])
        await save(copy, "at the copy")
        await save(world["dc3"], "beside the copy")
        await save(world["dc1"], "at the node")
        await save(world["dc2"], "beside the node")
        world.mend_roads(roads)
        await wait_for_end(copy, original)
        assert world["dc1"].node.store.origin == original
        assert [link for link in links_of(world, "dc1") if link.sid == "dc2"] == links
        await world.heal()
        there = ["at the copy", "at the node", "before", "beside the copy", "beside the node"]
        assert [await bodies(world[sid]) for sid in THREE] == [there] * 3
        await replace_by(world, copy)
        await save(world["dc1"], "in its place")
        await world.heal()
        assert [await bodies(world[sid]) for sid in THREE] == [[*there, "in its place"]] * 3


async def test_mail_saved_at_an_isolated_copy_is_kept_when_it_replaces_the_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "before")
        copy = world.copy("dc1")
        world.network.cut(*((copy.address, other) for other in ("dc2", "dc3")))
        await copy.start()
        await wait_for_component(world, "dc1", at=[copy])
        await save(copy, "at the copy")
        await save(world["dc1"], "at the node")
        original = world["dc1"].node.store.origin
        world.network.mend(*((copy.address, other) for other in ("dc2", "dc3")))
        await wait_for_end(copy, original)
        await replace_by(world, copy)
        await world.heal()
        assert [await bodies(world[sid]) for sid in THREE] == [["at the copy", "at the node", "before"]] * 3


# ---- the network


async def test_isolated_nodes_take_mail_that_reaches_all_nodes_afterwards(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "together")
        world.cut(world.pairs)
        for sid in THREE:
            await wait_for_component(world, sid)
            assert await save(world[sid], f"alone at {sid}") == [2]
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == ["alone at dc1", "alone at dc2", "alone at dc3", "together"]


async def test_minority_refuses_saves_where_copies_are_required(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, Plan(durability=REFUSING)) as world:
        world.hold(world.between(["dc1"]))
        await wait_for_component(world, "dc2", "dc3")
        await save(world["dc2"], "taken")
        with pytest.raises(DurabilityError, match="can be reached"):
            await save(world["dc1"], "refused")
        world.mend_roads()
        await world.heal()
        assert await bodies(world["dc1"]) == ["taken"]


async def test_silence_in_one_direction_cuts_the_link_for_both_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        for other in ("dc2", "dc3"):
            world.network.road("dc1", other).hold()  # dc1 hears them, and is not heard
        await wait_for_component(world, "dc2", "dc3")
        await wait_for_component(world, "dc1")
        await save(world["dc1"], "at the one that is not heard")
        await save(world["dc2"], "at the others")
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == ["at the one that is not heard", "at the others", "first"]


async def test_nodes_in_a_line_forward_changes_through_the_middle_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc3"], "makes dc3 the master")
        world.cut([("dc1", "dc3")])
        await trio.sleep(TIMEOUT_S)
        began = trio.current_time()
        await save(world["dc1"], "by dc2")
        assert trio.current_time() - began < 1
        assert await bodies(world["dc3"]) == ["by dc2", "makes dc3 the master"]


async def test_flapping_link_loses_no_mail(tmp_path: Path, autojump_clock: MockClock) -> None:
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


async def test_copy_takes_the_mail_its_client_sees_not_the_one_at_the_master(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        await world["dc1"].node.mail.create_folder(USER, "Work")
        await world.settle()
        world.cut(world.between(["dc1"]))
        await wait_for_component(world, "dc1")
        await wait_for_component(world, "dc2", "dc3")
        assert await save(world["dc1"], "seen") == await save(world["dc2"], "not seen") == [2]
        world.mend_roads()
        await wait_for_component(world, *THREE)
        dc1, dc2 = world["dc1"].node, world["dc2"].node
        await dc2.save("makes dc2 the master", "Work")
        inbox = await dc1.view()
        assert inbox.messages[2].size_bytes == len("seen")
        assert 2 in (await dc2.view()).messages, "nothing is joined yet"
        await dc1.mail.copy(inbox, UidSet.of([2]), await dc1.mail.folder(USER, "Work"))
        await world.heal()
        assert sorted((await world["dc3"].node.bodies("Work")).values()) == ["makes dc2 the master", "seen"]


async def test_mails_saved_together_change_their_order_where_a_merge_gives_some_other_uids(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "first")
        world.cut(world.between(["dc1"]))
        await wait_for_component(world, "dc1")
        await wait_for_component(world, "dc2", "dc3")
        dc1 = world["dc1"].node
        saved = await dc1.mail.save_all(await dc1.inbox(), [NewMessage(body) for body in (b"one", b"two", b"three")])
        assert [one.uid for one in saved] == [2, 3, 4]
        assert await save(world["dc2"], "at dc2") == [2]
        await world.heal()
        assert await dc1.bodies() == {1: "first", 3: "two", 4: "three", 5: "at dc2", 6: "one"}


async def test_mail_is_in_both_folders_that_are_separated_before_it_has_moved(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A merge unites two folders of one name, a node copies the mail of one to the other, and a rename parts them."""
    async with running(tmp_path, autojump_clock) as world:
        dc1, dc2, dc3 = (world[sid].node for sid in THREE)
        world.cut(world.between(["dc2"]))
        await wait_for_component(world, "dc2")
        await wait_for_component(world, "dc1", "dc3")
        await dc2.mail.create_folder(USER, "Work")  # it has the lower id, so it stays
        await dc2.save("at dc2", "Work")
        await trio.sleep(1)
        await dc1.mail.create_folder(USER, "Work")
        await dc1.save("at dc1", "Work")
        for body in (b"at dc1", b"at dc2"):
            world.ledger.asks_to_save(body)  # once each
        world.cut(world.between(["dc3"]))
        await wait_for_component(world, "dc3")
        await dc3.mail.rename_folder(USER, "Work", "Old")
        world.mend_roads([("dc1", "dc2")])
        world.network.road("dc2", "dc1").delay_s = 1
        await until(lambda: bool(world.history.moved))
        world["dc1"].crash(silently=True)  # before it hears of the copy, and expunges the mail
        world.mend_roads()
        await wait_for_component(world, "dc2", "dc3")
        await world["dc1"].start()
        await world.heal()
        assert sorted((await dc3.bodies("Work")).values()) == ["at dc1", "at dc2"]
        assert [*(await dc3.bodies("Old")).values()] == ["at dc1"]


# ---- nodes and clocks


async def test_master_stalled_for_three_minutes_is_replaced_and_comes_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "makes dc1 the master")
        world["dc1"].freeze()

        async def save_until_confirmed() -> None:
            with pytest.raises(UnavailableError, match="not confirmed in time"):  # the client has waited for too long
                await save(world["dc1"], "at the one that stands still")
            await save(world["dc1"], "at the one that stands still")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(save_until_confirmed)
            began = trio.current_time()
            await save(world["dc2"], "at another")
            assert trio.current_time() - began < TIMEOUT_S + 2
            await trio.sleep(180)
            world["dc1"].thaw()
        await world.heal()
        for sid in THREE:
            assert await bodies(world[sid]) == ["at another", "at the one that stands still", "makes dc1 the master"]


async def test_node_at_rest_has_linked_its_peers_anew_after_a_stall(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The node closes its links when it notices the stall. Until they are back, changes are refused."""
    async with running(tmp_path, autojump_clock, Plan(size=2, durability=REFUSING, delay_s=(0.1, 0.2))) as world:
        await save(world["dc1"], "before")
        world["dc2"].freeze()
        await trio.sleep(0.9 * TIMEOUT_S)  # dc1 keeps the link
        await world.heal()
        await trio.sleep(settling.POLL_S)
        assert not settling.reason_unsettled(world.up())
        await save(world["dc2"], "after")


@pytest.mark.parametrize("seed", first(2, ["0", "4", "11", "18"]))
@pytest.mark.parametrize("still_s", [3.6, 3.9, 10.0])
async def test_stalled_master_numbers_no_request_without_a_new_term(
    tmp_path: Path, autojump_clock: MockClock, seed: str, still_s: float
) -> None:
    """Requests that waited at its doors or its disk are done once it has links: no fork, and UIDs stay as told."""
    plan = Plan(seed, delay_s=(0.0001, 0.01), sync_s=0.02)
    async with running(tmp_path, autojump_clock, plan) as world:
        told = {"makes dc1 the master": await save(world["dc1"], "makes dc1 the master")}
        await wait_for_mails(world, 1, THREE)

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


async def test_node_stalled_while_it_catches_up_does_not_consider_itself_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as world:
        world["dc3"].crash()
        for number in range(50):
            await save(world["dc1"], large_body(number))
        for other in ("dc1", "dc2"):
            world.network.road(other, "dc3").bytes_per_s = 20_000
        await world["dc3"].start()
        await trio.sleep(2 * TIMEOUT_S)
        world["dc3"].freeze()
        await trio.sleep(2 * TIMEOUT_S)
        world["dc3"].thaw()
        await wait_for_component(world, *THREE)
        await trio.sleep(2)
        assert world["dc3"].node.coordinator.readiness.problem() is not None


async def test_crashed_master_is_replaced_within_the_timeout(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as world:
        await save(world["dc1"], "makes dc1 the master")
        await save(world["dc2"], "by dc1")
        world["dc1"].crash(silently=True)
        began = trio.current_time()
        await save(world["dc2"], "after")
        assert trio.current_time() - began < TIMEOUT_S + 2


@pytest.mark.parametrize("ahead_s", [240, -240])
async def test_clock_four_minutes_off_does_no_harm(tmp_path: Path, autojump_clock: MockClock, ahead_s: float) -> None:
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


async def test_clock_six_minutes_off_isolates_a_node_until_it_is_set(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as world:
        world["dc3"].clock.set(360)
        world["dc3"].crash()
        await world["dc3"].start()
        await wait_for_component(world, "dc1", "dc2")
        await trio.sleep(20)
        await wait_for_component(world, "dc3")
        await save(world["dc1"], "without dc3")
        world["dc3"].clock.set(0)
        await world.settle()
        assert await bodies(world["dc3"]) == ["without dc3"]


async def test_request_is_answered_in_time_over_uselessly_slow_links(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, Plan(durability=DurabilityConfig(3))) as world:
        await save(world["dc1"], "first")
        for other in ("dc2", "dc3"):
            world.network.road("dc1", other).bytes_per_s = 500  # alive, and of no use
        began = trio.current_time()
        with suppress(UnavailableError):
            await save(world["dc1"], "x" * 100_000)
        assert trio.current_time() - began <= timing.REQUEST_TIMEOUT_S + 1


# ---- elections


@pytest.mark.long
async def test_terms_change_without_forks_between_linked_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    """No node numbers before all have dropped their mailboxes, and a new master knows the last one's heads."""
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


@pytest.mark.long
async def test_nodes_that_stop_in_turn_leave_no_forks(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A node hands over all that it has numbered before it ends, even over slow lines."""
    async with running(tmp_path, autojump_clock, Plan(delay_s=(0.001, 0.1), jitter_s=0.05)) as world:

        async def client(sid: str) -> None:
            while True:
                with suppress(NodeGoneError, UnavailableError, NotReadyError):
                    await save(world[sid], f"at {sid}, {trio.current_time()}")
                await trio.sleep(world.dice.uniform(0, 0.1))

        async with trio.open_nursery() as nursery:
            for sid in THREE:
                nursery.start_soon(client, sid)
            for sid in [*THREE] * 4:
                await trio.sleep(world.dice.uniform(0.5, 5))
                await world[sid].stop()
                await trio.sleep(world.dice.uniform(0.1, 3))
                await world[sid].start()
                await wait_for_component(world, *THREE)
            nursery.cancel_scope.cancel()
        await world.heal()
        assert len(world.history.added) > 50
        assert not world.history.merges
