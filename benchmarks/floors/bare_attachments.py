"""The system calls that a first store of an attachment cannot do without, with little around them."""

from __future__ import annotations

import hashlib
import itertools
import os
from contextlib import suppress
from pathlib import Path

from replicator.store.attachments import names
from replicator.store.attachments.ordering import is_ordered

CHUNK_BYTES = 64 << 10
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
OWNER = "0" * 32


class Bare:
    """A directory like a store's (docs/attachments.md), for single stores: no look-ups, no errors, no retries."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._is_ordered = is_ordered(directory)
        self._numbers = itertools.count()
        self._made: set[str] = set()
        self._algorithms = names.Algorithms()

    def store(self, data: bytes) -> None:
        holder = names.new_holder(OWNER, next(self._numbers))
        built = names.s_name(holder)
        self._make_levels(built)
        self._make(built)
        self._make(names.holders(built))
        self._finish(os.open(f"{names.holders(built)}/{holder}", NEW, 0o666, dir_fd=self._root), is_content=False)
        content = os.open(f"{built}/{names.content(holder)}", NEW, 0o666, dir_fd=self._root)
        digest = hashlib.sha256()
        for start in range(0, len(data), CHUNK_BYTES):
            os.write(content, data[start : start + CHUNK_BYTES])
            digest.update(data[start : start + CHUNK_BYTES])
        self._publish(built, self._algorithms.h_name(digest.digest()), content)

    def _publish(self, built: str, place: str, content: int) -> None:
        new = self._make_levels(place)
        self._finish(content, is_content=True)
        if not self._is_ordered:
            for directory in (names.holders(built), built, *map(names.parent, reversed(new))):
                self._sync(directory)
        os.rename(built, place, src_dir_fd=self._root, dst_dir_fd=self._root)
        self._sync(names.parent(place))
        if not self._is_ordered:
            self._sync(names.parent(built))

    def _make_levels(self, place: str) -> list[str]:
        new = [level for level in names.levels(place) if level not in self._made]
        for level in new:
            with suppress(FileExistsError):
                self._make(level)
        self._made.update(new)
        return new

    def _make(self, name: str) -> None:
        os.mkdir(name, dir_fd=self._root)

    def _finish(self, descriptor: int, *, is_content: bool) -> None:
        """Sync content even where one sync covers all earlier writes: `utime` makes the content the last of them."""
        if is_content and self._is_ordered:
            os.utime(descriptor)
        if is_content or not self._is_ordered:
            os.fsync(descriptor)
        os.close(descriptor)

    def _sync(self, directory: str) -> None:
        descriptor = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        os.fsync(descriptor)
        os.close(descriptor)
