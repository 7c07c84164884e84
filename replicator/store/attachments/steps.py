"""The single steps that the algorithms are made of, and what performs them.

An algorithm is a generator: it yields a step, is sent its `Answer`, and returns its result. Between two steps anything
may happen in the directory. The node performs them by `run`; the model checker of the tests takes the same generators
and tries every order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from replicator.store.attachments.files import Files, MissingError, Outcome

T = TypeVar("T")

PAUSE_S = 0.004
"""Before the second try, twice as long before each further one: a removal takes about a millisecond."""

Answer: TypeAlias = Outcome | frozenset[str]
"""The names in a directory, for `ListDirectory`; else an outcome."""


class Step(Protocol):
    """One access to the file system."""

    def on(self, files: Files) -> Answer:
        """Do it. Raises OSError."""
        ...


Algorithm: TypeAlias = Generator[Step, Answer, T]


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """See `Files.make_directory`."""

    name: str

    def on(self, files: Files) -> Outcome:
        """Do it."""
        return files.make_directory(self.name)


@dataclass(frozen=True, slots=True)
class CreateFile:
    """See `Files.create_file`."""

    name: str

    def on(self, files: Files) -> Outcome:
        """Do it."""
        return files.create_file(self.name)


@dataclass(frozen=True, slots=True)
class Rename:
    """See `Files.rename`."""

    old: str
    new: str

    def on(self, files: Files) -> Outcome:
        """Do it."""
        return files.rename(self.old, self.new)


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """See `Files.remove_file`."""

    name: str

    def on(self, files: Files) -> Outcome:
        """Do it."""
        return files.remove_file(self.name)


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """See `Files.remove_directory`."""

    name: str

    def on(self, files: Files) -> Outcome:
        """Do it."""
        return files.remove_directory(self.name)


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """See `Files.sync_directory`."""

    name: str

    def on(self, files: Files) -> Outcome:
        """Do it."""
        return files.sync_directory(self.name)


@dataclass(frozen=True, slots=True)
class ListDirectory:
    """All names in a directory of few."""

    name: str

    def on(self, files: Files) -> Answer:
        """Do it."""
        try:
            return frozenset(files.names(self.name))
        except MissingError:
            return Outcome.MISSING


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a little, the longer the more often this was tried."""

    attempt: int

    def on(self, files: Files) -> Outcome:
        """Nothing; `run` waits."""
        del files
        return Outcome.DONE


def run(files: Files, algorithm: Algorithm[T], sleep: Callable[[float], None]) -> T:
    """Perform an algorithm to its end. Raises OSError, after which a sweep finds what is left."""
    try:
        step = next(algorithm)
        while True:
            if isinstance(step, Pause):
                sleep(PAUSE_S * 2 ** (step.attempt - 1))
            step = algorithm.send(step.on(files))
    except StopIteration as end:
        result: T = end.value
        return result
