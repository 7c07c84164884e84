"""What answers a command (design section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot, UidSet


@dataclass(frozen=True, slots=True)
class Done:
    """Done; `dot` names the entry that did it, if one did."""

    dot: Dot | None = None


@dataclass(frozen=True, slots=True)
class Master:
    """The scope's master; `covering` is the wider scope, if it masters it as part of that one."""

    sid: str
    covering: str | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Handed over, at this head of the mailbox. `scope` is the mailbox's, or a wider one that covers it."""

    scope: str
    head: Dot | None


@dataclass(frozen=True, slots=True)
class Saved:
    """One UID and entry for each mailbox of the request, in its order; `master` if it is not the one asked."""

    uids: tuple[int, ...]
    dots: tuple[Dot, ...]
    master: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """`refused`: those on which nothing was done. `dot`: the entry, or the head if nothing changed; None: no entries.

    UNCHANGEDSINCE kept them from changing, or they are no messages any more: expunged, or under another UID by a merge.
    """

    refused: UidSet
    modseq: int
    dot: Dot | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The receiver's mailbox differs in the named `fields`; its own head and context follow."""

    fields: tuple[str, ...]
    head: Dot | None
    context: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a node shows of a mailbox at this moment, or of all of them; `number` names it for `Ranges` and `Rows`.

    `size` and `total`: how many rows there are, and the sum of their 128-bit hashes. `time`: of the latest stamp
    that the node has given out or seen, which is not below any of what it shows.
    """

    number: int
    uidnext: int
    modseq: int
    risen: int
    head: Dot | None
    context: tuple[Dot, ...]
    digest: bytes
    size: int
    total: bytes
    time: int


@dataclass(frozen=True, slots=True)
class Content:
    """Message text, a chunk of a part, or what `Ranges` and `Rows` ask for."""

    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was understood and is not done. `code` is one of `RefusalCode`; `text` is for people."""

    code: str
    text: str


class RefusalCode:
    """The codes of `Refused`."""

    CLUSTER = "CLUSTER"
    SAME_SID = "SAME-SID"
    RUNS_TWICE = "RUNS-TWICE"
    REPLACED = "REPLACED"
    VERSION = "VERSION"
    UNKNOWN_SID = "UNKNOWN-SID"
    POLICY = "POLICY"
    CLOCK = "CLOCK"
    TOO_OLD = "TOO-OLD"
    NOT_FOUND = "NOT-FOUND"
    EXISTS = "EXISTS"
    INVALID = "INVALID"
    UNAVAILABLE = "UNAVAILABLE"
    DURABILITY = "DURABILITY"
    DISK_FULL = "DISK-FULL"
    LIMIT = "LIMIT"
    DAMAGED = "DAMAGED"
    NO_CONTENT = "NO-CONTENT"
    UNSUPPORTED = "UNSUPPORTED"
    GARBLED = "GARBLED"
    NOT_MASTER = "NOT-MASTER"
