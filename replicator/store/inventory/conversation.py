"""The protocol between a node and the process that writes its inventory: one line of JSON per message.

The node sends an `Order`, and answers each `Heads` with the masters. The process sends the other messages, the last of
which is `Done` or `Failed`. The node answers `Done` with KEEP; without it the process removes what it has written,
however the node ends. So an inventory exists if and only if the node reports it as done. Both sides belong to one
version of the program, so a line is checked only for being a message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

LINE_BYTES_MAX = 16 << 20
KEEP = b"keep\n"
REMOVAL_S = 5.0  # limit for the removal of an incomplete inventory

MailboxName: TypeAlias = tuple[str, bytes, int]
"""User, mailbox id, UIDVALIDITY."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order for an inventory. `to`: a directory's absolute path, or `s3://bucket/prefix` at the `endpoint`.

    `scratch`: the directory for files to be uploaded. `overwrite`: replace an incomplete inventory.
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
    """Message: the snapshot is taken. `rows`: their approximate number."""

    rows: int


@dataclass(frozen=True, slots=True)
class Heads:
    """Question: the masters of these mailboxes and trees. The answer is a list of as many SIDs, or nulls."""

    keys: Sequence[tuple[str, str, int]]

    @classmethod
    def of(cls, names: Sequence[MailboxName]) -> Heads:
        """Make the question."""
        return cls([(user, mailbox.hex(), uidvalidity) for user, mailbox, uidvalidity in names])

    def names(self) -> list[MailboxName]:
        """Return the mailboxes and trees whose masters are asked for."""
        return [(user, bytes.fromhex(mailbox), uidvalidity) for user, mailbox, uidvalidity in self.keys]


@dataclass(frozen=True, slots=True)
class Read:
    """Message: so many rows of a table were read."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Message: a row is left out."""

    table: str
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Message: so many more rows are left out, without a message for each."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Done:
    """Message: the inventory is complete."""

    files: int
    size_bytes: int
    taken_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Message: the inventory was not written."""

    why: str


Event: TypeAlias = Begun | Heads | Read | Unreadable | LeftOut | Done | Failed

_EVENTS = {kind.__name__: kind for kind in (Begun, Heads, Read, Unreadable, LeftOut, Done, Failed)}


def line_of(event: Event | Order) -> bytes:
    """Encode a message as a line, with its line end."""
    return json.dumps([type(event).__name__, asdict(event)]).encode() + b"\n"


def event_of(line: bytes) -> Event:
    """Decode an event from `line_of`. Raises ValueError."""
    name, fields = _parsed(line)
    if name not in _EVENTS:
        raise ValueError(f"{name!r} is not an event")
    return _EVENTS[name](**fields)


def order_of(line: bytes) -> Order:
    """Decode an order from `line_of`. Raises ValueError."""
    return Order(**_parsed(line)[1])


def masters_line(masters: Sequence[str | None]) -> bytes:
    """Encode the answer to `Heads`."""
    return json.dumps(list(masters)).encode() + b"\n"


def masters_of(line: bytes) -> list[str | None]:
    """Decode an answer from `masters_line`. Raises ValueError."""
    return cast("list[str | None]", json.loads(line))


def _parsed(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        name, fields = json.loads(line)
        return str(name), dict(fields)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{line[:80]!r} is not an event") from error
