"""The sessions of clients at a node's processes: what each does, and ending them.

A session tells of itself when somebody asks, so being listed costs it nothing. All is done a page at a time: a node
may have tens of thousands of sessions.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol, TypeAlias

import trio

from replicator.errors import UnavailableError
from replicator.runtime.environment import wall_clock_ms

PAGE_SESSIONS = 200  # looked at in some 4 milliseconds of the event loop


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session. `id` names it at its node; `process` is `core`, or a door's number.

    `doing` is the command that runs, such as `IDLE`, since `doing_since_ms`; None: the client has sent none since then.
    `master`: the master user who acts as the user.
    """

    id: str
    protocol: str
    process: str
    pid: int
    user: str | None  # None: nobody has logged in
    address: str
    since_ms: int
    doing: str | None
    doing_since_ms: int
    mailbox: str | None
    tls: bool
    master: str | None = None


class Facts(NamedTuple):
    """Facts that a session tells of itself; see `SessionStatus`."""

    user: str | None
    doing: str | None
    doing_since_ms: int
    mailbox: str | None
    tls: bool
    master: str | None = None


class OpenSession:
    """A session from its begin to its end, which belongs to the task that serves it.

    `scope` has all that is done for it. `was_ended`: an operator has ended it, so the scope is cancelled, or soon is.
    """

    def __init__(self, number: int, protocol: str, address: str, since_ms: int, facts: Callable[[], Facts]) -> None:
        self.number = number
        self.protocol = protocol
        self.address = address
        self.since_ms = since_ms
        self.facts = facts
        self.scope = trio.CancelScope()
        self.was_ended = False
        self._is_busy = False

    def end(self) -> None:
        """End the session now, or after the `busy` block in which it is."""
        self.was_ended = True
        if not self._is_busy:
            self.scope.cancel()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Finish this block before the session is ended."""
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            if self.was_ended:
                self.scope.cancel()


class Sessions:
    """The open sessions of this process, whose name is `process`. Belongs to the event loop."""

    def __init__(self, process: str = "core", clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._process = process
        self._pid = os.getpid()
        self._clock_ms = clock_ms
        self._numbers = count(1)
        self._open: dict[int, OpenSession] = {}  # by number, in the order of numbers

    @contextmanager
    def opened(self, protocol: str, address: str, facts: Callable[[], Facts]) -> Iterator[OpenSession]:
        """List a session while the block runs. If an operator ends it, the block is cancelled."""
        number = next(self._numbers)
        session = self._open[number] = OpenSession(number, protocol, address, self._clock_ms(), facts)
        try:
            with session.scope:
                yield session
        finally:
            del self._open[number]

    async def page(self, after: int, user: str | None = None) -> tuple[Sequence[SessionStatus], int | None]:
        """Return those of the next sessions, above the number `after`, that are this user's, or any for None.

        The number says after which to go on; None: there are no more.
        """
        await trio.lowlevel.checkpoint()
        numbers = [*self._open]
        start = bisect_right(numbers, after)
        looked_at = numbers[start : start + PAGE_SESSIONS]
        found = [
            self._status(session, facts)
            for session in map(self._open.__getitem__, looked_at)
            if user in {None, (facts := session.facts()).user}
        ]
        return found, looked_at[-1] if len(numbers) > start + PAGE_SESSIONS else None

    async def end(self, ids: Sequence[str]) -> Sequence[str]:
        """End the sessions with these ids; return the ids of those that are open."""
        await trio.lowlevel.checkpoint()
        ended = list[str]()
        for one in ids:
            pid, _, number = one.partition(".")
            session = self._open.get(int(number)) if pid == str(self._pid) else None
            if session is not None:
                session.end()
                ended.append(one)
        return ended

    def _status(self, session: OpenSession, facts: Facts) -> SessionStatus:
        return SessionStatus(
            id=f"{self._pid}.{session.number}",
            protocol=session.protocol,
            process=self._process,
            pid=self._pid,
            address=session.address,
            since_ms=session.since_ms,
            **facts._asdict(),
        )


Statuses: TypeAlias = list[SessionStatus]


class SessionSource(Protocol):
    """The sessions of one process, in whichever process that is: `Sessions`, or what asks those over a channel."""

    async def page(self, after: int, user: str | None = None) -> tuple[Sequence[SessionStatus], int | None]:
        """See `Sessions`. Raises UnavailableError if the process does not answer."""
        ...

    async def end(self, ids: Sequence[str]) -> Sequence[str]:
        """See `Sessions`. Raises UnavailableError if the process does not answer."""
        ...


def _no_others() -> Iterable[SessionSource]:
    return ()


@dataclass(frozen=True, slots=True)
class NodeSessions:
    """The sessions of a node: those of this process, and of the `others`, as they are now."""

    own: Sessions = field(default_factory=Sessions)
    others: Callable[[], Iterable[SessionSource]] = _no_others

    async def list(self, user: str | None, wanted: Callable[[SessionStatus], bool]) -> Sequence[SessionStatus]:
        """Return a user's sessions, or all, that are wanted. Raises UnavailableError if a process does not answer."""
        found: Statuses = []
        for source in self._sources():
            async with aclosing(_pages(source, user)) as pages:
                async for page in pages:
                    found += filter(wanted, page)
        return found

    async def end(self, user: str | None, wanted: Callable[[SessionStatus], bool]) -> Sequence[SessionStatus]:
        """End a user's sessions, or any, that are wanted, and return them.

        Raises UnavailableError if a process does not answer, once those of all others are ended.
        """
        ended: Statuses = []
        failure: UnavailableError | None = None
        for source in self._sources():
            try:
                async with aclosing(_pages(source, user)) as pages:
                    async for page in pages:
                        found = {session.id: session for session in page if wanted(session)}
                        if found:
                            ended += [found[one] for one in await source.end([*found])]
            except UnavailableError as error:
                failure = error
        if failure is not None:
            raise failure
        return ended

    def _sources(self) -> Sequence[SessionSource]:
        return [self.own, *self.others()]


async def _pages(source: SessionSource, user: str | None) -> AsyncGenerator[Sequence[SessionStatus], None]:
    after: int | None = 0
    while after is not None:
        page, after = await source.page(after, user)
        yield page
