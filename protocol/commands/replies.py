"""Replies to commands (design section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot, UidSet


@dataclass(frozen=True, slots=True)
class Done:
    """The command was carried out; `dot` names the entry that did it, if one did."""

    dot: Dot | None = None


@dataclass(frozen=True, slots=True)
class Master:
    """The scope's master; `covering` is the wider scope, if the node masters the scope as part of that one."""

    sid: str
    covering: str | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The scope was handed over, at this head of the mailbox.

    `scope` is the mailbox's, or a wider one that covers it.
    """

    scope: str
    head: Dot | None


@dataclass(frozen=True, slots=True)
class Saved:
    """One UID and one entry for each mailbox of the request, in order; `master` is given if that is another node."""

    uids: tuple[int, ...]
    dots: tuple[Dot, ...]
    master: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Result of a `Store` or `Expunge`. `refused`: the UIDs that were left unchanged.

    They were refused under UNCHANGEDSINCE, or they name no message any more: it was expunged or a merge gave it another
    UID. `dot`: the entry, or the head if nothing changed; None if the mailbox has no entries.
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
    """State that a node shows at this moment of a mailbox, or of all of them; `Ranges` and `Rows` name it by `number`.

    `size` is the number of rows and `total` the sum of their 128-bit hashes. `time` is that of the latest stamp that
    the node has given out or seen, which is not below any stamp in the state. `history` is that of the head.
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
    history: bytes | None


@dataclass(frozen=True, slots=True)
class Content:
    """The body of a message, a chunk of a part, or the answer to `Ranges` or `Rows`."""

    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was understood but not carried out. `code` is one of `RefusalCode`; `text` is for people."""

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
