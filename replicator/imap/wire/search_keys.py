r"""What a SEARCH can ask for (RFC 3501 section 6.4.4), as a tree.

Several of the RFC's keys are one here: FROM is a header, UNSEEN is not `\Seen`, NEW is `\Recent` and not `\Seen`.
`PLAIN_KEYS` and the constructors beside it say which.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from replicator.errors import MailError
from replicator.imap.wire.sequence_set import SequenceSet

CHARSETS = ("US-ASCII", "UTF-8")
"""Those that SEARCH takes; US-ASCII is the default and a subset of UTF-8."""


class BadCharsetError(MailError):
    """Answered by `NO [BADCHARSET (US-ASCII UTF-8)]` (RFC 3501 section 7.1)."""


class Relation(Enum):
    """How a message's date stands to the one given."""

    BEFORE = "BEFORE"
    ON = "ON"
    SINCE = "SINCE"  # on that day or later


@dataclass(frozen=True, slots=True)
class All:
    """Every message."""


@dataclass(frozen=True, slots=True)
class And:
    """All of the keys; a parenthesised list, or keys one after the other. Of no keys: every message."""

    keys: tuple[SearchKey, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Either of the keys."""

    left: SearchKey
    right: SearchKey


@dataclass(frozen=True, slots=True)
class Not:
    """Messages that do not match the key."""

    key: SearchKey


@dataclass(frozen=True, slots=True)
class SequenceNumbers:
    """Messages by the session's sequence numbers."""

    numbers: SequenceSet


@dataclass(frozen=True, slots=True)
class Uids:
    """UID: messages by UID."""

    uids: SequenceSet


@dataclass(frozen=True, slots=True)
class EmailId:
    """EMAILID (RFC 8474 section 6): messages with this identifier."""

    email_id: str


@dataclass(frozen=True, slots=True)
class Flagged:
    r"""Messages with this flag, `\Seen` or a keyword, in any case of letters."""

    flag: str


@dataclass(frozen=True, slots=True)
class Recent:
    r"""RECENT: messages that are `\Recent` in this session."""


@dataclass(frozen=True, slots=True)
class Larger:
    """Messages of more than so many octets."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Smaller:
    """Messages of fewer than so many octets."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Received:
    """BEFORE, ON, SINCE: the internal date, disregarding time (UTC)."""

    relation: Relation
    date: dt.date


@dataclass(frozen=True, slots=True)
class Sent:
    """SENTBEFORE, SENTON, SENTSINCE: the Date header, disregarding time and timezone."""

    relation: Relation
    date: dt.date


@dataclass(frozen=True, slots=True)
class HeaderContains:
    """HEADER, and FROM, TO, CC, BCC, SUBJECT: a header of this name that holds the text, in any case of letters.

    An empty text matches all messages that have the header.
    """

    name: str
    text: bytes


@dataclass(frozen=True, slots=True)
class BodyContains:
    """BODY: text in the body."""

    text: bytes


@dataclass(frozen=True, slots=True)
class TextContains:
    """TEXT: text in the header or the body."""

    text: bytes


SearchKey: TypeAlias = (
    All
    | And
    | Or
    | Not
    | SequenceNumbers
    | Uids
    | EmailId
    | Flagged
    | Recent
    | Larger
    | Smaller
    | Received
    | Sent
    | HeaderContains
    | BodyContains
    | TextContains
)


@dataclass(frozen=True, slots=True)
class SearchProgram:
    """A SEARCH: `charset` as the client named it (None: it did not) says what the key's texts are written in."""

    key: SearchKey
    charset: str | None = None


def not_flagged(flag: str) -> Not:
    """UNKEYWORD, UNSEEN and so on."""
    return Not(Flagged(flag))


PLAIN_KEYS: Mapping[str, SearchKey] = MappingProxyType(
    {
        "ALL": All(),
        "ANSWERED": Flagged("\\Answered"),
        "DELETED": Flagged("\\Deleted"),
        "DRAFT": Flagged("\\Draft"),
        "FLAGGED": Flagged("\\Flagged"),
        "NEW": And((Recent(), not_flagged("\\Seen"))),
        "OLD": Not(Recent()),
        "RECENT": Recent(),
        "SEEN": Flagged("\\Seen"),
        "UNANSWERED": not_flagged("\\Answered"),
        "UNDELETED": not_flagged("\\Deleted"),
        "UNDRAFT": not_flagged("\\Draft"),
        "UNFLAGGED": not_flagged("\\Flagged"),
        "UNSEEN": not_flagged("\\Seen"),
    }
)
"""The keys without arguments."""

RECEIVED_KEYS: Mapping[str, Relation] = MappingProxyType({relation.value: relation for relation in Relation})
SENT_KEYS: Mapping[str, Relation] = MappingProxyType({f"SENT{relation.value}": relation for relation in Relation})
"""The date keys."""
