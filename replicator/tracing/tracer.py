"""The tracer: while somebody listens it observes the links, and tells each listener what that one wants to know.

What links tell it goes into a bounded queue for each listener, with no other work than to look up what its filter
needs. Whoever listens then reads, describes and encodes it, in a task of its own.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import trio

from protocol.commands import Command, Entries, Mbox, Reply
from protocol.parser import Request, Response
from protocol.units import KIB, MIB
from replicator.runtime.environment import ThreadRunner
from replicator.runtime.signals import Signal
from replicator.tracing.descriptions import Key, Place, describe, is_named, name_of, places_of
from replicator.tracing.folder_names import FolderNames
from replicator.tracing.traced import LeftOut, LinkEnded, TracedCommand, TracedPlace, TraceEnded, TraceEvent

log = logging.getLogger(__name__)

TRACES_MAX = 4
QUEUE_COMMANDS = 1000
QUEUE_BYTES = 8 * MIB
"""Size of the commands that wait for a listener: they hold the mail that they bring. One may be larger."""
REQUESTS_MAX = 2048
"""Requests of a link, in either direction, whose replies are awaited: a node answers half as many at once."""
HEAVY_BYTES = 64 * KIB
"""A command of so many is described in a thread, since hashes of literals take longer."""
BEAT_S = 1.0
"""Seconds after which a listener is told that nothing came, by which its end is noticed, too."""
KEY_BYTES = 16
DEFECT = "a defect of the node has ended all its traces; its log tells more"


class TooManyTracesError(Exception):
    """There are `TRACES_MAX` already."""


class TracedLink(Protocol):
    """A link that can be traced, to the node `sid`."""

    sid: str

    def numbers(self, *, sent: bool) -> Mapping[int, Key]:
        """Return the mailboxes by the numbers that this node, or the peer, has given them."""
        ...


class TracedLinks(Protocol):
    """The links of a node."""

    @property
    def links(self) -> Sequence[TracedLink]:
        """The links that are up."""
        ...

    def observe(self, observer: Tracer | None) -> None:
        """Tell `observer` of all that goes over links from now on; None: nobody."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of what a listener hears: everything, or what has all that is named. Empty `commands`: all."""

    peer: str | None = None
    commands: frozenset[str] = frozenset()
    user: str | None = None
    mailbox: str | None = None

    def may_want(self, observed: Observed) -> bool:
        """Return False if it is not wanted, as far as that can be told without looking into batches."""
        names = [observed.name, *([observed.asked.name] if observed.asked else [])]
        return (
            self.peer in {None, observed.peer}
            and (not self.commands or any(is_named(name, asked) for name in names for asked in self.commands))
            and (isinstance(observed.said, Entries) or self.has_user(observed.places))
        )

    def has_user(self, places: Sequence[Place]) -> bool:
        """Return True unless a user is wanted who has none of these places."""
        return self.user is None or any(place.user == self.user for place in places)

    def wants(self, places: Sequence[TracedPlace]) -> bool:
        """Return True if a command about these places is wanted."""
        return (self.user is None and self.mailbox is None) or any(
            self.user in {None, place.user} and self.mailbox in {None, place.mailbox} for place in places
        )


class Asked(NamedTuple):
    """A request whose reply is awaited. `at`: time of trio's clock."""

    name: str
    places: tuple[Place, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Observed:
    """A command or reply as a link tells it. `places` are those of the request, if it is a reply."""

    time_ms: int
    peer: str
    sent: bool
    said: Command | Reply
    name: str
    tag: str | None
    size_bytes: int
    places: tuple[Place, ...]
    asked: Asked | None
    took_ms: float | None


class _Numbers:
    """The numbers of mailboxes on a link, and the requests whose replies are awaited."""

    def __init__(self, link: TracedLink) -> None:
        self._keys = {sent: dict(link.numbers(sent=sent)) for sent in (True, False)}
        self._asked = OrderedDict[tuple[bool, str], Asked]()

    def request(self, request: Request, *, sent: bool) -> tuple[Place, ...]:
        """Return the places that a request names."""
        command = request.command
        if isinstance(command, Mbox):
            self._keys[sent][command.number] = (command.user, command.mailbox_id, command.uidvalidity)
        places = places_of(command, self._keys[sent].get)
        if request.tag is not None:
            self._asked[sent, request.tag] = Asked(name_of(command), places, trio.current_time())
            if len(self._asked) > REQUESTS_MAX:
                self._asked.popitem(last=False)
        return places

    def asked(self, tag: str, *, sent: bool) -> Asked | None:
        """Return the request to which a reply with this tag belongs, if it was seen."""
        return self._asked.pop((not sent, tag), None)


class Tracer:
    """An observer of links. Belongs to the event loop."""

    def __init__(self, links: TracedLinks, names: FolderNames, clock_ms: Callable[[], int], run: ThreadRunner) -> None:
        self._links = links
        self._names = names
        self._clock_ms = clock_ms
        self._run_in_thread = run
        self._traces: list[Trace] = []
        self._numbers: dict[TracedLink, _Numbers] = {}

    @property
    def is_full(self) -> bool:
        """True if there can be no other trace now."""
        return len(self._traces) >= TRACES_MAX

    def is_linked(self, sid: str) -> bool:
        """Return True if there is a link to this node."""
        return any(link.sid == sid for link in self._links.links)

    @contextmanager
    def trace(self, wanted: Wanted) -> Iterator[Trace]:
        """Tell the trace what is wanted, while the block runs. Raises TooManyTracesError."""
        if self.is_full:
            raise TooManyTracesError
        trace = Trace(wanted, self._names, self._run_in_thread)
        self._traces.append(trace)
        if len(self._traces) == 1:
            self._links.observe(self)
        try:
            yield trace
        finally:
            if trace in self._traces:
                self._traces.remove(trace)
            if not self._traces:
                self._rest()

    # ---- as an observer of links

    def sent(self, link: TracedLink, item: Request | Response, size_bytes: int) -> None:
        """Take note of what this node sends."""
        with self._harmless():
            self._note(link, item, size_bytes, sent=True)

    def received(self, link: TracedLink, item: Request | Response, size_bytes: int) -> None:
        """Take note of what came."""
        with self._harmless():
            self._note(link, item, size_bytes, sent=False)

    def ended(self, link: TracedLink) -> None:
        """Take note of the end of a link."""
        with self._harmless():
            self._numbers.pop(link, None)
            for trace in self._traces:
                trace.note_end(LinkEnded(self._clock_ms(), link.sid))

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """End all traces, instead of the link that tells of something, if the block fails."""
        try:
            yield
        except Exception:  # the edge where a defect of traces must not become one of a link
            log.exception("traces have failed, and end")
            for trace in self._traces:
                trace.fail(DEFECT)
            self._traces.clear()
            self._rest()

    def _rest(self) -> None:
        self._links.observe(None)
        self._numbers.clear()

    def _note(self, link: TracedLink, item: Request | Response, size_bytes: int, *, sent: bool) -> None:
        numbers = self._numbers.get(link)
        if numbers is None:
            numbers = self._numbers[link] = _Numbers(link)
        said: Command | Reply
        if isinstance(item, Request):
            said, asked = item.command, None
            places = numbers.request(item, sent=sent)
        else:
            said, asked = item.reply, numbers.asked(item.tag, sent=sent)
            places = asked.places if asked is not None else ()
        took_ms = None if asked is None else round((trio.current_time() - asked.at) * 1000, 3)
        observed = Observed(
            self._clock_ms(), link.sid, sent, said, name_of(said), item.tag, size_bytes, places, asked, took_ms
        )
        for trace in self._traces:
            trace.offer(observed)


class Trace:
    """The queue of what one listener is told."""

    def __init__(self, wanted: Wanted, names: FolderNames, run_in_thread: ThreadRunner) -> None:
        self._wanted = wanted
        self._names = names
        self._run_in_thread = run_in_thread
        self._mark_key = secrets.token_bytes(KEY_BYTES)
        self._queue = deque[Observed | LeftOut | LinkEnded]()
        self._bytes = 0  # of the commands in the queue
        self._left_out = 0  # since the last one in the queue
        self._why: str | None = None  # it ends once the queue is empty
        self._came = Signal()

    @property
    def has_more(self) -> bool:
        """True if something waits in the queue."""
        return bool(self._queue)

    def offer(self, observed: Observed) -> None:
        """Put a command that is wanted into the queue, or count it if there is no room.

        Once there was none, there is room again when half of the queue is empty.
        """
        if not self._wanted.may_want(observed):
            return
        most = QUEUE_COMMANDS // 2 if self._left_out else QUEUE_COMMANDS
        if len(self._queue) >= most or (self._bytes and self._bytes + observed.size_bytes > QUEUE_BYTES):
            self._left_out += 1
        else:
            self._tell_left_out()
            self._queue.append(observed)
            self._bytes += observed.size_bytes
        self._came.set()

    def note_end(self, ended: LinkEnded) -> None:
        """Take note of a link that has ended. With the only one that is wanted the trace ends."""
        if self._wanted.peer == ended.peer:
            self._why = f"the link to {ended.peer} has ended"
        elif self._wanted.peer is None and len(self._queue) < QUEUE_COMMANDS:
            self._tell_left_out()
            self._queue.append(ended)
        self._came.set()

    def fail(self, why: str) -> None:
        """End the trace, once the queue is empty."""
        self._why = why
        self._came.set()

    async def next(self) -> TraceEvent | None:
        """Return what comes next, or None if nothing that is wanted came for `BEAT_S`. TraceEnded is the last."""
        beat_at = trio.current_time() + BEAT_S
        while True:
            await trio.lowlevel.checkpoint()
            if not self._queue:
                if self._left_out:
                    self._tell_left_out()
                elif self._why is not None:
                    return TraceEnded(self._why)
                else:
                    self._came.clear()
                    with trio.move_on_at(beat_at):
                        await self._came.wait()
            if trio.current_time() >= beat_at:
                return None
            event = await self._taken()
            if event is not None:
                return event

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._queue.append(LeftOut(self._left_out))
            self._left_out = 0

    async def _taken(self) -> TraceEvent | None:
        """Return the first in the queue, if there is one and it is wanted."""
        if not self._queue:
            return None
        first = self._queue.popleft()
        if not isinstance(first, Observed):
            return first
        self._bytes -= first.size_bytes
        is_heavy = first.size_bytes > HEAVY_BYTES
        tell = partial(describe, first.said, first.places, self._mark_key)
        told = await self._run_in_thread(tell) if is_heavy else tell()
        if not self._wanted.has_user(told.places):  # before any database is asked for names
            return None
        places = tuple([await self._named(place) for place in told.places])
        if not self._wanted.wants(places):
            return None
        return TracedCommand(
            time_ms=first.time_ms,
            peer=first.peer,
            sent=first.sent,
            command=first.name,
            tag=first.tag,
            answers=first.asked.name if first.asked else None,
            took_ms=first.took_ms,
            places=places,
            entries=told.entries,
            size_bytes=first.size_bytes,
            detail=told.detail,
        )

    async def _named(self, place: Place) -> TracedPlace:
        name = place.name
        if name is None and not place.is_tree:
            name = await self._names.get(place.user, place.mailbox_id)
        return TracedPlace(place.user, name, place.mailbox_id.hex(), place.is_tree)
