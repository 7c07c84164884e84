"""The attachment store as the rest of the node uses it. Safe to call from any thread; everything blocks.

A holder is *in flight* from before its file exists until its owner calls `settle`, having recorded the holding or
released it. A sweep leaves it alone until then.
"""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from replicator.store.attachments import linking, names
from replicator.store.attachments.construction import Construction, Holding, Replacement
from replicator.store.attachments.files import Files, MissingError, StepOutcome
from replicator.store.attachments.steps import Algorithm, ListDirectory, run

T = TypeVar("T")

READ_TRIES = 3
TRIAL_BYTES = 64 * 1024  # the size of a small attachment


class Attachments:
    """One process's access to the directory.

    `owner`: 32 hex digits, new at every start, so that a node restored from a backup never reuses a name. Only one
    process of a SID may run at a time. The directory is made when it is first needed.
    """

    def __init__(
        self,
        files: Files,
        sid: str,
        owner: str,
        *,
        algorithms: names.Algorithms | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if names.parse_owner_file(f"{sid}.{owner}") != (sid, owner):
            raise ValueError(
                f"{sid!r}, {owner!r}: expected a node id, and {2 * names.OWNER_BYTES} hex digits in lower case"
            )
        self.files, self.sid, self.owner = files, sid, owner
        self.algorithms = algorithms or names.Algorithms()
        self._sleep = sleep
        self._lock = threading.Lock()
        self._counter = itertools.count()
        self._in_flight: set[str] = set()
        self._durable: set[str] = set()  # levels (of 65,792) synced by this process, with all above them
        self._is_introduced = False

    # ---- references

    def link(self, content_hash: bytes) -> Holding | None:
        """Link an existing attachment, or return None if there is none. On disk then, in flight until settled.

        Raises OSError.
        """
        holder = self.new_holder()
        try:
            is_held = self.perform(linking.link(self.algorithms.h_name(content_hash), holder))
        except (OSError, ValueError):
            self.settle(holder)  # a sweep removes the holder, if it was made
            raise
        if is_held:
            return Holding(content_hash, holder)
        self.settle(holder)
        return None

    def build(self) -> Construction:
        """Begin a new attachment. Raises OSError, MissingError."""
        try:
            return Construction(self, self.new_holder())
        except MissingError:
            with self._lock:
                if self._owner_is_there():
                    raise
                self._durable.clear()  # the whole directory was removed
                self._introduce()
            return Construction(self, self.new_holder())

    def is_held(self, holding: Holding) -> bool:
        """Return True if the holder exists and has some content, which is not verified. Raises OSError."""
        try:
            self.files.size(f"{names.holders(self.place(holding))}/{holding.holder}")
            self.size(holding)
        except MissingError:
            return False
        return True

    def relink(self, holding: Holding) -> bool:
        """Make a holder's lost file again. Return False if the attachment does not exist. Raises OSError."""
        owner = names.owner_of(holding.holder)
        if owner is not None:  # so that later sweeps know its node
            self.files.create_file(names.owner_file(self.sid, owner))
            self.files.sync_directory(names.OWNERS)
        return self.perform(linking.link(self.place(holding), holding.holder))

    def unlink(self, holding: Holding) -> None:
        """Release a reference that its owner no longer records. May be called again.

        Raises OSError: a sweep does the rest.
        """
        place = self.place(holding)
        try:
            self.perform(linking.drop(place) if holding.kept else linking.unlink(place, holding.holder))
        finally:
            self.settle(holding.holder)

    def settle(self, holder: str) -> None:
        """End a holder's time in flight: its owner has recorded it durably, or never will.

        From now on sweeps check it.
        """
        with self._lock:
            self._in_flight.discard(holder)

    def in_flight(self) -> frozenset[str]:
        """Return the holders, S-names among them, that only this process knows of."""
        with self._lock:
            return frozenset(self._in_flight)

    def try_to_write(self) -> None:
        """Write and remove as much data as a small attachment has. Raises OSError, MissingError."""
        self.files.make_directory("")
        trial = f"trial.{self.sid}"
        self.files.remove_file(trial)  # left by a process that died at this point
        writer = self.files.open_new(trial)
        try:
            writer.write(bytes(TRIAL_BYTES))
        finally:
            writer.close()
            self.files.remove_file(trial)

    def free_bytes(self) -> int | None:
        """See `Files`."""
        return self.files.free_bytes()

    # ---- content

    def place(self, what: Holding | bytes) -> str:
        """Return the H-name or S-name that a reference leads to, or the H-name of a hash. Raises ValueError."""
        if isinstance(what, bytes):
            return self.algorithms.h_name(what)
        return names.s_name(what.holder) if what.kept else self.algorithms.h_name(what.hash)

    def read(self, what: Holding | bytes, start: int, length: int) -> bytes:
        """Read bytes of the content, fewer at its end; the hash is not verified. Raises MissingError, OSError."""
        return self._on_content(what, lambda name: self.files.read(name, start, length))

    def size(self, what: Holding | bytes) -> int:
        """Return the size of the content in bytes. Raises MissingError, OSError."""
        return self._on_content(what, self.files.size)

    def replace(self, what: Holding | bytes) -> Replacement:
        """Begin a replacement for damaged content. Raises MissingError if the attachment does not exist, OSError."""
        content_hash = what if isinstance(what, bytes) else what.hash
        return Replacement(self, self.place(what), content_hash, self.new_holder())

    # ---- for constructions and sweeps

    def perform(self, algorithm: Algorithm[T]) -> T:
        """Run an algorithm. Raises OSError."""
        return run(self.files, algorithm, self._sleep)

    def new_levels(self, place: str) -> Sequence[str]:
        """Return the directories above that this process has not made durable, the upper one first."""
        return [level for level in names.levels(place) if level not in self._durable]

    def note_durable(self, levels: Sequence[str]) -> None:
        """Note that this process has made these directories durable."""
        self._durable.update(levels)

    def _on_content(self, what: Holding | bytes, work: Callable[[str], T]) -> T:
        """Run `work` on the content's file, again if it vanished after it was listed: healing may rename content."""
        place = self.place(what)
        for _ in range(READ_TRIES):
            found = ListDirectory(place).on(self.files)
            content = None if isinstance(found, StepOutcome) else linking.content_in(found)
            if content is None:
                break
            try:
                return work(f"{place}/{content}")
            except MissingError:
                continue
        raise MissingError(place)

    def new_holder(self) -> str:
        """See `Site`."""
        with self._lock:
            if not self._is_introduced:
                self._introduce()
                self._is_introduced = True
            holder = names.new_holder(self.owner, next(self._counter))
            self._in_flight.add(holder)
        return holder

    def _owner_is_there(self) -> bool:
        try:
            return self.files.size(names.owner_file(self.sid, self.owner)) == 0
        except MissingError:
            return False

    def _introduce(self) -> None:
        """Write the owner file before any name has this owner, so that the directory alone tells the owner's node."""
        own = names.owner_file(self.sid, self.owner)
        self.files.make_directory("")
        self.files.make_directory(names.OWNERS)
        if self.files.create_file(own) is not StepOutcome.DONE:
            raise OSError(errno.EEXIST, "the owner must be new at every start", own)
        try:
            self.files.sync_directory(names.OWNERS)
            self.files.sync_directory("")
        except OSError:
            self.files.remove_file(own)
            raise
