"""A file system for the model checker: small, quick to copy and to compare. Every step is atomic.

It is one dictionary of whole names. That suffices because every access gives a whole name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from replicator.store.attachments.files import MissingError, StepOutcome

DIRECTORY = None


class ModelWriter:
    def __init__(self, tree: dict[str, bytes | None], name: str) -> None:
        self._tree, self._name = tree, name

    def write(self, data: bytes) -> None:
        self._tree[self._name] = (self._tree[self._name] or b"") + data

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class ModelFiles:
    """A tree in a dictionary: whole name -> a file's bytes, or None for a directory. The root, "", is not in it."""

    def __init__(self, tree: dict[str, bytes | None] | None = None, *, replaces_empty: bool = True) -> None:
        self.tree = tree if tree is not None else {}
        self.replaces_empty = replaces_empty

    def copy(self) -> ModelFiles:
        return ModelFiles(dict(self.tree), replaces_empty=self.replaces_empty)

    def make_directory(self, name: str) -> StepOutcome:
        return self._create(name, DIRECTORY) if name else StepOutcome.EXISTS

    def create_file(self, name: str) -> StepOutcome:
        return self._create(name, b"")

    def open_new(self, name: str) -> ModelWriter:
        match self._create(name, b""):
            case StepOutcome.MISSING:
                raise MissingError(name)
            case StepOutcome.EXISTS:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        return ModelWriter(self.tree, name)

    def rename(self, old: str, new: str) -> StepOutcome:
        if old not in self.tree or not self._is_directory(new.rpartition("/")[0]):
            return StepOutcome.MISSING
        is_directory = self.tree[old] is DIRECTORY
        if new in self.tree and is_directory and (self._below(new) or not self.replaces_empty):
            return StepOutcome.EXISTS
        for name in [old, *self._below(old)]:
            self.tree[new + name[len(old) :]] = self.tree.pop(name)
        return StepOutcome.DONE

    def remove_file(self, name: str) -> StepOutcome:
        if name not in self.tree:
            return StepOutcome.MISSING
        assert self.tree[name] is not DIRECTORY
        del self.tree[name]
        return StepOutcome.DONE

    def remove_directory(self, name: str) -> StepOutcome:
        if not self._is_directory(name):
            return StepOutcome.MISSING
        if self._below(name):
            return StepOutcome.EXISTS
        del self.tree[name]
        return StepOutcome.DONE

    def sync_directory(self, name: str) -> StepOutcome:
        return StepOutcome.DONE if self._is_directory(name) else StepOutcome.MISSING

    def names(self, name: str) -> Iterator[str]:
        if not self._is_directory(name):
            raise MissingError(name)
        start = len(name) + 1 if name else 0
        yield from [below[start:] for below in self._below(name) if "/" not in below[start:]]

    def read(self, name: str, start: int, length: int) -> bytes:
        data = self.tree.get(name)
        if data is None:
            raise MissingError(name)
        return data[start : start + length]

    def size(self, name: str) -> int:
        return len(self.read(name, 0, 1 << 62))

    def free_bytes(self) -> int | None:
        return None

    def _create(self, name: str, what: bytes | None) -> StepOutcome:
        if not self._is_directory(name.rpartition("/")[0]):
            return StepOutcome.MISSING
        if name in self.tree:
            return StepOutcome.EXISTS
        self.tree[name] = what
        return StepOutcome.DONE

    def _is_directory(self, name: str) -> bool:
        return not name or self.tree.get(name, b"") is DIRECTORY

    def _below(self, name: str) -> list[str]:
        return [other for other in self.tree if other.startswith(f"{name}/")] if name else list(self.tree)
