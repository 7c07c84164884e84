"""Parts of large messages at this node: chunk by chunk, each against its hash before anything of it is used.

What is damaged or missing comes from neighbours, for whoever reads it at once, and then in whole to take its place.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

import trio

from replicator.environment import ThreadRunner
from replicator.errors import ContentUnavailableError, DiskFullError, MailError, UnavailableError
from replicator.mailstore import CHUNK_BYTES
from replicator.replication.turns import in_turns
from replicator.store.attached import Attached
from replicator.store.attachments.construction import Construction, Holding, Replacement
from replicator.store.attachments.files import MissingError
from replicator.store.attachments.store import Attachments

log = logging.getLogger(__name__)

READ_AHEAD = 8  # chunks that are asked for at once: 1 MiB in memory, and a round trip for each
CHUNK_TIMEOUT_S = 60.0  # for one of them: 2 KB a second
LET_GO_TIMEOUT_S = 10.0  # of what nobody needs; a scrub does the rest
HEALING_MAX = 1000  # parts that are known to be damaged; of more a scrub is to be told

Source: TypeAlias = Callable[[Attached, int], Awaitable[bytes | None]]
"""A part and the number of a chunk -> the chunk, as its hash says, from other nodes; None: none of them gives it."""


class PartStore:
    """Belongs to the event loop. `elsewhere` asks neighbours."""

    def __init__(self, attachments: Attachments, run_in_thread: ThreadRunner, elsewhere: Source) -> None:
        self.attachments = attachments
        self._run_in_thread = run_in_thread
        self._elsewhere = elsewhere
        self._damaged_in, self._damaged_out = trio.open_memory_channel[tuple[Attached, Holding]](HEALING_MAX)

    async def run(self) -> None:
        """Put whole content in the place of what was found to be damaged, until cancelled."""
        async for attached, holding in self._damaged_out:
            with suppress(MailError):
                await self.heal(attached, holding)

    # ---- reading

    async def chunk(self, attached: Attached, holding: Holding, number: int) -> bytes:
        """One chunk, as its hash says. Raises ContentUnavailableError."""
        data = await self._here(holding, number)
        if data is not None and attached.verify(number, data):
            return data
        log.warning("chunk %d of attachment %s is damaged or missing", number, attached.hash.hex())
        with suppress(trio.WouldBlock):
            self._damaged_in.send_nowait((attached, holding))
        data = await self._there(attached, number, self._elsewhere)
        if data is None:
            raise ContentUnavailableError("a part of this message is damaged at every node that can be reached")
        return data

    async def read(self, what: Holding | bytes, start: int) -> bytes | None:
        """A chunk of a held part, or of that with a hash, for another node, which looks at it; None: it is not here."""
        return None if start % CHUNK_BYTES else await self._here(what, start // CHUNK_BYTES)

    async def is_whole(self, attached: Attached, holding: Holding) -> bool:
        """Whether each chunk is here as its hash says."""
        for number in range(attached.chunk_count):
            data = await self._here(holding, number)
            if data is None or not attached.verify(number, data):
                return False
        return True

    async def _here(self, what: Holding | bytes, number: int) -> bytes | None:
        read = partial(self.attachments.read, what, number * CHUNK_BYTES, CHUNK_BYTES)
        try:
            return await self._run_in_thread(read)
        except (MissingError, OSError, ValueError):
            return None

    async def _there(self, attached: Attached, number: int, source: Source) -> bytes | None:
        with trio.move_on_after(CHUNK_TIMEOUT_S):
            return await source(attached, number)
        return None

    # ---- holding

    async def obtain(self, attached: Attached, source: Source | None) -> Holding | None:
        """Hold a part, which is fetched if it is not here. None: it is not to be had. Raises DiskFullError, MailError.

        It is in flight until it is let go or settled.
        """
        with told():
            held = await self._run_in_thread(partial(self.attachments.link, attached.hash))
        if held is not None or source is None:
            return held
        with told():
            construction = await self._run_in_thread(self.attachments.build)
        if not await self._write(attached, source, construction):
            return None
        with told():
            return await self._run_in_thread(construction.finish)

    async def heal(self, attached: Attached, holding: Holding) -> bool:
        """Whether whole content was put in the place of what was damaged. Raises MailError."""

        async def source(attached: Attached, number: int) -> bytes | None:
            data = await self._here(holding, number)
            return (
                data if data is not None and attached.verify(number, data) else await self._elsewhere(attached, number)
            )

        with told():
            try:
                replacement = await self._run_in_thread(partial(self.attachments.replace, holding))
                if not await self._write(attached, source, replacement):
                    return False
                await self._run_in_thread(replacement.finish)
            except (MissingError, ValueError):  # it is gone by now
                return False
        log.warning("attachment %s is whole again", attached.hash.hex())
        return True

    async def let_go(self, holdings: Iterable[Holding]) -> None:
        """Nobody has recorded these. What cannot be let go now is found by a scrub."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LET_GO_TIMEOUT_S):
            for holding in holdings:
                try:
                    await self._run_in_thread(partial(self.attachments.unlink, holding))
                except OSError as error:
                    log.warning("an attachment cannot be let go: %s; `replicator scrub` will", error)
                    self.attachments.settle(holding.holder)

    async def _write(self, attached: Attached, source: Source, into: Construction | Replacement) -> bool:
        """Whether all of the part was to be had. What is not is abandoned."""
        is_complete = False
        try:
            for first in range(0, attached.chunk_count, READ_AHEAD):
                some = await self._ahead(attached, range(first, min(first + READ_AHEAD, attached.chunk_count)), source)
                if some is None:
                    return False
                with told():
                    await self._run_in_thread(partial(_write_all, into, some))
            is_complete = True
        finally:
            if not is_complete:
                with trio.CancelScope(shield=True):
                    await self._run_in_thread(into.abandon)
        return True

    async def _ahead(self, attached: Attached, numbers: range, source: Source) -> list[bytes] | None:
        found = dict[int, bytes]()

        async def fetch(number: int) -> None:
            data = await self._there(attached, number, source)
            if data is not None:
                found[number] = data

        await in_turns(fetch, numbers, READ_AHEAD)
        return [found[number] for number in numbers] if len(found) == len(numbers) else None


def _write_all(into: Construction | Replacement, chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        into.write(chunk)


@contextmanager
def told() -> Iterator[None]:
    """What the file system says, as an error for clients."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError("the disk of this node is full; try later") from error
        raise UnavailableError(f"attachments cannot be written at this node: {error.strerror}") from error
    except MissingError as error:
        raise UnavailableError(f"attachments cannot be written at this node: {error} was removed") from error
