"""A file system in memory that can lose power, fill up and break.

It has the semantics of POSIX. Without `replaces_empty`, a directory never replaces another one, as on CIFS. Every step
is atomic, so threads may share it. Names lead to nodes as on a real disk: an open file stays the same node when its
directory is renamed or removed.
"""

from __future__ import annotations

import copy
import errno
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from replicator.store.attachments.files import MissingError, StepOutcome

UNSYNCED_MAX = 200
"""Highest number of unsynced changes; older ones are written back, as any kernel does after a while."""


@dataclass(eq=False)
class Node:
    """A file (`names` is None) or a directory, with the part of it that would survive a power cut (`safe_*`)."""

    names: dict[str, Node] | None = None
    data: bytes = b""
    safe_names: dict[str, Node] = field(default_factory=dict)
    safe_data: bytes = b""


@dataclass(frozen=True, eq=False)
class Change:
    """One step's unsynced changes to directories. A power cut keeps all of them or none."""

    entries: tuple[tuple[Node, str, Node | None], ...]  # directory, name, its new node or None


class MemoryWriter:
    def __init__(self, files: MemoryFiles, node: Node) -> None:
        self._files, self._node = files, node

    def write(self, data: bytes) -> None:
        self._files.write(self._node, data)

    def sync(self) -> None:
        self._files.sync_file(self._node)

    def close(self) -> None:
        pass


class MemoryFiles:
    def __init__(self, *, replaces_empty: bool = True) -> None:
        self.replaces_empty = replaces_empty
        self.is_full = False
        self.is_broken = False
        self._root = Node(names={})
        self._changes: list[Change] = []
        self._unsynced: list[Node] = []  # files
        self._lock = threading.RLock()

    # ---- Files

    def make_directory(self, name: str) -> StepOutcome:
        return self._create(name, Node(names={})) if name else StepOutcome.EXISTS

    def create_file(self, name: str) -> StepOutcome:
        return self._create(name, Node())

    def open_new(self, name: str) -> MemoryWriter:
        node = Node()
        match self._create(name, node):
            case StepOutcome.MISSING:
                raise MissingError(name)
            case StepOutcome.EXISTS:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        return MemoryWriter(self, node)

    def rename(self, old: str, new: str) -> StepOutcome:
        with self._lock:
            self._check(adds=False)
            source, target = self._above(old), self._above(new)
            if source is None or target is None or (node := source[0].get(source[2])) is None:
                return StepOutcome.MISSING
            there = target[0].get(target[2])
            if there is not None and node.names is not None:
                if there.names is None:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), new)
                if there.names or not self.replaces_empty:
                    return StepOutcome.EXISTS
            elif there is not None and there.names is not None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new)
            self._change((source[1], source[2], None), (target[1], target[2], node))
            return StepOutcome.DONE

    def remove_file(self, name: str) -> StepOutcome:
        return self._remove(name, is_directory=False)

    def remove_directory(self, name: str) -> StepOutcome:
        return self._remove(name, is_directory=True)

    def sync_directory(self, name: str) -> StepOutcome:
        with self._lock:
            self._check(adds=False)
            node = self._find(name)
            if node is None:
                return StepOutcome.MISSING
            safe = self._changes_up_to_sync(node)
            for change in safe:
                _make_safe(change)
            self._changes = [change for change in self._changes if change not in safe]
            return StepOutcome.DONE

    def names(self, name: str) -> Iterator[str]:
        with self._lock:
            node = self._find(name)
            if node is None or node.names is None:
                raise MissingError(name)
            found = list(node.names)
        yield from found

    def read(self, name: str, start: int, length: int) -> bytes:
        with self._lock:
            return self._file(name).data[start : start + length]

    def size(self, name: str) -> int:
        with self._lock:
            return len(self._file(name).data)

    def free_bytes(self) -> int | None:
        return None

    # ---- crashes, damage and inspection

    def crash(self, dice: random.Random) -> None:
        """Lose power: keep some of the unsynced changes, and a prefix of unsynced bytes, perhaps zero-filled."""
        with self._lock:
            for change in self._changes:
                if dice.random() < 0.5:
                    _make_safe(change)
            for node in self._unsynced:
                kept = dice.randrange(len(node.safe_data), len(node.data) + 1)
                lost = bytes(len(node.data) - kept) if dice.random() < 0.5 else b""  # blocks that were not written
                node.safe_data = node.data[:kept] + lost
            self._changes, self._unsynced = [], []
            _restore(self._root)

    def tree(self) -> dict[str, bytes | None]:
        """Return all names, with the bytes of files and None for directories."""
        with self._lock:
            return dict(_walk(self._root, ""))

    def certain(self, name: str) -> bytes | frozenset[str] | None:
        """Return a file's bytes or a directory's names that every power cut keeps; None if a cut may lose them."""
        with self._lock:
            node = self._root
            for level in name.split("/"):
                child = (node.names or {}).get(level)
                if child is None or node.safe_names.get(level) is not child:
                    return None
                node = child
            if node.names is not None:
                return frozenset(leaf for leaf, child in node.names.items() if node.safe_names.get(leaf) is child)
            return node.data if node.data == node.safe_data else None

    def corrupt(self, name: str, data: bytes) -> None:
        """Replace a file's bytes, on disk too."""
        with self._lock:
            node = self._file(name)
            node.data = node.safe_data = data

    def copy(self) -> MemoryFiles:
        """Return a copy with all unsynced changes."""
        with self._lock:
            other = MemoryFiles(replaces_empty=self.replaces_empty)
            state = copy.deepcopy((self._root, self._changes, self._unsynced))
            other._root, other._changes, other._unsynced = state
            return other

    # ---- implementation

    def write(self, node: Node, data: bytes) -> None:
        with self._lock:
            self._check(adds=True)
            if not any(one is node for one in self._unsynced):
                self._unsynced.append(node)
            node.data += data

    def sync_file(self, node: Node) -> None:
        with self._lock:
            self._check(adds=False)
            node.safe_data = node.data
            self._unsynced = [one for one in self._unsynced if one is not node]

    def _create(self, name: str, node: Node) -> StepOutcome:
        with self._lock:
            self._check(adds=True)
            above = self._above(name)
            if above is None:
                return StepOutcome.MISSING
            if above[2] in above[0]:
                return StepOutcome.EXISTS
            self._change((above[1], above[2], node))
            return StepOutcome.DONE

    def _remove(self, name: str, *, is_directory: bool) -> StepOutcome:
        with self._lock:
            self._check(adds=False)
            above = self._above(name)
            if above is None or (node := above[0].get(above[2])) is None:
                return StepOutcome.MISSING
            if (node.names is not None) != is_directory:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), name)
            if node.names:
                return StepOutcome.EXISTS
            self._change((above[1], above[2], None))
            return StepOutcome.DONE

    def _change(self, *entries: tuple[Node, str, Node | None]) -> None:
        for directory, leaf, node in entries:
            assert directory.names is not None
            directory.names.pop(leaf, None)
            if node is not None:
                directory.names[leaf] = node
        self._changes.append(Change(entries))
        if len(self._changes) > UNSYNCED_MAX:
            _make_safe(self._changes.pop(0))

    def _changes_up_to_sync(self, node: Node) -> list[Change]:
        """Return the changes of a directory, and all earlier changes elsewhere to the names that these changed."""
        found: list[Change] = []
        names: set[tuple[Node, str]] = set()
        for change in reversed(self._changes):
            changed = {(directory, leaf) for directory, leaf, _ in change.entries}
            if changed & names or any(directory is node for directory, _ in changed):
                found.insert(0, change)
                names |= changed
        return found

    def _check(self, *, adds: bool) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if adds and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _find(self, name: str) -> Node | None:
        node: Node | None = self._root
        for level in name.split("/") if name else []:
            node = node.names.get(level) if node is not None and node.names is not None else None
        return node

    def _above(self, name: str) -> tuple[dict[str, Node], Node, str] | None:
        directory, _, leaf = name.rpartition("/")
        node = self._find(directory)
        return None if node is None or node.names is None else (node.names, node, leaf)

    def _file(self, name: str) -> Node:
        node = self._find(name)
        if node is None:
            raise MissingError(name)
        if node.names is not None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return node


def _make_safe(change: Change) -> None:
    for directory, leaf, node in change.entries:
        directory.safe_names.pop(leaf, None)
        if node is not None:
            directory.safe_names[leaf] = node


def _restore(node: Node) -> None:
    node.data = node.safe_data
    if node.names is not None:
        node.names = dict(node.safe_names)
        for child in node.names.values():
            _restore(child)


def _walk(node: Node, prefix: str) -> Iterator[tuple[str, bytes | None]]:
    for leaf, child in sorted((node.names or {}).items()):
        yield prefix + leaf, None if child.names is not None else child.data
        yield from _walk(child, f"{prefix}{leaf}/")
