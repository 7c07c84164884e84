"""Links that break in the middle of requests, and peers that stop reading or read slowly."""

import random
from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Command, RefusalCode, Refused, Reply, Saved, Snapshot, SyncNode
from protocol.values import UidSet
from replicator.errors import UnavailableError
from replicator.mail.mailstore import INBOX
from replicator.replication import timing
from replicator.replication.links import link as link_module
from replicator.replication.links.link import OUTPUT_BYTES, PeerLink
from replicator.replication.peer_requests import PeerRequests
from tests.replication.cluster import TIMEOUT_S, USER, Cluster, Node, cluster, until
from tests.store.harness import connection_of


async def mastered_by(nodes: Cluster, sid: str, *names: str) -> None:
    for name in names:
        if name != INBOX:
            await nodes[sid].mail.create_folder(USER, name)
        await nodes[sid].save("first", name)
    await nodes.converged()


async def test_saves_survive_breaking_links(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        acknowledged: Counter[str] = Counter()
        waited: list[float] = []
        running = 3

        async def client(node: Node) -> None:
            nonlocal running
            for number in range(25):
                body, began = f"{node.sid} {number}", trio.current_time()
                await node.save(body)
                waited.append(trio.current_time() - began)
                acknowledged[body] += 1
            running -= 1

        async def breaker(one: str, other: str, pause_s: float) -> None:
            while running:
                await trio.sleep(pause_s)
                for road in (nodes.network.road(one, other), nodes.network.road(other, one)):
                    road.bytes_per_s = 20_000  # slow, so that commands are always on the way
                nodes.network.cut((one, other))
                nodes.network.mend((one, other))

        async with trio.open_nursery() as nursery:
            for node in nodes.all():
                nursery.start_soon(client, node)
            nursery.start_soon(breaker, "dc1", "dc3", 0.71)
            nursery.start_soon(breaker, "dc1", "dc2", 1.13)
        await nodes.linked()
        await nodes.converged()
        assert max(waited) < timing.REQUEST_TIMEOUT_S
        for node in nodes.all():
            texts = Counter((await node.bodies()).values())
            assert texts == acknowledged + Counter(["first"])


async def test_save_with_lost_reply_makes_one_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        assert await nodes["dc3"].save("to learn who is the master") == 2
        back = nodes.network.road("dc1", "dc3")
        back.hold()
        uids: list[int] = []

        async def save() -> None:
            uids.append(await nodes["dc3"].save("once"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(save)
            view = await nodes["dc1"].view()
            await until(lambda: 3 in view.messages)
            assert not uids
            nodes.network.cut(("dc1", "dc3"))
            back.release()
        await nodes.converged()
        assert uids == [3]
        assert list((await nodes["dc3"].bodies()).values()).count("once") == 1


async def test_copy_with_lost_reply_is_not_made_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX, "Archive")
        node = nodes["dc3"]
        await node.flag(1, name="Archive")  # makes dc3 learn the master
        back = nodes.network.road("dc1", "dc3")
        back.hold()
        archive = await node.mail.folder(USER, "Archive")

        async def copy() -> None:
            with pytest.raises(UnavailableError, match="may or may not"):
                await node.mail.copy(await node.view(), UidSet.of([1]), archive)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy)
            view = await nodes["dc1"].view("Archive")
            await until(lambda: 2 in view.messages)
            nodes.network.cut(("dc1", "dc3"))
            back.release()
        await nodes.converged()
        assert await node.bodies("Archive") == {1: "first", 2: "first"}


async def test_request_over_slow_links_ends_at_the_deadline(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        node = nodes["dc3"]
        nodes.network.road("dc1", "dc3").bytes_per_s = 1000  # up, but too slow to be of use
        nodes.network.road("dc2", "dc3").bytes_per_s = 1000
        began = trio.current_time()
        inbox = await node.inbox()
        body = random.Random("does not compress well").randbytes(50_000).hex()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes["dc1"].save, body)
            nursery.start_soon(nodes["dc2"].save, body)
            await trio.sleep(0.5)
            with pytest.raises(UnavailableError, match="may or may not"):
                await node.mail.store_flags(
                    await node.mail.open_mailbox(inbox), UidSet.of([1]), added=frozenset({"\\Seen"})
                )
            assert trio.current_time() - began <= timing.REQUEST_TIMEOUT_S + 1
            for sender in ("dc1", "dc2"):
                nodes.network.road(sender, "dc3").bytes_per_s = None
        await nodes.converged()


async def test_large_message_keeps_a_slow_link_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        link = nodes["dc1"].coordinator.connections.link("dc2")
        nodes.network.road("dc1", "dc2").bytes_per_s = 100_000
        body = "large\r\n" * 300_000
        began = trio.current_time()
        assert await nodes["dc1"].save(body) == 2
        assert trio.current_time() - began > 5 * TIMEOUT_S
        assert nodes["dc1"].coordinator.connections.link("dc2") is link
        await nodes.converged()
        assert (await nodes["dc2"].bodies())[2] == body


async def test_peer_that_stops_reading_is_dropped_and_delays_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        for other in ("dc1", "dc2"):  # dc3 neither reads nor sends, as after SIGSTOP
            nodes.network.road(other, "dc3").hold()
            nodes.network.road("dc3", other).hold()
        link = nodes["dc1"].coordinator.connections.link("dc3")
        assert link is not None
        began, output_bytes = trio.current_time(), []
        for _ in range(20):
            await nodes["dc1"].save("x" * (1 << 20))
            output_bytes.append(len(link._output))
        assert trio.current_time() - began < TIMEOUT_S
        assert max(output_bytes) < OUTPUT_BYTES + (2 << 20)
        await until(lambda: nodes["dc1"].component == nodes["dc2"].component == {"dc1", "dc2"})
        assert trio.current_time() - began < 2 * TIMEOUT_S
        assert await nodes["dc2"].save("meanwhile") == 22
        status = await nodes["dc1"].report.node_status()
        assert [(peer.peer, peer.up, peer.error) for peer in status.links if peer.peer == "dc3"] == [
            ("dc3", False, "no answer in time")
        ]
        for other in ("dc1", "dc2"):
            nodes.network.road(other, "dc3").release()
            nodes.network.road("dc3", other).release()
        await nodes.linked()
        await nodes.converged()
        assert len(await nodes["dc3"].messages()) == 22


async def test_node_with_full_disk_keeps_its_links_and_catches_up_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        store = nodes["dc3"].store
        writer = connection_of(store)
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages}")
        link = nodes["dc3"].coordinator.connections.link("dc1")
        for number in range(20):
            await nodes["dc1"].save(random.Random(number).randbytes(5000).hex())
        await trio.sleep(2 * TIMEOUT_S)
        assert nodes["dc3"].coordinator.connections.link("dc1") is link
        assert len(await nodes["dc3"].messages()) < 21
        writer.execute("PRAGMA max_page_count = 1000000")
        await nodes.converged()
        assert len(await nodes["dc3"].messages()) == 21


async def test_entry_larger_than_the_output_limit_gets_through(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "OUTPUT_BYTES", 4_000)
    monkeypatch.setattr(link_module, "OUTPUT_MAX_BYTES", 12_000)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        for number in range(40):
            await one.mail.create_folder(USER, f"a/{number}".ljust(500, "x"))
        await nodes.converged()
        before = list(one.coordinator.connections.links)
        nodes.network.road("dc1", "dc2").bytes_per_s = 20_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.mail.rename_folder, USER, "a", "b")
            await trio.sleep(0.5)
            for feed in one.coordinator.feeds.values():
                feed.sender.start_again()
        await nodes.converged()
        assert len([folder for folder in await other.mail.folders(USER) if folder.name.startswith("b")]) == 41
        assert list(one.coordinator.connections.links) == before


async def test_unencodable_reply_becomes_a_refusal_and_keeps_the_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        link = nodes["dc1"].coordinator.connections.link("dc2")
        assert link is not None

        async def answer(_self: PeerRequests, _link: PeerLink, _command: Command) -> Reply:
            await trio.lowlevel.checkpoint()
            return Saved((1 << 40,), ())

        with monkeypatch.context() as patch:
            patch.setattr(PeerRequests, "_answer", answer)
            reply = await link.request(SyncNode())
        assert isinstance(reply, Refused)
        assert reply.code == RefusalCode.UNAVAILABLE
        assert isinstance(await link.request(SyncNode()), Snapshot)
        assert await nodes["dc1"].save("text") == 1
