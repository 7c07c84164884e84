"""Small bodies of messages that arrived without entries: many of them in one request."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import cast

import msgpack
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.commands import Content, FetchBodies, FetchHash, RefusalCode, Refused, Reply
from protocol.stream_codec import ProtocolError
from replicator.replication import timing
from replicator.replication.bodies.from_peers import backfill, peer_fetch, small_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.bodies.from_peers.small_fetch import SMALL_BYTES, TOGETHER, TOGETHER_BYTES, SmallFetch
from replicator.replication.links import handshake
from replicator.replication.links.link import PeerLink
from replicator.store.bodies.body_rows import StoredBody, lacking_count, replace_body
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store
from tests.effort import spread
from tests.replication.cluster import Cluster, Node, cluster, until
from tests.replication.log.truncating import forget_log

Answer = Callable[[Store, AnyFetch], Reply | None]


def watch(monkeypatch: pytest.MonkeyPatch, answer: Answer = lambda _store, _command: None) -> Counter[type]:
    """Count what nodes are asked for; let them answer by the function, and in the usual way where it returns None."""
    asked: Counter[type] = Counter()
    usual = peer_fetch.answer_fetch

    async def answering(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
        asked[type(command)] += 1
        return answer(store, command) or await usual(store, link, command, read_chunk)

    monkeypatch.setattr(peer_fetch, "answer_fetch", answering)
    return asked


async def come_with_a_new_disk(nodes: Cluster, sid: str, within_s: float = 120.0) -> Node:
    """Start the node anew, without its mail and without entries that bring it; return it when it has all bodies."""
    await nodes.converged()
    await nodes.stop(sid)
    nodes.erase(sid)
    for node in nodes.all():
        await forget_log(node)
    await nodes.start(sid)
    await nodes.linked()
    await nodes.converged()
    await trio.sleep(timing.BACKFILL_PATIENCE_S)
    await until(lambda: not nodes[sid].coordinator.bodies._backfill.lacking, within_s)
    assert not await nodes[sid].store.read(lacking_count)
    return nodes[sid]


def _write(body: StoredBody, tx: Transaction) -> None:
    replace_body(tx.connection, body)


async def assert_has(node: Node, texts: list[str]) -> None:
    hashes = await node.store.read(lambda reader: reader.execute("SELECT hash FROM content").fetchall())
    assert {found for (found,) in hashes} == {StoredBody.of(text.encode()).content_hash for text in texts}


async def test_small_bodies_come_many_in_a_request(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = watch(monkeypatch)
    texts = [f"text {number}" for number in range(3 * TOGETHER // 2)]
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for text in texts:
            await nodes["dc1"].save(text)
        node = await come_with_a_new_disk(nodes, "dc2")
        await assert_has(node, texts)
        assert asked == {FetchBodies: 2}


async def test_reply_has_as_many_bodies_as_have_room_and_large_ones_come_one_by_one(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a reply is bounded, because other requests wait behind it."""
    asked = watch(monkeypatch)
    dice = random.Random(1)
    texts = [dice.randbytes(TOGETHER_BYTES // 6).hex() for _ in range(9)]  # which zstd packs into half of that
    texts += [dice.randbytes(SMALL_BYTES // 2 + 1).hex(), "small"]
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for text in texts:
            await nodes["dc1"].save(text)
        node = await come_with_a_new_disk(nodes, "dc2")
        assert asked[FetchBodies] == 2
        assert asked[FetchHash] == 1
        assert sorted((await node.bodies()).values()) == sorted(texts)


@pytest.mark.parametrize("reason", spread(3, ["damaged", "refused", "nonsense", "empty", "no such capability"]))
async def test_bodies_that_do_not_come_together_are_fetched_one_by_one(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    replies: dict[str, Reply] = {
        "refused": Refused(RefusalCode.UNAVAILABLE, "later"),
        "nonsense": Content(b"\xc1"),
        "empty": Content(b"\x90"),
    }
    asked = watch(monkeypatch, lambda _, command: replies.get(reason) if isinstance(command, FetchBodies) else None)
    if reason == "no such capability":
        monkeypatch.setattr(handshake, "BODIES", "OTHER")
    texts = [f"text {number}" for number in range(5)]
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        for text in texts:
            await nodes["dc1"].save(text)
        await nodes.converged()
        if reason == "damaged":
            wrong = StoredBody.of(b"wrong")
            for text, sid in zip(texts, ("dc1", "dc2", "dc1", "dc2", "dc1"), strict=True):
                name = StoredBody.of(text.encode()).content_hash
                body = StoredBody(name, len(text), wrong.packed)
                await nodes[sid].store.write(partial(_write, body))
        await assert_has(await come_with_a_new_disk(nodes, "dc3"), texts)
        assert bool(asked[FetchBodies]) == (reason != "no such capability")
        assert bool(asked[FetchHash]) == (
            reason != "damaged"
        )  # else each of two neighbours sends what the other cannot


@pytest.mark.parametrize("silent", ["dc1", "dc2"])
async def test_silent_neighbour_holds_up_small_bodies_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    for module in (small_fetch, backfill):
        monkeypatch.setattr(module, "TOGETHER", 4)
    monkeypatch.setattr(backfill, "TOGETHER_AT_ONCE", 1)
    usual = peer_fetch.answer_fetch
    texts = [f"text {number}" for number in range(40)]
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        for text in texts:
            await nodes["dc1"].save(text)
        await nodes.converged()
        store = nodes[silent].store

        async def answering(asked: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
            if isinstance(command, FetchBodies) and asked is store:
                await trio.sleep_forever()
            return await usual(asked, link, command, read_chunk)

        monkeypatch.setattr(peer_fetch, "answer_fetch", answering)
        await assert_has(await come_with_a_new_disk(nodes, "dc3", 2 * timing.SMALL_FETCH_PATIENCE_S), texts)


async def test_link_that_breaks_between_replies_leaves_the_rest_to_others(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[PeerLink] = []

    texts = [random.Random(number).randbytes(SMALL_BYTES // 3).hex() for number in range(6)]
    usual = SmallFetch._ask

    async def ask(self: SmallFetch, link: PeerLink, hashes: Sequence[bytes]) -> tuple[int, list[StoredBody]]:
        links.append(link)
        if len(links) == 2:
            link.scope.cancel()
        return await usual(self, link, hashes)

    monkeypatch.setattr(SmallFetch, "_ask", ask)
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        for text in texts:
            await nodes["dc1"].save(text)
        await assert_has(await come_with_a_new_disk(nodes, "dc3"), texts)
        assert len(links) > 2


async def test_hashes_that_are_none_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        with pytest.raises(ProtocolError, match="33 bytes, which are not whole hashes"):
            await small_fetch.answer(nodes["dc1"].store, bytes(33))
        none = await small_fetch.answer(nodes["dc1"].store, bytes(32 * (TOGETHER + 1)))
        assert msgpack.unpackb(none.message) == [None] * TOGETHER


BODIES = [StoredBody.of(b"text %d" % number) for number in range(3)]
HASHES = [body.content_hash for body in BODIES]
ANSWERS = st.lists(st.sampled_from([None, b"", 7, *(body.packed for body in BODIES)]) | st.binary(), max_size=4)


@given(st.binary() | ANSWERS.map(lambda answers: cast("bytes", msgpack.packb(answers))))
def test_any_reply_is_read_or_passed_over(reply: bytes) -> None:
    answered, bodies = small_fetch.unpacked(reply, HASHES)
    assert 0 <= answered <= len(HASHES)
    assert all(body in BODIES[:answered] for body in bodies)


NESTED = reduce(lambda inner, _: b"\x93" + 3 * inner, range(12), b"\xc0")  # arrays of three arrays each


@pytest.mark.parametrize(
    "reply",
    [
        b"\xdd\x01\x00\x00\x00" + bytes(1 << 24),  # an array of 16 million zeros
        b"\xdc\x00\x04" + 4 * b"\xc0",  # one answer more than was asked for
        b"\x91\x81\xc0\xc0",
        NESTED,
    ],
)
def test_reply_that_no_node_sends_is_passed_over(reply: bytes) -> None:
    assert small_fetch.unpacked(reply, HASHES) == (0, [])


def test_body_that_is_packed_badly_is_not_taken() -> None:
    """A body from a peer is stored as it came, and sent on."""
    empty_block, last_block = b"\x00\x00\x00", b"\x09\x00\x00x"
    frame = b"\x28\xb5\x2f\xfd\x20\x01"  # of one octet
    name = hashlib.sha256(b"x").digest()
    for blocks, taken in ((1, True), (1000, False)):
        packed = cast("bytes", msgpack.packb([frame + blocks * empty_block + last_block]))
        assert bool(small_fetch.unpacked(packed, [name])[1]) == taken


def test_reply_is_held_to_sizes() -> None:
    large = StoredBody.of(bytes(SMALL_BYTES + 1))
    fits = StoredBody.of(bytes(SMALL_BYTES))
    packed = cast("bytes", msgpack.packb([large.packed, fits.packed, b"", fits.packed]))
    hashes = [large.content_hash, fits.content_hash, HASHES[0], HASHES[1]]
    assert small_fetch.unpacked(packed, hashes) == (4, [fits])
