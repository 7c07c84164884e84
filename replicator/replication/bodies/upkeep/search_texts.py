"""Search texts of this node's bodies: one task makes them shortly after a body has arrived (design section 6).

It compares all bodies with all search texts at the start and each hour. Of bodies without one it makes search texts in
the order of their arrival, in the node's spare time, and those of bodies that have left it removes. So nothing needs to
be remembered, whichever way bodies come and go. Without the file, and while it is behind, SEARCH reads bodies.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import trio

from protocol.units import MIB
from replicator.errors import ContentUnavailableError, MailError, UnavailableError
from replicator.mail.mailstore import SearchTextMaker, SearchTextSlice, read_all
from replicator.mime.skeleton import Skeleton
from replicator.replication import timing
from replicator.replication.bodies.upkeep.spare_time import SpareTime
from replicator.runtime.environment import Environment
from replicator.status import SearchTextStatus
from replicator.store.bodies import body_lists
from replicator.store.bodies.body_lists import ListedBody
from replicator.store.bodies.body_reader import OpenBody, skeleton_of
from replicator.store.search_texts.form import FILE, SearchFileDamagedError
from replicator.store.search_texts.reader import SearchTextReader
from replicator.store.search_texts.writer import SearchTextWriter, remove_file
from replicator.store.store import Store

log = logging.getLogger(__name__)

BODIES_AT_ONCE, BYTES_AT_ONCE = 64, 256 << 10  # bodies of a turn, and their size on disk: some 50 ms of work
HASHES_AT_ONCE = 5000  # of a turn of the comparison: some milliseconds
AWAITED_MAX = 100_000  # ids in memory of bodies whose search text is to be made
WHOLE_MAX_BYTES = 8 * MIB  # largest body that is read whole for the texts in its attachments


class SearchTexts:
    """The search texts, and the task that makes them. Belongs to the event loop. `open_body` opens one by its hash."""

    def __init__(self, store: Store, environment: Environment, open_body: OpenBody, spare_time: SpareTime) -> None:
        self._store = store
        self._path: Path = store.path.with_name(FILE)
        self._open_database = environment.open_database
        self._run_in_thread = environment.run_in_thread
        self._open_body = open_body
        self._spare_time = spare_time
        self._file: SearchTextWriter | None = None
        self._reader: SearchTextReader | None = None  # while the file is open
        self._reading = trio.Lock()
        self._pause = trio.CancelScope()
        self._begins_anew = False
        self._made = 0
        self._awaited: deque[int] = deque()  # ids of bodies, ascending
        self._uncounted = 0  # bodies found to await theirs, beyond those
        self._seen = 0  # the highest id that was looked at
        self._size_bytes = 0

    @property
    def status(self) -> SearchTextStatus | None:
        """Progress of the search texts; None: there are none, by the configuration or because the file fails."""
        if self._file is None:
            return None
        if self._begins_anew:
            return SearchTextStatus(0, self._made + len(self._awaited) + self._uncounted, self._size_bytes)
        return SearchTextStatus(self._made, len(self._awaited) + self._uncounted, self._size_bytes)

    async def of(self, hashes: Sequence[bytes]) -> SearchTextSlice:
        """See `MailStore.search_texts`. A file that fails has none."""
        async with self._reading:
            if self._reader is not None:
                try:
                    return await self._run_in_thread(partial(self._reader.texts, hashes))
                except SearchFileDamagedError as error:
                    self._note_damage(error)
                except MailError as error:  # the task meets it, too, and says so
                    log.debug("cannot read search texts now: %s", error)
        return SearchTextSlice({}, len(hashes))

    def begin_anew(self) -> None:
        """Have the task delete the file and make all search texts anew."""
        self._begins_anew = True
        self._pause.cancel()

    async def check(self, hashes: Sequence[bytes]) -> None:
        """Read the search texts of these bodies from the disk, and begin anew if they are damaged.

        A door that has found them so asks for it; the file may have been begun anew since.
        """
        async with self._reading:
            if self._reader is not None:
                await self._run_in_thread(self._reader.close)  # which may have them in memory, as they were
        await self.of(hashes)

    def _note_damage(self, error: SearchFileDamagedError) -> None:
        """Begin anew, and say so once: searches and the task meet the same damage until the file is closed."""
        if not self._begins_anew:
            log.warning("%s; search texts are made anew", error)
        self.begin_anew()

    async def run(self, maker: SearchTextMaker | None) -> None:
        """Make search texts until cancelled. Without a maker, delete those that an earlier run has left."""
        if maker is None:
            await self._discard()
            return
        while True:
            has_failed = False
            try:
                await self._open(maker)
                await self._keep(maker)
            except SearchFileDamagedError as error:
                self._note_damage(error)
            except MailError as error:  # without search texts, SEARCH reads bodies
                log.warning("cannot make search texts now, trying again later: %s", error)
                has_failed = True
            finally:
                await self._close()
            if has_failed:
                await trio.sleep(timing.SEARCH_TEXTS_EVERY_S)
            if self._begins_anew:
                self._begins_anew = False
                await self._discard()

    async def _open(self, maker: SearchTextMaker) -> None:
        opened = partial(SearchTextWriter, self._path, maker.version, self._open_database)
        self._file = await self._run_in_thread(opened)
        self._reader = SearchTextReader(self._path, maker.version)

    async def _close(self) -> None:
        with trio.CancelScope(shield=True):
            async with self._reading:
                opened, self._reader, self._file = (self._reader, self._file), None, None
                self._made = self._uncounted = 0
                self._awaited.clear()
                for closed in opened:
                    if closed is not None:
                        await self._run_in_thread(closed.close)

    async def _discard(self) -> None:
        try:
            await self._run_in_thread(partial(remove_file, self._path))
        except MailError as error:
            log.warning("cannot delete search texts now: %s", error)
            await trio.sleep(timing.SEARCH_TEXTS_EVERY_S)

    # ---- following the bodies

    async def _keep(self, maker: SearchTextMaker) -> None:
        """Keep the file equal to the bodies until it is to be begun anew. Raises MailError."""
        assert self._file is not None, "it is open"
        compare_at = trio.current_time()
        while not self._begins_anew:
            if trio.current_time() >= compare_at:
                await self._compare(self._file)
                compare_at = trio.current_time() + timing.SEARCH_TEXTS_COMPARE_S
            end = self._store.tail.end
            await self._catch_up(self._file, maker)
            if self._uncounted:
                compare_at = trio.current_time()
            elif end == self._store.tail.end:
                with trio.move_on_after(timing.SEARCH_TEXTS_EVERY_S) as self._pause:
                    if not self._begins_anew:
                        await self._store.tail.grown()

    async def _compare(self, file: SearchTextWriter) -> None:
        """Find the bodies without a row and the rows without a body. Raises MailError."""
        self._seen = await self._store.read(body_lists.last_id)
        after: bytes | None = b""
        made, missing, uncounted = 0, list[int](), 0
        while after is not None and not self._begins_anew:
            async with self._spare_time.turn():
                look = partial(body_lists.ids_by_hash, after=after, count=HASHES_AT_ONCE)
                here = await self._store.read(look)
                last = [*here][-1] if len(here) == HASHES_AT_ONCE else None
                kept = await self._run_in_thread(partial(file.hashes, after, last))
                if surplus := kept - here.keys():
                    await self._run_in_thread(partial(file.remove, surplus))
            made += len(kept) - len(surplus)
            lacking = [number for content_hash, number in here.items() if content_hash not in kept]
            room = AWAITED_MAX - len(missing)
            missing += lacking[:room]
            uncounted += len(lacking[room:])
            after = last
        self._made, self._uncounted = made, uncounted
        self._awaited = deque(sorted(number for number in missing if number <= self._seen))
        self._size_bytes = await self._run_in_thread(file.size_bytes)

    async def _catch_up(self, file: SearchTextWriter, maker: SearchTextMaker) -> None:
        """Make search texts until no body awaits its own. Raises MailError."""
        while not self._begins_anew:
            if not self._awaited:
                look = partial(body_lists.ids_after, body_id=self._seen, count=AWAITED_MAX)
                if self._uncounted or not (new := await self._store.read(look)):
                    return
                self._awaited, self._seen = deque(new), new[-1]
            async with self._spare_time.turn():
                await self._make_some(file, maker)

    async def _make_some(self, file: SearchTextWriter, maker: SearchTextMaker) -> None:
        ids = [*islice(self._awaited, BODIES_AT_ONCE)]
        look = partial(body_lists.bodies_by_id, ids=ids, size_bytes=BYTES_AT_ONCE)
        bodies, looked_at = await self._store.read(look)
        made, unmade = await self._run_in_thread(partial(_made, maker, bodies))
        for content_hash in unmade:
            text = await self._of_whole(content_hash, maker)
            if text is not None:
                made[content_hash] = text
        await self._run_in_thread(partial(file.write, made))
        self._made += len(made)
        for _ in range(looked_at):
            self._awaited.popleft()
        self._size_bytes = await self._run_in_thread(file.size_bytes)

    async def _of_whole(self, content_hash: bytes, maker: SearchTextMaker) -> bytes | None:
        """Return the search text of a body with text in its attachments; None if it cannot be read now.

        The next comparison finds the body again then.
        """
        with trio.move_on_after(timing.BODIES_PATIENCE_S):
            try:
                body = await self._open_body(content_hash)
                if body is None:
                    return None
                if body.skeleton.size_bytes > WHOLE_MAX_BYTES:
                    return b""
                whole = Skeleton(await read_all(body))
            except (ContentUnavailableError, UnavailableError):
                return None
            return await self._run_in_thread(partial(maker.make, whole))
        return None


def _made(maker: SearchTextMaker, bodies: Sequence[ListedBody]) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return search texts by hash, and the hashes of bodies that are to be read for them. Damaged ones are left out."""
    made, unmade = dict[bytes, bytes](), list[bytes]()
    for content_hash, message in bodies:
        skeleton = skeleton_of(message)
        if skeleton is None:
            continue
        if maker.lacks_text(skeleton):
            unmade.append(content_hash)
        else:
            made[content_hash] = maker.make(skeleton)
    return made, unmade
