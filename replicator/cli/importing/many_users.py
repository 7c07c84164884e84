"""Imports for a list of users, several at once.

A line of the list is a user and a path or URL, separated by white space; empty lines and those that begin with `#` do
not count. Every line is checked before anything begins. A user whose source cannot be read is told at the end, and the
others are imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from replicator.cli.importing.results import ImportResult, StopSign
from replicator.cli.importing.sources import check_named

LINE_CHARS_MAX, LINES_MAX = 5000, 1_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """A user, and where the mail is."""

    user: str
    place: str


class UserListError(Exception):
    """A list of users that cannot be used. The text names the line."""


def read_user_list(file: Path) -> list[Wanted]:
    """Return the users of a list. Raises UserListError, OSError."""
    wanted, seen = list[Wanted](), dict[tuple[str, str], int]()
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if number > LINES_MAX or len(line) > LINE_CHARS_MAX:
                raise UserListError(
                    f"{file}, line {number}: more than {LINES_MAX} lines, or {LINE_CHARS_MAX} characters"
                )
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(maxsplit=1)
            if len(words) != 2:
                raise UserListError(f"{file}, line {number}: not a user and a path or URL, such as `alice /mail/alice`")
            one = Wanted(words[0], words[1].rstrip())
            try:
                check_named(one.user, one.place)
            except ValueError as error:
                raise UserListError(f"{file}, line {number}: {error}") from None
            if (one.user, one.place) in seen:
                raise UserListError(f"{file}, line {number}: the same as line {seen[one.user, one.place]}")
            seen[one.user, one.place] = number
            wanted.append(one)
    return wanted


class ManyImports:
    """Imports of users, `at_once` at the same time, until `stop` is set. `run_one` imports one, and raises nothing."""

    def __init__(self, run_one: Callable[[Wanted], ImportResult], stop: StopSign, at_once: int) -> None:
        self._run_one = run_one
        self._stop = stop
        self._at_once = at_once
        self._users: dict[str, threading.Lock] = {}

    def run(self, wanted: Sequence[Wanted], done: Callable[[], None]) -> list[ImportResult]:
        """Return what came of each, calling `done` after each. After an interrupt, no further one is begun."""
        self._users = {one.user: threading.Lock() for one in wanted}
        with ThreadPoolExecutor(self._at_once) as pool:
            coming = [pool.submit(self._run, one, done) for one in wanted]
            try:
                wait(coming)
            except KeyboardInterrupt:
                self._stop.set("interrupted")
        return [work.result() for work in coming]

    def _run(self, one: Wanted, done: Callable[[], None]) -> ImportResult:
        with self._users[one.user]:  # a user may have several sources, for the same folders
            result = ImportResult(stopped=self._stop.reason) if self._stop.reason else self._run_one(one)
        done()
        return result
