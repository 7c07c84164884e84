"""The events of a simulation, for people who look into a failure, with a hash of all of them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import trio

from tests.simulation.runtime.scheduler import OWNER


class Story:
    """Lines with their times. Two runs of a seed tell the same story, to the last byte."""

    def __init__(self, directory: Path) -> None:
        self.lines: list[str] = []
        self.defects: list[str] = []  # found by the program itself
        self._directory = str(directory)
        self._hash = blake2b(digest_size=16)

    def say(self, what: str) -> None:
        line = f"{trio.current_time():10.4f}  {what.replace(self._directory, '…')}"
        self.lines.append(line)
        self._hash.update(line.encode())

    def fold(self, what: bytes) -> None:
        """Add to the hash what is too much for a line."""
        self._hash.update(what)

    def text(self) -> str:
        return "\n".join((*self.lines, f"trace {self._hash.hexdigest()}"))

    @contextmanager
    def including_logs(self) -> Iterator[None]:
        """Make the nodes' logs part of the story; a defect that they log makes the simulation fail."""
        logger, handler = logging.getLogger("replicator"), _Handler(self)
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


class _Handler(logging.Handler):
    def __init__(self, story: Story) -> None:
        super().__init__()
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        owner = OWNER.get()
        if owner is not None and owner.is_dead:
            return
        what = f"{owner.name if owner else '?'} logs: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None and "defect" in record.getMessage():
            self._story.defects.append(what + "\n" + "".join(traceback.format_exception(record.exc_info[1])))
        self._story.say(what)
