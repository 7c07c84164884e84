"""Message texts as doors have them: on their way in, and read again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from replicator.mailstore import CHUNK_BYTES
from replicator.mime.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text in memory. See `replicator.mailstore.Text`."""

    raw: bytes = field(repr=False)

    @property
    def skeleton(self) -> Skeleton:
        """See `Text`."""
        return Skeleton(self.raw)

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """See `Text`."""
        for at in range(start, min(end, len(self.raw)), CHUNK_BYTES):
            yield self.raw[at : min(at + CHUNK_BYTES, end)]


@dataclass(frozen=True, slots=True)
class WholeText:
    """A text that has come in, in memory. See `replicator.mailstore.ReceivedText`."""

    raw: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """See `ReceivedText`."""
        return len(self.raw)


class Gathering:
    """Gathers a text in memory. See `replicator.mailstore.TextSink`."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    async def write(self, data: bytes) -> None:
        """See `TextSink`."""
        self._chunks.append(data)

    async def finish(self) -> WholeText:
        """See `TextSink`."""
        return WholeText(b"".join(self._chunks))
