"""Large messages reach other nodes before they are numbered, so entries do not wait for attachments."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import FetchPart, Reply
from replicator.config import MastershipConfig, Scope, WhenShort
from replicator.errors import DiskFullError, DurabilityError, UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.links import link as links
from replicator.replication.links.link import PeerLink
from replicator.replication.writes import prestage
from replicator.replication.writes.requests import ChangeRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store
from tests.effort import first
from tests.replication.bodies.large_messages import (
    answer_chunks,
    attachment_files,
    bodies,
    check_holders,
    contents,
    message,
    save,
)
from tests.replication.cluster import Node, cluster, until

LARGE = message(1, random.Random(5).randbytes(3 << 20))
SLOW_S = 5.0  # for each chunk; 8 are requested at once, so all of them take 15 s


def is_held(node: Node) -> bool:
    return bool(attachment_files(node, "holders/*"))


async def test_small_changes_do_not_wait_for_a_large_message(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_chunks(monkeypatch, lambda _: None, delay_s=SLOW_S)
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(save, nodes["dc1"], LARGE)
            await trio.sleep(SLOW_S)
            with trio.fail_after(1):
                await nodes["dc1"].save("small")
                await nodes["dc2"].flag(1)
            assert await nodes["dc2"].bodies() == {1: "first", 2: "small"}
        await nodes.converged()
        assert (await bodies(nodes["dc2"]))[3] == LARGE


@pytest.mark.parametrize("at", ["dc1", "dc2"])
async def test_entry_finds_its_attachments_at_every_neighbour(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    asked = list[int]()
    answer_chunks(monkeypatch, lambda command: asked.append(command.start))
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        master = nodes["dc1"]
        number, counts = master.coordinator.router._run, list[int]()

        async def numbering(operation: ChangeRequest) -> Reply:
            counts.extend(len(contents(node)) for node in nodes.all())
            return await number(operation)

        monkeypatch.setattr(master.coordinator.router, "_run", numbering)
        await save(nodes[at], LARGE)
        assert counts == [1, 1, 1]
        await nodes.converged()
        assert len(asked) == 2 * len(set(asked)), "each chunk went to two nodes"
        await trio.sleep(2 * timing.PRESTAGE_LOOK_EVERY_S)
        for node in nodes.all():
            assert (await bodies(node))[2] == LARGE
            await check_holders(node)


async def test_prestaged_attachments_without_an_entry_are_removed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2, when_short=WhenShort.REFUSE) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        link = nodes["dc1"].coordinator.connections.link("dc2")
        assert link is not None
        async with nodes["dc1"].mail.receive() as sink:
            await sink.write(LARGE)
            received = await sink.finish()
            assert isinstance(received, StoredBody)
            assert received.parts is not None
            await nodes["dc1"].coordinator.prestage.offer(received.parts)
            assert len(contents(nodes["dc2"])) == 1
        await trio.sleep(timing.PRESTAGE_HELD_S - 1)
        assert is_held(nodes["dc2"])
        await trio.sleep(2 + timing.PRESTAGE_LOOK_EVERY_S)
        assert not contents(nodes["dc2"])
        assert not nodes["dc2"].store.attachments.in_flight()


async def test_prestaged_attachments_are_removed_when_the_node_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await save(nodes["dc1"], LARGE)
        node = nodes["dc2"]
        assert len(attachment_files(node, "holders/*")) == 2
        await nodes.stop("dc2")
        assert len(attachment_files(node, "holders/*")) == 1


async def test_node_without_room_to_prestage_gets_attachments_with_the_entry(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestage, "HELD_BYTES_MAX", 4 << 20)
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        asked = list[int]()
        for number in range(3):
            asked.append(await save(nodes["dc1"], message(number, random.Random(number).randbytes(2 << 20))))
        await nodes.converged()
        assert list(await bodies(nodes["dc2"])) == [1, *asked]
        await trio.sleep(2 * timing.PRESTAGE_LOOK_EVERY_S)
        await check_holders(nodes["dc2"])


async def test_slow_offer_leaves_time_for_the_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The slowest of three neighbours gets the attachments with the entry, and the client hears OK in time."""
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc1", "dc3").bytes_per_s = 50_000
        with trio.fail_after(timing.REQUEST_TIMEOUT_S / 2):
            assert await save(nodes["dc1"], LARGE) == 2
        assert len(await nodes["dc2"].messages()) == 2
        nodes.network.road("dc1", "dc3").bytes_per_s = None
        await nodes.converged()
        assert (await bodies(nodes["dc3"]))[2] == LARGE


async def test_change_that_cannot_become_durable_is_not_numbered(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would hear that the change may or may not be made, and would deliver the message again."""
    answer_chunks(monkeypatch, lambda _: None, delay_s=SLOW_S)
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


@pytest.mark.long
@pytest.mark.parametrize("offers", [False, True])
async def test_slow_third_node_does_not_stop_a_large_delivery(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, offers: bool
) -> None:
    """Prestaging must not break what works without it. This is 64 MiB at 512 KiB/s, for which 30 s and 256 s are
    allowed, at a smaller scale.
    """
    monkeypatch.setattr("replicator.replication.writes.requests.messages.SLOWEST_BYTES_S", 16_000)
    monkeypatch.setattr(timing, "ATTACHMENTS_CHUNK_TIMEOUT_S", 1000.0)
    if not offers:
        monkeypatch.setattr(prestage, "OFFERED_BYTES", 1 << 30)
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc2", "dc1").bytes_per_s = 17_500  # faster than the slowest link that is allowed
        nodes.network.road("dc1", "dc3").bytes_per_s = 4_000
        nodes.network.road("dc2", "dc3").bytes_per_s = 4_000
        await save(nodes["dc2"], LARGE)  # two copies: at dc2 and dc1


async def test_single_copy_does_not_wait_for_an_offer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc1", "dc2").bytes_per_s = 50_000
        with trio.fail_after(1):
            await save(nodes["dc1"], LARGE)


async def test_prestaged_attachments_are_kept_until_the_slowest_offer_ends(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is a message of more than 30 MiB at a smaller scale."""
    monkeypatch.setattr("replicator.replication.writes.requests.messages.SLOWEST_BYTES_S", 16_000)
    asked = dict[str, list[int]]()
    answer = peer_fetch.answer_fetch

    async def counting(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
        if isinstance(command, FetchPart):
            asked.setdefault(link.sid, []).append(command.start)
        return await answer(store, link, command, read_chunk)

    monkeypatch.setattr(peer_fetch, "answer_fetch", counting)
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc1", "dc3").bytes_per_s = 10_000
        nodes.network.road("dc2", "dc3").bytes_per_s = 10_000
        await save(nodes["dc1"], LARGE)
        nodes.network.road("dc1", "dc3").bytes_per_s = nodes.network.road("dc2", "dc3").bytes_per_s = None
        await nodes.converged()
        assert len(asked["dc2"]) == len(set(asked["dc2"])), "dc2 has fetched the attachment twice"


async def test_change_whose_offer_outlasts_the_term_waits_for_catching_up(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise dc1 would number on a head that it has not compared, and a merge would replace the UIDs of the fork."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1, mastership=MastershipConfig(scope=Scope.USER)) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        await one.mail.create_folder("alice", "Other")
        await one.save("first")
        await nodes.converged()
        mastership, run = one.coordinator.mastership, one.coordinator.router._run
        offered, may_go_on, ready = trio.Event(), trio.Event(), list[bool]()

        async def running(operation: ChangeRequest) -> Reply:
            ready.append(mastership.may_number(operation.key))
            return await run(operation)

        async def offer(_: object) -> None:  # stands for a slow offer to a third node
            offered.set()
            await may_go_on.wait()

        monkeypatch.setattr(one.coordinator.prestage, "offer", offer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(save, one, LARGE)
            await offered.wait()
            nodes.network.cut(("dc1", "dc2"))
            await until(lambda: one.component == {"dc1"} and two.component == {"dc2"})
            await two.save("on the other side")
            nodes.network.road("dc2", "dc1").delay_s = 0.5  # dc2's entry arrives after the new term
            nodes.network.mend(("dc1", "dc2"))
            await nodes.linked()
            monkeypatch.setattr(one.coordinator.prestage, "offer", _no_offer)
            key = (await one.inbox()).mailbox_id
            await one.coordinator.mastership.find(MailboxKey("alice", key, 1))
            monkeypatch.setattr(one.coordinator.router, "_run", running)
            may_go_on.set()
        await nodes.converged()
        assert all(ready)


async def _no_offer(_: object) -> None:
    pass


@pytest.mark.parametrize("offers", first(1, [True, False]))
async def test_slow_offers_of_one_peer_delay_no_entry_of_another(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, offers: bool
) -> None:
    """Otherwise the entry would wait for as long as the offers may take."""
    monkeypatch.setattr(links, "CHUNKS_AT_ONCE", 16)
    if not offers:
        monkeypatch.setattr(prestage, "OFFERED_BYTES", 1 << 30)
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        for user in ("a", "b"):
            await nodes["dc3"].save("first", user=user)
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc3", "dc2").bytes_per_s = 50_000
        async with trio.open_nursery() as nursery:
            for number, user in enumerate("ab"):
                body = message(number, random.Random(number).randbytes(3 << 20))
                nursery.start_soon(save, nodes["dc3"], body, user)
            await trio.sleep(1)
            with trio.move_on_after(10) as scope:
                await save(nodes["dc1"], message(9, random.Random(9).randbytes(200_000)))
            nodes.network.road("dc3", "dc2").bytes_per_s = None
        assert not scope.cancelled_caught


async def test_message_for_many_recipients_is_prestaged_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        users = [f"user{number}" for number in range(8)]
        for user in users:
            await nodes["dc1"].save("first", user=user)
        await nodes.converged()
        mail = nodes["dc1"].mail
        async with mail.receive() as sink:
            await sink.write(LARGE)
            body = await sink.finish()
            async with trio.open_nursery() as nursery:
                for user in users:
                    nursery.start_soon(mail.save, await mail.folder(user, "INBOX"), NewMessage(body))
        assert nodes["dc2"].coordinator.prestage._size_bytes < 2 * len(LARGE)


async def test_nodes_that_offer_to_each_other_do_not_deadlock(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CHUNKS_AT_ONCE", 1)
    monkeypatch.setattr(links, "LARGE_REPLIES_AT_ONCE", 1)
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        for sid in nodes.sids:
            for number in range(4):
                await nodes[sid].save("first", user=f"{sid}{number}")
        await nodes.converged()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    body = message(number, random.Random(number).randbytes(1_100_000))
                    for sid in nodes.sids:
                        nursery.start_soon(save, nodes[sid], body, f"{sid}{number}")


@pytest.mark.parametrize("when_short", list(WhenShort))
@pytest.mark.parametrize("at", first(1, ["dc3", "dc1"]))
async def test_full_peer_refuses_large_messages_and_stores_small_ones(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, when_short: WhenShort, at: str
) -> None:
    """The refusal comes at the master, dc1, and on the way to it. If the large message were numbered, small ones
    behind it would have fewer copies.
    """
    async with cluster(tmp_path, autojump_clock, 3, copies=3, when_short=when_short) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc2", "dc1").delay_s = 0.5  # shows whether the client waits for dc2
        with monkeypatch.context() as patch:
            patch.setattr(nodes["dc2"].store.attachments, "build", no_room)
            began = trio.current_time()
            with pytest.raises(DiskFullError, match=r"^dc2 has no room for this message; try later$"):
                await save(nodes[at], LARGE)
            assert trio.current_time() < began + 2
            assert nodes["dc1"].coordinator.durability.reachable == 3
            with trio.fail_after(2):
                await nodes[at].save("small")
            for node in nodes.all():
                assert await node.bodies() == {1: "first", 2: "small"}, "the large message was not numbered"
        await save(nodes[at], LARGE)
        await nodes.converged()
        for node in nodes.all():
            assert (await bodies(node))[3] == LARGE


async def test_full_peer_does_not_matter_where_other_nodes_have_room(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        with monkeypatch.context() as patch:
            patch.setattr(nodes["dc2"].store.attachments, "build", no_room)
            await save(nodes["dc1"], LARGE)
            assert (await bodies(nodes["dc3"]))[2] == LARGE
        await nodes.converged()
        await check_holders(nodes["dc2"])


def no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.long
async def test_large_messages_on_a_slow_link_are_stored_or_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        users = [f"user{number}" for number in range(8)]
        for user in users:
            await nodes["dc1"].save("first", user=user)
        await nodes.converged()
        nodes.network.road("dc2", "dc1").bytes_per_s = nodes.network.road("dc1", "dc2").bytes_per_s = 500_000
        failed = dict[str, str]()

        async def deliver(number: int, user: str) -> None:
            try:
                await save(nodes["dc1"], message(number, random.Random(number).randbytes(4 << 20)), user)
            except UnavailableError as error:
                failed[user] = str(error)

        async with trio.open_nursery() as nursery:
            for number, user in enumerate(users):
                nursery.start_soon(deliver, number, user)
        stored = {user for user in users if len((await nodes["dc1"].view("INBOX", user)).messages) == 2}
        assert stored == set(users) - set(failed)
        assert len(stored) >= 2
        # The error says nothing of the message itself, because another try of it may have been stored.
        assert set(failed.values()) == {"a large message did not reach other nodes in time; try later"}
        nodes.network.road("dc2", "dc1").bytes_per_s = nodes.network.road("dc1", "dc2").bytes_per_s = None
        await nodes.converged()
