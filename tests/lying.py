"""A peer that lies: valid commands with one field changed, under checks that are computed anew.

Unlike a line that changes what it carries (`mutating`), a liar makes a false statement that no check reveals. `Liar`
tells any number of lies, and the dice alone decide which; `Lie` tells one. Both are for a simulated line, and `Liar`,
by `frame`, for a proxy. A liar tells the truth where no rule can tell a lie from what a peer may say (docs/testing.md):
in entries, in clients' changes (`mutating.IN_CLIENT_CHANGES`), and in what `FORGED` and `ENDS` name.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import trio

from protocol.commands import Entries, EntryCommand, Mbox, RefusalCode, Refused, Remote, SyncMailbox
from protocol.formatter import format_item
from protocol.framing import Frame, Framer
from protocol.parser import Response, parse
from protocol.stream_codec import WIRE_LIMITS, Request
from protocol.values import Dot, UidSet
from tests.mutating import FAR, Mutator, frames, is_of_client, whole

FORGED: dict[type, frozenset[str]] = {
    Mbox: frozenset({"number", "user", "name", "mailbox_id", "uidvalidity", "destination", "texts"}),
    SyncMailbox: frozenset({"mailbox"}),
}
"""Fields by which a liar would compare or change another mailbox than its clients meant, and merge the two: it may give
any mailbox new mail."""

ENDS = frozenset({RefusalCode.RUNS_TWICE, RefusalCode.REPLACED})
"""Refusals of a HELLO that end the refused node: whoever has a node's key can end another node (design section 5)."""

JUMPS = (0, 1, (1 << 31) - 1, (1 << 31) + 721, (1 << 32) - 1, 1 << 53, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 63) - 1)
"""Numbers at which types, limits and bounds end."""

FREQUENT = frozenset({b"ACK", b"SETTLED", b"MBOX", b"PING", b"OK", b"LINKS"})
"""Words of commands and replies that cross every link all the time; the others are lied in more often."""

REMEMBERED = 64  # values of a field, as replacements for others


@dataclass
class Lie:
    """One false statement: what `lie` makes of the first command of this kind, and until a given time of all others.

    `lie` may return the command itself, which then does not count. Checks are computed anew.
    """

    kind: type
    lie: Callable[[Any], Any]
    until: float = 0.0
    told: list[Any] = field(default_factory=list)

    def commands(self, data: bytes) -> bytes:
        """Return the octets of whole commands, with the lie."""
        framer = Framer(WIRE_LIMITS)
        framer.receive(data)
        return b"".join(map(self._frame, frames(framer)))

    def _frame(self, frame: Frame) -> bytes:
        item = parse(frame)
        command = item.command if isinstance(item, Request) else item.reply
        if not isinstance(command, self.kind) or (self.told and trio.current_time() >= self.until):
            return whole(frame)
        lie = self.lie(command)
        if lie == command:
            return whole(frame)
        self.told.append(lie)
        return format_item(_saying(item, lie), WIRE_LIMITS)


def _saying(item: Request | Response, command: Any) -> Request | Response:
    """Return the item with another command or reply."""
    return replace(item, command=command) if isinstance(item, Request) else replace(item, reply=command)


class Liar(Mutator):
    """One peer's lies to others: one field is changed in a share `rate` of its commands. `counts`: lies, by command.

    `say`: called with each lie, for people.
    """

    def __init__(self, dice: random.Random, rate: float, say: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(dice, rate)
        self._say = say
        self._heard: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def rate_of(self, frame: Frame) -> float:
        """See `Mutator`: commands that are rare are lied in more often."""
        verb = frame.text.split(b" ", 2)[1]
        return self._rate if verb in FREQUENT else min(1.0, 4 * self._rate)

    def changed(self, frame: Frame, item: Request | Response) -> Frame | None:
        """Return the frame of a lie, or None if none was found."""
        command = item.command if isinstance(item, Request) else item.reply
        self._remember(command)
        if is_of_client(item) or (isinstance(item, Request) and item.tag is None and is_entry(command)):
            return None
        lie = self._lie_in(command)
        if lie is None or not _is_told(lie, command):
            return None
        try:
            frame = _only_frame(format_item(_saying(item, lie), WIRE_LIMITS))
        except ValueError:  # the protocol cannot express it
            return None
        self._say(f"{str(lie)[:200]} is a lie")
        return frame

    def _lie_in(self, command: Any) -> Any:
        """Return the command with another value in one field, or None if it has none to change."""
        may = [one.name for one in fields(command) if one.name not in FORGED.get(type(command), ())]
        if not may:
            return None
        name = self._dice.choice(may)
        return replace(command, **{name: self._other_value(name, getattr(command, name))})

    def _other_value(self, name: str, value: Any) -> Any:
        """Return another value of the same type."""
        match value:
            case bool():
                return not value
            case int():
                near = (value + 1, max(0, value - 1), value + 10, value // 2, value * 2, value + FAR)
                return self._dice.choice(near if self._dice.random() < 0.5 else JUMPS)
            case Dot(origin, seq):
                if self._dice.random() < 0.3:
                    return Dot(self._another("origin", origin), seq)
                return Dot(origin, self._other_value("seq", seq))
            case UidSet():
                return UidSet.of(self._dice.sample(range(1, 50), self._dice.randint(0, 4)))
            case str():
                return self._another(name, value)
            case bytes():
                return self._other_octets(name, value)
            case tuple():
                return self._other_members(name, value)
            case None:
                return self._another(name, None)
            case _ if is_dataclass(value):
                return self._lie_in(value) or value
        raise AssertionError(f"a field {name} of a type that no command has: {value!r}")

    def _other_members(self, name: str, members: tuple[Any, ...]) -> tuple[Any, ...]:
        if not members:
            heard = self._heard[name]
            return (self._dice.choice(heard),) if heard else members
        at = self._dice.randrange(len(members))
        before, after = members[:at], members[at + 1 :]
        choice = self._dice.random()
        if choice < 0.2:
            return (*before, *after)
        return (*before, self._other_value(name, members[at]), *after)

    def _other_octets(self, name: str, octets: bytes) -> bytes:
        if not octets or (self._dice.random() < 0.5 and self._heard[name]):
            return self._another(name, octets) or b""
        at = self._dice.randrange(len(octets))
        return octets[:at] + bytes([octets[at] ^ (1 << self._dice.randrange(8))]) + octets[at + 1 :]

    def _another(self, name: str, value: Any) -> Any:
        """Return a value that this field has had in another command, or the same one if there is none."""
        others = [one for one in self._heard[_kind(name)] if one != value]
        return self._dice.choice(others) if others else value

    def _remember(self, command: Any) -> None:
        for name, value in _values(command):
            heard = self._heard[_kind(name)]
            if value is not None and value not in heard:
                heard.append(value)


SIDS = frozenset({"sid", "root", "candidate", "former", "destination", "master"})


def is_entry(command: object) -> bool:
    """Return True for a part of an entry. Its author can have made it, so its digest would have to be remembered."""
    return isinstance(command, EntryCommand | Entries | Remote)


def _kind(name: str) -> str:
    """Return one name for all fields that hold the same kind of value."""
    return "sid" if name in SIDS else name


def _values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a command that may replace others, with the names of their fields."""
    match value:
        case Dot(origin):
            yield "origin", origin
            yield name, value
        case str() | bytes():
            if len(value) <= REMEMBERED:
                yield name, value
        case tuple():
            for member in value:
                yield from _values(member, name)
        case _ if is_dataclass(value) and not isinstance(value, UidSet):
            for one in fields(value):
                yield from _values(getattr(value, one.name), one.name)


def _is_told(lie: Any, truth: Any) -> bool:
    """Return True unless the lie ends a node (`ENDS`), or is none."""
    return lie != truth and not (isinstance(lie, Refused) and lie.code in ENDS)


def _only_frame(data: bytes) -> Frame:
    framer = Framer(WIRE_LIMITS)
    framer.receive(data)
    return next(frames(framer))
