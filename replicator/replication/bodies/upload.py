"""Bodies being received from clients: small ones in memory, large ones written to the attachment store as they arrive.

All of them together take at most half of the disk space that would be free without them, so that slow or endless
senders cannot fill the disk.
"""

from __future__ import annotations

from functools import partial

import trio

from protocol.commands import Parts
from replicator.errors import DiskFullError, MailError
from replicator.replication.bodies.attachments import told
from replicator.runtime.environment import ThreadRunner
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.store import Attachments
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.bodies.body_writer import BodyWriter
from replicator.store.bodies.recipe import Recipe


class Room:
    """Disk space taken by bodies that are being received."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments
        self.taken_bytes = 0

    def check(self) -> None:
        """Raise DiskFullError if bodies being received take more space than is left. Blocks."""
        free_bytes = self._attachments.free_bytes()
        if free_bytes is not None and self.taken_bytes > free_bytes:
            raise DiskFullError("the disk of this node has no room for all messages being received; try later")


class Sink:
    """A body being received (`mailstore.BodySink`). The caller that closes it releases `holdings`."""

    def __init__(
        self, attachments: Attachments, room: Room, run_in_thread: ThreadRunner, inline_max_bytes: int
    ) -> None:
        self.holdings: tuple[Holding, ...] = ()
        self._attachments = attachments
        self._room = room
        self._taken_bytes = 0  # this body's share of `Room.taken_bytes`
        self._run_in_thread = run_in_thread
        self._inline_max_bytes = inline_max_bytes
        self._waiting = bytearray()
        self._intake: BodyWriter[Holding] | None = None

    async def write(self, data: bytes) -> None:
        """See `BodySink`."""
        self._waiting += data
        if len(self._waiting) > max(self._inline_max_bytes, CHUNK_BYTES):
            await self._pass_on()

    async def finish(self) -> StoredBody:
        """See `BodySink`."""
        if self._intake is None and len(self._waiting) <= self._inline_max_bytes:
            return StoredBody.of(bytes(self._waiting))
        await self._pass_on()
        assert self._intake is not None
        with told():
            taken_in = await self._run_in_thread(self._intake.finish)
        self.holdings = taken_in.holdings
        if not taken_in.recipe.attached:  # its parts are too small, or none can be cut out
            return await self._run_in_thread(partial(_whole, taken_in.recipe))
        parts = Parts(taken_in.content_hash, taken_in.size_bytes, taken_in.recipe.pack())
        return StoredBody.of_recipe(parts, taken_in.holdings)

    async def close(self) -> None:
        """Discard an unfinished body. May be called again."""
        self._room.taken_bytes -= self._taken_bytes
        self._taken_bytes = 0
        if self._intake is not None:
            with trio.CancelScope(shield=True):
                await self._run_in_thread(self._intake.abandon)

    async def _pass_on(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        self._room.taken_bytes += len(data)
        self._taken_bytes += len(data)
        if self._intake is None:
            self._intake = BodyWriter(self._attachments, self._inline_max_bytes)
        try:
            with told():
                await self._run_in_thread(partial(self._write, self._intake, data))
        except MailError:  # the client may send on for long, and none of it is kept
            await self.close()
            raise

    def _write(self, intake: BodyWriter[Holding], data: bytes) -> None:
        self._room.check()
        intake.write(data)


def _whole(recipe: Recipe) -> StoredBody:
    """Return a body without attachments, hashed and compressed, which takes long for a large one."""
    return StoredBody.of(b"".join(piece for piece in recipe.pieces if isinstance(piece, bytes)))
