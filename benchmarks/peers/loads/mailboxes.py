"""Numbers of messages that a server shows, asked for by IMAP as any client would."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Self

from benchmarks.clients.wire import ImapClient, MeasurementError
from benchmarks.peers.pairs.pair import Doors

LOOK_EVERY_S = 0.1  # a look at twenty users costs some servers ten milliseconds

ASK_EVERY_S = 0.2


class Watch:
    """Sessions of all users at one server, made beforehand. Leaving the `with` block closes them."""

    def __init__(self, doors: Doors, users: Sequence[str]) -> None:
        self._doors = doors
        self._users = users
        self._sessions: list[ImapClient] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._sessions = [stack.enter_context(self._doors.session(user)) for user in self._users]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def messages(self) -> int:
        """Return the number of messages in all INBOXes that there are."""
        return sum(_messages(session) for session in self._sessions)

    def wait_for(self, messages: int, within_s: float) -> float:
        """Wait until there are `messages` in all. Return the seconds. Raises MeasurementError."""
        began = time.perf_counter()
        while (found := self.messages()) != messages:
            if time.perf_counter() - began > within_s:
                raise MeasurementError(f"{found} messages instead of {messages} after {within_s:.0f} s")
            time.sleep(LOOK_EVERY_S)
        return time.perf_counter() - began


def wait_until(true: Callable[[], bool], within_s: float, what: str) -> None:
    """Ask a server now and then, so that the questions take little of its time. Raises MeasurementError."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            raise MeasurementError(f"{what} takes longer than {within_s:.0f} s")
        time.sleep(ASK_EVERY_S)


def _messages(session: ImapClient) -> int:
    try:
        lines = session.command("STATUS INBOX (MESSAGES)")
    except MeasurementError:
        return 0  # this user has no INBOX yet
    return next(int(line.rpartition(b"MESSAGES ")[2].rstrip(b" )")) for line in lines if b"MESSAGES " in line)
