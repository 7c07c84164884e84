"""Message bodies on their way in and out of the mail store, in pieces, and what they may be."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from io import BytesIO
from typing import Protocol

from protocol.units import KIB, MIB
from replicator.mime.skeleton import BEGIN_BYTES, Gap, Skeleton

MESSAGE_BYTES_MAX = 128 * MIB  # by LMTP and IMAP: 90 MiB of files in base64, more than large mail providers accept
SLOWEST_BYTES_S = 256 * KIB  # bytes a second: the slowest line over which large messages are supported
PAUSES_S = 30 * 60.0  # total pauses that a client may make while it sends a message


def sending_s(size_bytes: int) -> float:
    """Return the seconds that a client may take to send a message of that size, with pauses and on a slow line."""
    return PAUSES_S + size_bytes / SLOWEST_BYTES_S


class ReceivedBody(Protocol):
    """A message body received completely, valid for `MailStore.save` within the block that received it."""

    @property
    def size_bytes(self) -> int:
        """Size of the body in octets."""
        ...


class BodySink(Protocol):
    """Receiver of one message body. A large body is written to disk as it arrives."""

    async def write(self, data: bytes) -> None:
        """Take the next octets; wait for the disk if need be. Raises MailError, DiskFullError among them."""
        ...

    async def finish(self) -> ReceivedBody:
        """End the body and return it. Raises MailError."""
        ...


class BodyReader(Protocol):
    """A stored message body, wherever its octets lie."""

    @property
    def skeleton(self) -> Skeleton:
        """The message's structure: the body without its attachments. See `needs_whole` for its limits."""
        ...

    async def check(self, start: int, end: int) -> None:
        """Check that each attachment overlapping these octets can be read. Raises ContentUnavailableError.

        Only the beginning of each is read: damage further on is found when the rest is read.
        """
        ...

    def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the octets from `start` up to `end`, in pieces of at most 128 KiB. Raises ContentUnavailableError.

        The error may come after some pieces were yielded: a length already announced cannot be kept then.
        """
        ...


async def read_all(body: BodyReader) -> bytes:
    """Return a whole body in memory. Raises ContentUnavailableError."""
    whole = BytesIO()  # takes pieces as they come, and gives its octets away: nothing copies all of them at once
    async with aclosing(body.read(0, body.skeleton.size_bytes)) as chunks:
        async for chunk in chunks:
            whole.write(chunk)
    return whole.getvalue()


async def read_begin(body: BodyReader, gap: Gap) -> Skeleton:
    """Return the body's skeleton with the beginning of a gap. Raises ContentUnavailableError."""
    begin, start = bytearray(), body.skeleton.start(gap.at)
    async with aclosing(body.read(start, start + min(gap.size_bytes, BEGIN_BYTES))) as chunks:
        async for chunk in chunks:
            begin += chunk
    return body.skeleton.knowing(gap, bytes(begin))


def needs_whole(body: BodyReader, *, with_structure: bool) -> bool:
    """Return True if the skeleton lacks what is needed, so that the whole body must be read.

    A skeleton lacks the structure of a message with thousands of small parts, and the header if that is huge.
    """
    skeleton = body.skeleton
    return skeleton.lacks_header or (with_structure and skeleton.header_only)
