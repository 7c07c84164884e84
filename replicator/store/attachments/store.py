"""The attachment store as the rest of the node uses it. Any thread may call; everything blocks.

A holder is *in flight* from before its file exists until its owner says, by `settle`, that it has recorded the holding
(or let it go): a sweep leaves it alone for so long.
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
from replicator.store.attachments.files import Files, MissingError, Outcome
from replicator.store.attachments.steps import Algorithm, ListDirectory, run

T = TypeVar("T")

READ_TRIES = 3
TRIAL_BYTES = 64 * 1024  # as large as small attachments


class Attachments:
    """One process's access to the directory.

    `owner`: 32 hex digits, new at every start, so that a node whose data came back from a backup names nothing twice.
    Only one process of a SID may be at work at a time. The directory is made when something is to be in it.
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
            raise ValueError(f"{sid!r}, {owner!r}: a node id, and {2 * names.OWNER_BYTES} hex digits in lower case")
        self.files, self.sid, self.owner = files, sid, owner
        self.algorithms = algorithms or names.Algorithms()
        self._sleep = sleep
        self._lock = threading.Lock()
        self._counter = itertools.count()
        self._in_flight: set[str] = set()
        self._durable: set[str] = set()  # of the 65,792 levels: those that were synced from here, with all above
        self._is_introduced = False

    # ---- references

    def link(self, content_hash: bytes) -> Holding | None:
        """Hold an attachment that is there; None: it is not. On disk then, in flight until settled. Raises OSError."""
        holder = self.new_holder()
        try:
            is_held = self.perform(linking.link(self.algorithms.h_name(content_hash), holder))
        except (OSError, ValueError):
            self.settle(holder)  # a sweep finds it, if it is there
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
                self._durable.clear()  # somebody has removed the whole directory
                self._introduce()
            return Construction(self, self.new_holder())

    def is_held(self, holding: Holding) -> bool:
        """Whether its holder is there, and some content; nobody looks at that. Raises OSError."""
        try:
            self.files.size(f"{names.holders(self.place(holding))}/{holding.holder}")
            self.size(holding)
        except MissingError:
            return False
        return True

    def relink(self, holding: Holding) -> bool:
        """Make a holder's file again that was lost. False: the attachment is not there. Raises OSError."""
        owner = names.owner_of(holding.holder)
        if owner is not None:  # a sweep is to know later whose it is
            self.files.create_file(names.owner_file(self.sid, owner))
            self.files.sync_directory(names.OWNERS)
        return self.perform(linking.link(self.place(holding), holding.holder))

    def unlink(self, holding: Holding) -> None:
        """Let go of it. Its owner records it no more; may be called again. Raises OSError: a sweep does the rest."""
        place = self.place(holding)
        try:
            self.perform(linking.drop(place) if holding.kept else linking.unlink(place, holding.holder))
        finally:
            self.settle(holding.holder)

    def settle(self, holder: str) -> None:
        """Its owner has recorded the holding, durably, or will never do so: from here on a sweep asks for it."""
        with self._lock:
            self._in_flight.discard(holder)

    def in_flight(self) -> frozenset[str]:
        """Holders, S-names among them, that only this process knows of."""
        with self._lock:
            return frozenset(self._in_flight)

    def try_to_write(self) -> None:
        """Write as much as an attachment has, and take it away. Raises OSError, MissingError."""
        self.files.make_directory("")
        trial = f"trial.{self.sid}"
        self.files.remove_file(trial)  # of a process that died there
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
        """Where it lies: a holding's H-name or S-name, or the H-name of a hash. Raises ValueError."""
        if isinstance(what, bytes):
            return self.algorithms.h_name(what)
        return names.s_name(what.holder) if what.kept else self.algorithms.h_name(what.hash)

    def read(self, what: Holding | bytes, start: int, length: int) -> bytes:
        """Bytes of the content, fewer where it ends; nobody has looked at its hash. Raises MissingError, OSError."""
        return self._on_content(what, lambda name: self.files.read(name, start, length))

    def size(self, what: Holding | bytes) -> int:
        """Bytes of the content. Raises MissingError, OSError."""
        return self._on_content(what, self.files.size)

    def replace(self, what: Holding | bytes) -> Replacement:
        """Begin new bytes for one whose content is damaged. Raises MissingError if it is not there, OSError."""
        content_hash = what if isinstance(what, bytes) else what.hash
        return Replacement(self, self.place(what), content_hash, self.new_holder())

    # ---- for constructions and sweeps

    def perform(self, algorithm: Algorithm[T]) -> T:
        """Run it. Raises OSError."""
        return run(self.files, algorithm, self._sleep)

    def new_levels(self, place: str) -> Sequence[str]:
        """Those above that this process has not made to survive a power cut, the upper one first."""
        return [level for level in names.levels(place) if level not in self._durable]

    def note_durable(self, levels: Sequence[str]) -> None:
        """It has."""
        self._durable.update(levels)

    def _on_content(self, what: Holding | bytes, work: Callable[[str], T]) -> T:
        """A file that went after it was listed is looked for again: healing gives missing content another name."""
        place = self.place(what)
        for _ in range(READ_TRIES):
            found = ListDirectory(place).on(self.files)
            content = None if isinstance(found, Outcome) else linking.content_in(found)
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
        """Before anything has this owner's name: whose it is then follows from the directory, without any database."""
        own = names.owner_file(self.sid, self.owner)
        self.files.make_directory("")
        self.files.make_directory(names.OWNERS)
        if self.files.create_file(own) is not Outcome.DONE:
            raise OSError(errno.EEXIST, "an owner is new at every start, and this one is not", own)
        try:
            self.files.sync_directory(names.OWNERS)
            self.files.sync_directory("")
        except OSError:
            self.files.remove_file(own)
            raise
