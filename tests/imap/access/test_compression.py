"""COMPRESS=DEFLATE (RFC 4978), as any client's zlib has it, and octets that stand for very many others."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import KIB, MIB
from replicator.imap.services import ImapServices
from replicator.imap.wire.connection import BLOCK_BYTES, WHOLE_LITERAL_BYTES
from replicator.imap.wire.deflate_stream import RECEIVED_BYTES, DamagedStreamError, DeflateStream
from replicator.mail.mailstore import NewMessage
from tests.imap.client import Client, connected, fill
from tests.mime.messages import cuts
from tests.one_node import HookedMail

EMPTY_BLOCKS = b"\0\0\0\xff\xff" * 10_000  # RFC 1951 section 3.2.4: blocks of no octets
LARGE = b"Subject: large\r\n\r\n" + bytes(range(1, 256)) * (20 * WHOLE_LITERAL_BYTES // 255)


class ClientStream(trio.abc.Stream):
    """The client's end of a compressed connection, with zlib's defaults."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._deflate, self._inflate = zlib.compressobj(wbits=-15), zlib.decompressobj(-15)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH))

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while received := await self.stream.receive_some(max_bytes):
            if data := self._inflate.decompress(received):
                return data
        return b""

    async def aclose(self) -> None:
        await self.stream.aclose()


@asynccontextmanager
async def compressed(served: ImapServices) -> AsyncIterator[Client]:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        assert await client.run("COMPRESS DEFLATE") == ["t OK Begin DEFLATE now"]
        client.stream = ClientStream(client.stream)
        yield client


async def test_all_that_follows_is_compressed(mail: HookedMail, served: ImapServices) -> None:
    inbox = await fill(mail)
    async with compressed(served) as client:
        for sign in ("", "+"):
            await client.send(f"a APPEND INBOX {{{len(LARGE)}{sign}}}\r\n")
            if not sign:
                assert await client.line() == "+ Send the literal"
            await client.send(LARGE + b"\r\n")
            assert "a OK" in (await client.until("a"))[-1]
        await client.send("t FETCH 2:3 BODY.PEEK[]\r\n")
        said = await client.octets()
        assert said.count(b"BODY[] {%d}\r\n%b)" % (len(LARGE), LARGE)) == 2
        await client.send("i IDLE\r\n")
        assert await client.line() == "+ idling"
        await mail.save(inbox, NewMessage(b"x"))
        assert await client.line() == "* 4 EXISTS"
        assert await client.line() == "* 4 RECENT"
        await client.send("DONE\r\n")
        assert (await client.line()).startswith("i OK")
    assert (await mail.bodies("alice"))[1:] == [LARGE, LARGE, b"x"]


async def test_compression_is_announced_where_it_can_begin(served: ImapServices) -> None:
    async with connected(served) as client:
        assert "COMPRESS" not in (await client.run("CAPABILITY"))[0]
        assert (await client.run("COMPRESS DEFLATE"))[0].startswith("t BAD COMPRESS needs a login")
        await client.log_in("alice")
        assert "COMPRESS=DEFLATE" in (await client.run("CAPABILITY"))[0].split()
        assert (await client.run("COMPRESS LZ4"))[0].startswith("t BAD LZ4 is not known here")
    async with compressed(served) as client:
        assert "COMPRESS" not in (await client.run("CAPABILITY"))[0]
        assert (await client.run("COMPRESS DEFLATE"))[0].startswith("t NO [COMPRESSIONACTIVE] ")


async def test_command_sent_ahead_ends_the_connection(served: ImapServices) -> None:
    """The server would take the command for compressed octets."""
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send("a COMPRESS DEFLATE\r\nb NOOP\r\n")
        assert await client.until("b") == ["a OK Begin DEFLATE now", ""]


async def test_damaged_octets_end_the_connection(served: ImapServices) -> None:
    async with compressed(served) as client:
        assert isinstance(client.stream, ClientStream)
        await client.stream.stream.send_all(b"a NOOP\r\n" * 10)
        assert (await client.line()).startswith("* BAD the compressed data is damaged")
        assert (await client.line()).startswith("* BYE the compressed data is damaged")
        assert await client.line() == ""


async def test_end_of_the_compressed_data_ends_the_connection(served: ImapServices) -> None:
    async with compressed(served) as client:
        assert isinstance(client.stream, ClientStream)
        ended = zlib.compressobj(wbits=-15)
        await client.stream.stream.send_all(ended.compress(b"a NOOP\r\n") + ended.flush() + b"rest")
        assert await client.line() == "a OK Nothing done"
        assert await client.line() == ""


async def test_endless_line_is_refused_like_any_other(served: ImapServices) -> None:
    async with compressed(served) as client:
        await client.send(b"a " + b"x" * (64 * MIB))
        assert (await client.line()).startswith("a BAD the command's text is longer than")
        assert (await client.line()).startswith("* BYE ")


@given(
    data=st.lists(st.sampled_from([b"a", bytes(1000), b"x" * 3000, bytes(range(256))]), max_size=5).map(b"".join),
    limit=st.sampled_from([1, 7, 258, 1000, 4 * KIB]),
    draw=st.data(),
)
async def test_pieces_are_no_larger_than_asked_for(data: bytes, limit: int, draw: st.DataObject) -> None:
    deflate = zlib.compressobj(wbits=-15)
    sent = deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)
    ours, theirs = trio.testing.memory_stream_pair()
    received, stream = bytearray(), DeflateStream(theirs)
    with trio.fail_after(60):
        for piece in draw.draw(cuts(sent)):
            await ours.send_all(piece)
            with trio.move_on_after(0):  # nothing is lost if the caller stops waiting
                received += await stream.receive_some(limit)
        await ours.send_eof()
        while some := await stream.receive_some(limit):
            assert len(some) <= limit
            received += some
    assert received == data


async def test_bomb_holds_neither_memory_nor_the_loop() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    deflate, size = zlib.compressobj(9, wbits=-15), 64 * MIB
    bomb = b"".join(deflate.compress(bytes(MIB)) for _ in range(64)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    assert len(bomb) < RECEIVED_BYTES + KIB  # it arrives at once, or nearly so
    stream, turns, given = DeflateStream(theirs), 0, 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    tracemalloc.start()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await ours.send_all(bomb)
            while given < size:
                given += len(await stream.receive_some(BLOCK_BYTES))
            nursery.cancel_scope.cancel()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert given == size
    assert turns >= size // BLOCK_BYTES
    assert peak_bytes < MIB


async def test_octets_that_stand_for_nothing_are_waited_for() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(EMPTY_BLOCKS)
    with trio.move_on_after(0.01) as scope:
        await DeflateStream(theirs).receive_some(10)
    assert scope.cancelled_caught


async def test_damage_is_an_error() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(b"\xff" * 10)
    with pytest.raises(DamagedStreamError):
        await DeflateStream(theirs).receive_some(10)
