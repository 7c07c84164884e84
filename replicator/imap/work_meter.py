"""The count of a command's work, which has a limit regardless of the contents of the mailbox."""

from __future__ import annotations


class WorkExceededError(Exception):
    """A command has done as much work as one command may do."""


class WorkMeter:
    """Count of a command's work. A step is one message compared with one key, or one KiB of text with one key."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.done = 0

    def spend(self, steps: int) -> None:
        """Count these steps before they are taken. Raises WorkExceededError."""
        self.done += steps
        if self.done > self.limit:
            raise WorkExceededError
