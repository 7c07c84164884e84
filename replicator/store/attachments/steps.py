"""The single steps of the algorithms, and their execution.

An algorithm is a generator: it yields a step, is sent the step's `Answer`, and returns its result. Between two steps,
other processes may change the directory. The node executes algorithms by `run`; the tests' model checker takes the same
generators and tries every order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from replicator.store.attachments.files import Files, MissingError, StepOutcome

T = TypeVar("T")

PAUSE_S = 0.004
"""Pause before the second try, doubled before each further one: a removal takes about a millisecond."""

Answer: TypeAlias = StepOutcome | frozenset[str]
"""The names in a directory for `ListDirectory`, otherwise an outcome."""


class Step(Protocol):
    """One access to the file system."""

    def on(self, files: Files) -> Answer:
        """Perform the step. Raises OSError."""
        ...


Algorithm: TypeAlias = Generator[Step, Answer, T]


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """See `Files.make_directory`."""

    name: str

    def on(self, files: Files) -> StepOutcome:
        """Perform the step."""
        return files.make_directory(self.name)


@dataclass(frozen=True, slots=True)
class CreateFile:
    """See `Files.create_file`."""

    name: str

    def on(self, files: Files) -> StepOutcome:
        """Perform the step."""
        return files.create_file(self.name)


@dataclass(frozen=True, slots=True)
class Rename:
    """See `Files.rename`."""

    old: str
    new: str

    def on(self, files: Files) -> StepOutcome:
        """Perform the step."""
        return files.rename(self.old, self.new)


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """See `Files.remove_file`."""

    name: str

    def on(self, files: Files) -> StepOutcome:
        """Perform the step."""
        return files.remove_file(self.name)


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """See `Files.remove_directory`."""

    name: str

    def on(self, files: Files) -> StepOutcome:
        """Perform the step."""
        return files.remove_directory(self.name)


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """See `Files.sync_directory`."""

    name: str

    def on(self, files: Files) -> StepOutcome:
        """Perform the step."""
        return files.sync_directory(self.name)


@dataclass(frozen=True, slots=True)
class ListDirectory:
    """List all names in a directory that has few."""

    name: str

    def on(self, files: Files) -> Answer:
        """Perform the step."""
        try:
            return frozenset(files.names(self.name))
        except MissingError:
            return StepOutcome.MISSING


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a little, longer with each attempt."""

    attempt: int

    def on(self, files: Files) -> StepOutcome:
        """Do nothing; `run` waits."""
        del files
        return StepOutcome.DONE


def run(files: Files, algorithm: Algorithm[T], sleep: Callable[[float], None]) -> T:
    """Run an algorithm to its end. Raises OSError, after which a sweep cleans up."""
    try:
        step = next(algorithm)
        while True:
            if isinstance(step, Pause):
                sleep(PAUSE_S * 2 ** (step.attempt - 1))
            step = algorithm.send(step.on(files))
    except StopIteration as end:
        result: T = end.value
        return result
