"""The handshake of a link: HELLO on both sides, silence, garbage, second connections, compression."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Done, Hello, Ping, RefusalCode, Refused
from protocol.stream_codec import Decoder, Response
from replicator.config import Address, LimitsConfig
from replicator.replication import timing
from replicator.status import LinkStatus
from tests.replication.cluster import EPOCH_MS, TIMEOUT_S, Cluster, Node, cluster, entries_as_commands, until
from tests.replication.stranger import HELLO, Stranger, approach, reasons, visit

FIVE_MINUTES_MS = 5 * 60 * 1000


@asynccontextmanager
async def single_node(tmp_path: Path, clock: MockClock, sid: str) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, clock, 2, start=[sid]) as nodes:
        yield nodes


async def link_of(node: Node) -> LinkStatus:
    (link,) = (await node.report.node_status()).links
    return link


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"version": 1}, RefusalCode.VERSION, "dc1 speaks protocol version 1, and dc2 speaks 7"),
        ({"cluster": "other"}, RefusalCode.CLUSTER, "dc1 belongs to cluster 'other', and dc2 to 'mail'"),
        ({"sid": "dc2", "origin": "dc2.x"}, RefusalCode.SAME_SID, "give each its own `node.id`"),
        ({"sid": "dc9", "origin": "dc9.x"}, RefusalCode.UNKNOWN_SID, "'dc9' is not the [[peer]] that 'dc2' expects"),
        ({"origin": "dc2.x"}, RefusalCode.UNKNOWN_SID, "the origin 'dc2.x' does not belong to node 'dc1'"),
        ({"capabilities": ("SCOPE=user",)}, RefusalCode.POLICY, "dc1 has SCOPE=user, and dc2 has SCOPE=mailbox;"),
        ({"clock_ms": EPOCH_MS + FIVE_MINUTES_MS + 2000}, RefusalCode.CLOCK, "the clocks are 302 s apart"),
        ({"clock_ms": EPOCH_MS - FIVE_MINUTES_MS - 2000}, RefusalCode.CLOCK, "the clocks are 302 s apart"),
    ],
)  # fmt: skip
async def test_wrong_hello_is_refused_with_the_reason(
    tmp_path: Path, autojump_clock: MockClock, changes: dict[str, object], code: str, text: str
) -> None:
    async with single_node(tmp_path, autojump_clock, "dc2") as nodes:
        stranger = await approach(nodes)
        answer = await stranger.greet(**changes)
        assert isinstance(answer, Response)
        assert isinstance(answer.reply, Refused)
        assert answer.reply.code == code
        assert text in answer.reply.text
        if code == RefusalCode.CLOCK:
            assert f"dc1 has {changes['clock_ms']} ms" in answer.reply.text
            assert f"dc2 {EPOCH_MS}" in answer.reply.text
        assert await stranger.ended()
        assert not (await link_of(nodes["dc2"])).up


async def test_small_clock_difference_is_accepted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with single_node(tmp_path, autojump_clock, "dc2") as nodes:
        answer = await (await approach(nodes)).greet(clock_ms=EPOCH_MS + FIVE_MINUTES_MS - 2000)
        assert isinstance(answer, Response)
        assert isinstance(answer.reply, Hello)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\xff\xfe" * 100, b"a PING\r\n", b"* PING\r\n", b"\r\n"]
)
async def test_garbage_instead_of_hello_ends_the_connection(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async with single_node(tmp_path, autojump_clock, "dc2") as nodes:
        caplog.set_level(logging.WARNING)
        stranger = await approach(nodes)
        await stranger.stream.send_all(data)
        assert await stranger.ended()
        (reason,) = reasons(caplog.records)
        assert reason.startswith("a connection ended before its HELLO was accepted")
        async with visit(nodes):
            assert (await link_of(nodes["dc2"])).up


async def test_silence_instead_of_hello_ends_the_connection(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with single_node(tmp_path, autojump_clock, "dc2") as nodes:
        began = trio.current_time()
        silent = await approach(nodes)
        assert await silent.ended()
        assert timing.HANDSHAKE_TIMEOUT_S <= trio.current_time() - began < timing.HANDSHAKE_TIMEOUT_S + 1


async def test_silent_connections_do_not_keep_a_peer_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with single_node(tmp_path, autojump_clock, "dc2") as nodes:
        began = trio.current_time()
        oldest, *others = [await approach(nodes) for _ in range(LimitsConfig().peer_strangers_per_address)]
        async with visit(nodes):
            assert trio.current_time() == began
            assert await oldest.ended()
            assert all([await stranger.ended() for stranger in others])
            assert trio.current_time() - began >= timing.HANDSHAKE_TIMEOUT_S


async def test_a_second_connection_of_a_peer_replaces_the_first(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with single_node(tmp_path, autojump_clock, "dc2") as nodes:
        connections = nodes["dc2"].coordinator.connections
        async with visit(nodes) as first:
            before = connections.link("dc1")
            async with visit(nodes) as second:
                assert await first.ended()
                await until(lambda: connections.link("dc1") not in {None, before})
                assert nodes["dc2"].coordinator.feeds.keys() == {"dc1"}
                assert not await second.ended()
        await until(lambda: connections.link("dc1") is None)
        assert (await link_of(nodes["dc2"])).error == "the peer closed the connection"


# ---- the node that dials -----------------------------------------------------------------------------------------


async def accept_dial(nodes: Cluster) -> Stranger:
    """Play dc2: accept the next connection of dc1, and read its HELLO."""
    send, receive = trio.open_memory_channel[trio.abc.Stream](0)

    async def accept(stream: trio.abc.Stream) -> None:
        del nodes.network.accepting["dc2"]
        await send.send(stream)

    nodes.network.accepting["dc2"] = accept
    stranger = Stranger(await receive.receive())
    hello = await stranger.next_command(Hello)
    assert (hello.sid, hello.cluster) == ("dc1", "mail")
    return stranger


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Refused(RefusalCode.CLUSTER, "not of us"), "dc2 refuses the link: not of us"),
        (replace(HELLO, sid="dc3", origin="dc3.x"), "node 'dc3' is not the [[peer]] that 'dc1' expects"),
        (replace(HELLO, sid="dc1"), "both nodes have the id 'dc1'; give each its own `node.id`"),
        (replace(HELLO, sid="dc2", origin="dc2.x", version=8), "dc2 speaks protocol version 8, and dc1 speaks 7"),
    ],
)
async def test_status_shows_why_a_link_is_down(
    tmp_path: Path, autojump_clock: MockClock, answer: Hello | Refused, error: str
) -> None:
    async with single_node(tmp_path, autojump_clock, "dc1") as nodes:
        stranger = await accept_dial(nodes)
        await stranger.reply("hello", answer)
        assert await stranger.ended()
        await until(lambda: nodes["dc1"].coordinator.connections.peers["dc2"].error == error)


async def test_node_gives_up_a_silent_peer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with single_node(tmp_path, autojump_clock, "dc1") as nodes:
        await accept_dial(nodes)
        await until(lambda: nodes["dc1"].coordinator.connections.peers["dc2"].error == "no answer in time")


@pytest.mark.parametrize("caller", ["dc1", "dc2"])
async def test_defect_that_a_peer_triggers_ends_only_the_connection(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    caller: str,
) -> None:
    (peer,) = {"dc1", "dc2"} - {caller}

    def fail(_: Decoder, data: bytes) -> None:
        raise IndexError(f"no rule for {data!r}")

    async def accept(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"* TROUBLE")
        await trio.sleep_forever()

    async with single_node(tmp_path, autojump_clock, caller) as nodes:
        nodes.network.accepting[peer] = accept
        with monkeypatch.context() as defect:
            defect.setattr(Decoder, "feed", fail)
            await until(lambda: "a defect in this program ended the link" in caplog.text)
        del nodes.network.accepting[peer]
        await nodes.start(peer)
        await nodes.linked()


async def test_starting_peer_is_dialled_before_it_numbers_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with single_node(tmp_path, autojump_clock, "dc1") as nodes:
        await trio.sleep(1000)  # by then dc1 dials only rarely
        began = trio.current_time()
        await nodes.start("dc2")
        await nodes.linked()
        assert trio.current_time() - began < TIMEOUT_S


async def test_links_between_machines_are_compressed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries_as_commands(monkeypatch)  # batches have bodies compressed as the database has them
    sizes: dict[str, int] = {}
    body = "all work and no play makes Jack a dull boy\r\n" * 2000
    for host in ("127.0.0.1", "192.0.2.1"):
        directory = tmp_path / host
        async with cluster(directory, autojump_clock, 2, start=["dc1"]) as nodes:
            nodes.peer_address = Address(host, 1)
            await nodes.stop("dc1")
            await nodes.start()
            await nodes.linked()
            for number in range(3):
                assert await nodes["dc2"].save(f"{number} {body}") == number + 1
            await nodes["dc1"].flag(1, 2, 3)
            await nodes.converged()
            assert await nodes["dc1"].bodies() == {uid: f"{uid - 1} {body}" for uid in (1, 2, 3)}
            sizes[host] = sum(map(len, nodes.network.road("dc2", "dc1").sent))
    assert sizes["192.0.2.1"] < sizes["127.0.0.1"] / 20


async def test_peer_that_does_not_know_blocks_gets_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"], has_tls=False) as nodes, visit(nodes) as stranger:
        await stranger.send(Ping(), "a")
        assert await stranger.next_command(Done) == Done()


async def test_damaged_compressed_stream_ends_the_link_and_nodes_reconnect(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        nodes.peer_address = Address("192.0.2.1", 1)
        await nodes.stop("dc1")
        await nodes.start()
        await nodes.linked()
        before = nodes["dc1"].coordinator.connections.link("dc2")
        assert before is not None
        before._append(b"\0\0\0\0")
        await until(lambda: nodes["dc1"].coordinator.connections.link("dc2") not in {None, before})
        await nodes.linked()
        await nodes["dc1"].save("text")
        await nodes.converged()
