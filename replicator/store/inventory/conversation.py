"""What a node and the process that writes its inventory say to each other: a line of JSON each.

The node says an `Order`, and answers each `Heads` with their masters. The process says the rest, and `Done` or `Failed`
last. To `Done` the node answers KEEP: without that the process removes what it has written, whatever ends the node, and
so there is an inventory if and only if the node says that it is done. Both belong to one version of the program, so
nothing is checked but that a line is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

LINE_BYTES_MAX = 16 << 20
KEEP = b"keep\n"
REMOVAL_S = 5.0  # that it may take to remove what comes to nothing

MailboxName: TypeAlias = tuple[str, bytes, int]
"""User, mailbox id, UIDVALIDITY."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to write where. `to`: a directory's absolute path, or `s3://bucket/prefix` at the `endpoint`.

    `scratch`: the directory for what is uploaded. `overwrite`: in place of an inventory that is not whole.
    """

    database: str
    to: str
    endpoint: str | None
    scratch: str
    overwrite: bool
    cluster: str
    node: str
    origin: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The snapshot is taken. `rows`: about how many there are."""

    rows: int


@dataclass(frozen=True, slots=True)
class Heads:
    """Who is the master of these? The answer is a list of as many SIDs, or nulls."""

    keys: Sequence[tuple[str, str, int]]

    @classmethod
    def of(cls, names: Sequence[MailboxName]) -> Heads:
        """The question."""
        return cls([(user, mailbox.hex(), uidvalidity) for user, mailbox, uidvalidity in names])

    def names(self) -> list[MailboxName]:
        """Whose masters are asked for."""
        return [(user, bytes.fromhex(mailbox), uidvalidity) for user, mailbox, uidvalidity in self.keys]


@dataclass(frozen=True, slots=True)
class Read:
    """So many rows of a table were read."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that is left out."""

    table: str
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many more are left out, of which nothing is said."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Done:
    """The inventory is whole."""

    files: int
    size_bytes: int
    taken_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """It is not written."""

    why: str


Event: TypeAlias = Begun | Heads | Read | Unreadable | LeftOut | Done | Failed

_EVENTS = {kind.__name__: kind for kind in (Begun, Heads, Read, Unreadable, LeftOut, Done, Failed)}


def line_of(event: Event | Order) -> bytes:
    """A line, with its end."""
    return json.dumps([type(event).__name__, asdict(event)]).encode() + b"\n"


def event_of(line: bytes) -> Event:
    """What `line_of` made of an event. Raises ValueError."""
    name, fields = _parsed(line)
    if name not in _EVENTS:
        raise ValueError(f"{name!r} is no event")
    return _EVENTS[name](**fields)


def order_of(line: bytes) -> Order:
    """What `line_of` made of an order. Raises ValueError."""
    return Order(**_parsed(line)[1])


def masters_line(masters: Sequence[str | None]) -> bytes:
    """The answer to `Heads`."""
    return json.dumps(list(masters)).encode() + b"\n"


def masters_of(line: bytes) -> list[str | None]:
    """What `masters_line` made. Raises ValueError."""
    return cast("list[str | None]", json.loads(line))


def _parsed(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        name, fields = json.loads(line)
        return str(name), dict(fields)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{line[:80]!r} is no event") from error
