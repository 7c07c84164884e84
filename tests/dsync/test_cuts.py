"""Connections that end at any place, and masters that send nonsense: nobody loses mail, and the next sync mends all."""

from __future__ import annotations

import re
from copy import deepcopy
from random import Random
from typing import TypeAlias

import pytest
import trio
import trio.testing

from replicator.dsync.rules.tree import INBOX
from replicator.mail.dovecot_guids import guid_of
from tests.dsync.dovecot import MAILDIR, PASSWORD, Dovecot, dovecot, needs_dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.sides import USER, DovecotSide, Master, MemorySide, door, served
from tests.effort import examples

pytestmark = needs_dovecot


HalfCloseable: TypeAlias = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


class CutStream(trio.abc.Stream):
    """A stream that ends once so many bytes have come in, or gone out. `came` has all that came in."""

    def __init__(self, stream: trio.abc.Stream, after_in: int = 1 << 30, after_out: int = 1 << 30) -> None:
        self._stream = stream
        self._left_in = after_in
        self._left_out = after_out
        self.came = bytearray()
        self.went = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = bytes(await self._stream.receive_some(max_bytes))[: self._left_in] if self._left_in else b""
        self._left_in -= len(data)
        self.came += data
        if not data:
            await self._stream.aclose()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(bytes(data)[: self._left_out])
        self._left_out -= min(len(data), self._left_out)
        self.went += len(data)
        if not self._left_out:
            await self._stream.aclose()
            raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def two_sides(server: Dovecot) -> MemoryReplica:
    """Give both sides mails of their own, some under the same UIDs, and a folder."""
    random = Random(1)
    replica = MemoryReplica()
    inbox = replica.create(INBOX, b"\xff" * 16)
    replica.create(("Here",), random.randbytes(16)).append(random.randbytes(16), b"Subject: h\r\n\r\n")
    for number in range(3):
        inbox.append(random.randbytes(16), b"Subject: r%d\r\n\r\n.\r\n" % number)
        server.save(USER, b"Subject: d%d\r\n\r\n..\r\n" % number)
    server.save(USER, b"Subject: d\r\n\r\n" + 20 * (900 * b"x" + b"\r\n"))
    server.do("mailbox", "create", "-u", USER, "There")
    return replica


def guids(replica: MemoryReplica) -> set[bytes]:
    return {mail.guid for box in replica.boxes.values() for mail in box.stored.values()}


async def two_sides_with_gaps(server: Dovecot) -> MemoryReplica:
    """Let Dovecot forget that it had a mail under a UID that the other side gives to a new one."""
    random, replica = Random(1), MemoryReplica()
    inbox = replica.create(INBOX, b"\xff" * 16)
    for number in range(2):
        server.save(USER, b"Subject: d%d\r\n\r\n" % number)
    async with door(lambda _: replica) as address:
        assert (await Master(server, address).sync()).returncode == 0
    for number in range(4):
        server.save(USER, b"Subject: e%d\r\n\r\n" % number + 20 * (900 * b"x" + b"\r\n"))
    for uid in (3, 4):
        await DovecotSide(server).expunge(uid)
    server.forget_expunges(USER)
    inbox.append(random.randbytes(16), b"Subject: r\r\n\r\n")
    return replica


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("gaps", [False, True])
async def test_the_connection_may_end_anywhere(direction: str, *, gaps: bool) -> None:
    """Every sync gets a little farther than the one before, and what was not done is done later."""
    with dovecot(MAILDIR) as server:
        replica = await two_sides_with_gaps(server) if gaps else two_sides(server)
        before = guids(replica), {guid_of(guid) for _, guid, _ in server.mails(USER)}
        step, limit = examples(701, 97), 0
        while True:
            limit += step
            cuts = (limit, 1 << 30) if direction == "in" else (1 << 30, limit)
            async with door(lambda _: replica, lambda stream: CutStream(stream, *cuts)) as address:  # noqa: B023
                done = await Master(server, address).sync()
            assert before[0] <= guids(replica), limit
            assert before[1] <= {guid_of(guid) for _, guid, _ in server.mails(USER)}, limit
            if done.returncode == 0:
                break
            assert done.returncode == 75, done
        async with door(lambda _: replica) as address:
            assert (await Master(server, address).sync()).returncode == 0
        assert await MemorySide(replica, Random(1)).shown() == await DovecotSide(server).shown()
        assert len(await DovecotSide(server).shown()) == (5 if gaps else 7), "each mail is there once"
        assert limit > 2 * step


@pytest.fixture
async def recorded() -> tuple[bytes, MemoryReplica]:
    """Record what a Dovecot sends in a sync, and return it with the replica as it was before."""
    streams = list[CutStream]()

    def record(stream: trio.abc.Stream) -> CutStream:
        streams.append(CutStream(stream))
        return streams[-1]

    with dovecot() as server:
        replica = two_sides(server)
        before = deepcopy(replica)
        async with door(lambda _: replica, record) as address:
            assert (await Master(server, address).sync()).returncode == 0
    return bytes(streams[0].came), before


async def send_and_leave(client: HalfCloseable, wire: bytes) -> None:
    await client.send_all(wire)
    await client.send_eof()


async def replay(replica: MemoryReplica, wire: bytes) -> bytes:
    """Let a master say this, whatever it is told, and leave. Return what it was told."""
    client, stream = trio.testing.memory_stream_pair()
    told = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served(lambda _: replica), stream)
        nursery.start_soon(send_and_leave, client, wire)
        while data := await client.receive_some(65536):
            told += data
    return bytes(told)


async def test_masters_that_leave_out_repeat_or_swap_lines(recorded: tuple[bytes, MemoryReplica]) -> None:
    """Nothing here is lost, whatever is wrong, unless a whole list says that it is gone."""
    wire, before = recorded
    lines = re.split(rb"(?<=\n)", wire)
    random = Random(7)
    endings = set()
    for at in range(0, len(lines) - 1, examples(3, 1)):
        for wrong in (
            [*lines[:at], *lines[at + 1 :]],
            [*lines[: at + 1], *lines[at:]],
            [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
            [*lines[:at], random.randbytes(20) + b"\n", *lines[at + 1 :]],
        ):
            replica = deepcopy(before)
            told = await replay(replica, b"".join(wrong))
            endings.add(b"\nF" in told)
            for name, box in before.boxes.items():
                if name in replica.boxes:
                    kept = {mail.guid for mail in replica.boxes[name].stored.values()}
                    assert {mail.guid for mail in box.stored.values()} <= kept, (at, wrong[at : at + 2])
    assert endings == {True, False}
    assert PASSWORD.encode() not in b"".join(lines)
