"""Attachments, and replacements for damaged content, while they are written. Each belongs to one thread at a time."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

from replicator.store.attachments import linking, names
from replicator.store.attachments.files import Files, MissingError, Writer
from replicator.store.attachments.steps import Algorithm

T = TypeVar("T")

READ_BYTES = 1 << 20  # of content at once, to hash or copy it


@dataclass(frozen=True, slots=True)
class Holding:
    """A reference to an attachment, as its owner records it. `kept`: only this reference leads there, by its S-name."""

    hash: bytes
    holder: str
    kept: bool = False


class Site(Protocol):
    """The part of the store that constructions and replacements use."""

    files: Files
    algorithms: names.Algorithms

    def perform(self, algorithm: Algorithm[T]) -> T:
        """Run an algorithm. Raises OSError."""
        ...

    def new_levels(self, place: str) -> Sequence[str]:
        """Return the directories above, the upper one first, that are not known to survive a power cut."""
        ...

    def note_durable(self, levels: Sequence[str]) -> None:
        """Note that these directories survive a power cut."""
        ...

    def new_holder(self) -> str:
        """Return a holder's name that was never used; it is in flight from now on."""
        ...

    def settle(self, holder: str) -> None:
        """End the holder's time in flight."""
        ...


class Unfinished(ABC):
    """A write to the directory. As a context manager: abandoned unless finished."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove what was written, as far as the disk allows: a sweep removes the rest. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()


class Construction(Unfinished):
    """A new attachment of one holder, whose hash is known only at the end.

    Construction may raise OSError, and leaves nothing then.
    """

    def __init__(self, site: Site, holder: str) -> None:
        self._site, self._holder = site, holder
        self._built = names.s_name(holder)
        self._hasher = site.algorithms.current.new()
        self._writer: Writer | None = None
        self._place: str | None = None  # the H-name, once our holder may exist there
        self._is_over = False
        self.size_bytes = 0
        self._guarded(self._begin)

    def write(self, data: bytes) -> None:
        """Append to the content. On OSError the construction is abandoned."""
        assert not self._is_over, "a finished or abandoned construction takes no more data"
        assert self._writer is not None
        writer = self._writer
        self._guarded(lambda: writer.write(data))
        self._hasher.update(data)
        self.size_bytes += len(data)

    @property
    def is_over(self) -> bool:
        """True if it is finished or abandoned."""
        return self._is_over

    def finish(self) -> Holding:
        """Link an existing attachment of this content, or publish the one written. It is on disk then. Raises OSError.

        The holder is in flight until it is settled.
        """
        assert not self._is_over, "already finished or abandoned"
        return self._guarded(self._finish)

    def abandon(self) -> None:
        """See `Unfinished`."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            self._site.perform(linking.drop(self._built))
        if self._place is not None:  # the error came after the rename, or after a link
            with suppress(OSError):
                self._site.perform(linking.unlink(self._place, self._holder))
        self._site.settle(self._holder)

    def _begin(self) -> None:
        self._site.perform(linking.begin(self._built, self._holder))
        self._writer = self._site.files.open_new(f"{self._built}/{names.content(self._holder)}")

    def _finish(self) -> Holding:
        content_hash = self._hasher.digest()
        self._place = place = self._site.algorithms.h_name(content_hash)
        if self._site.perform(linking.link(place, self._holder)):
            self._close()
            if not self._is_sound(place, content_hash):
                self._put_in_place(place, content_hash)
            self._site.perform(linking.drop(self._built))
            is_shared = True
        else:
            self._make_durable(place)
            is_shared = self._site.perform(linking.publish(self._built, place, self._holder))
        self._is_over = True
        return Holding(content_hash, self._holder, kept=not is_shared)

    def _is_sound(self, place: str, content_hash: bytes) -> bool:
        """Return True if the existing content is sound: the new content must not be dropped in favour of damage."""
        hasher = self._site.algorithms.current.new()
        try:
            content = linking.content_in(self._site.files.names(place))
            for data in self._pieces(f"{place}/{content}") if content is not None else ():
                hasher.update(data)
        except (MissingError, OSError):
            return False
        return hasher.digest() == content_hash

    def _put_in_place(self, place: str, content_hash: bytes) -> None:
        """Replace the damaged content, for all its holders, with what was written. Raises OSError, MissingError.

        If the written content reads back differently, the disk is faulty.
        """
        with Replacement(self._site, place, content_hash, self._site.new_holder()) as replacement:
            for data in self._pieces(f"{self._built}/{names.content(self._holder)}"):
                replacement.write(data)
            try:
                replacement.finish()
            except ValueError as error:
                raise OSError(errno.EIO, f"{os.strerror(errno.EIO)}: {error}", self._built) from error

    def _pieces(self, name: str) -> Iterator[bytes]:
        at = 0
        while data := self._site.files.read(name, at, READ_BYTES):
            yield data
            at += len(data)

    def _make_durable(self, place: str) -> None:
        """Sync what was built.

        All names are made before the first sync, which writes them all if there is a journal.
        """
        new = self._site.new_levels(place)
        self._site.perform(linking.make_levels(new))
        assert self._writer is not None
        self._writer.sync()
        self._close()
        self._site.perform(linking.sync_built(self._built))
        self._site.perform(linking.sync_levels(new))
        self._site.note_durable(new)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (OSError, MissingError):
            self.abandon()
            raise


class Replacement(Unfinished):
    """New content for an attachment whose content is damaged or missing.

    Raises MissingError if there is no such attachment, and OSError.
    """

    def __init__(self, site: Site, place: str, content_hash: bytes, holder: str) -> None:
        self._site, self._place, self._expected, self._name = site, place, content_hash, holder
        self._hasher = site.algorithms.new(content_hash)
        self._file = f"{place}/{names.NEW_PREFIX}{holder}"
        self._is_over = False
        try:
            self._writer = site.files.open_new(self._file)
        except (OSError, MissingError):
            site.settle(holder)
            raise

    def write(self, data: bytes) -> None:
        """Append. Raises OSError."""
        self._writer.write(data)
        self._hasher.update(data)

    def finish(self) -> None:
        """Put the new content in place. Raises MissingError if the attachment was removed meanwhile, OSError.

        Raises ValueError if the content written has another hash.
        """
        try:
            if self._hasher.digest() != self._expected:
                raise ValueError(f"the content does not have the hash {self._expected.hex()}")
            self._writer.sync()
            self._writer.close()
            if not self._site.perform(linking.put_in_place(self._place, self._name)):
                raise MissingError(self._place)
            self._is_over = True
        finally:
            self.abandon()

    def abandon(self) -> None:
        """See `Unfinished`."""
        if not self._is_over:
            self._is_over = True
            with suppress(OSError):
                self._writer.close()
            with suppress(OSError):
                self._site.files.remove_file(self._file)
        self._site.settle(self._name)
