r"""Search keys (RFC 3501 section 6.4.4), as a tree.

Several of the RFC's keys share one class: SUBJECT is a header, UNSEEN is not `\Seen`, NEW is `\Recent` and not `\Seen`.
`PLAIN_KEYS` and the constructors beside it define them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from replicator.errors import MailError
from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.sequence_set import SequenceSet

CHARSETS = ("US-ASCII", "UTF-8")
"""Charsets that SEARCH accepts; US-ASCII is the default and a subset of UTF-8."""


class BadCharsetError(MailError):
    """A charset or text that SEARCH rejects: `NO [BADCHARSET (US-ASCII UTF-8)]` (RFC 3501 section 7.1)."""


class Relation(Enum):
    """Relation of a message's date to the given one."""

    BEFORE = "BEFORE"
    ON = "ON"
    SINCE = "SINCE"  # on that day or later


@dataclass(frozen=True, slots=True)
class All:
    """Every message."""


@dataclass(frozen=True, slots=True)
class And:
    """All of the keys: a parenthesised list, or keys one after the other. Without keys: every message."""

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
class Saved:
    """`$`: the messages that the last SEARCH with SAVE has found (RFC 5182)."""


@dataclass(frozen=True, slots=True)
class EmailId:
    """EMAILID (RFC 8474 section 6): messages with this identifier."""

    email_id: str


@dataclass(frozen=True, slots=True)
class ThreadId:
    """THREADID (RFC 8474 section 6): messages of the conversation with this identifier."""

    thread_id: str


@dataclass(frozen=True, slots=True)
class ModSeq:
    """MODSEQ: messages with this MODSEQ or a higher one (RFC 7162 section 3.1.5).

    Messages have one MODSEQ for all their flags, so the name of a flag is ignored.
    """

    modseq: int


@dataclass(frozen=True, slots=True)
class Flagged:
    r"""Messages with this flag, such as `\Seen` or a keyword, in any case."""

    flag: str


@dataclass(frozen=True, slots=True)
class Recent:
    r"""RECENT: messages that are `\Recent` in this session."""


@dataclass(frozen=True, slots=True)
class Larger:
    """Messages larger than this size in octets."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Smaller:
    """Messages smaller than this size in octets."""

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
class SaveDate:
    """SAVEDBEFORE, SAVEDON, SAVEDSINCE: the save date, or else the internal date, disregarding time (UTC).

    RFC 8514 section 4.3.
    """

    relation: Relation
    date: dt.date


@dataclass(frozen=True, slots=True)
class ReceivedWithin:
    """YOUNGER: messages received in the last so many seconds (RFC 5032). OLDER: earlier than those."""

    seconds: int
    younger: bool


@dataclass(frozen=True, slots=True)
class AddressContains:
    """FROM, TO, CC, BCC: a header field of this name that contains the text, as it stands there or as addresses."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True)
class HeaderContains:
    """HEADER and SUBJECT: a header field of this name that contains the text, in any case.

    An empty text matches all messages that have the field.
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
    | Saved
    | EmailId
    | ThreadId
    | ModSeq
    | Flagged
    | Recent
    | Larger
    | Smaller
    | Received
    | Sent
    | SaveDate
    | ReceivedWithin
    | AddressContains
    | HeaderContains
    | BodyContains
    | TextContains
)


@dataclass(frozen=True, slots=True)
class SearchProgram:
    """A SEARCH. `charset` is the encoding of the key's texts, as named by the client; None: not named."""

    key: SearchKey
    charset: str | None = None


class ReturnOption(Enum):
    """Results that a SEARCH can ask for (RFC 4731 section 3.1, RFC 5182 section 2.1)."""

    MIN = "MIN"
    MAX = "MAX"
    ALL = "ALL"
    COUNT = "COUNT"
    SAVE = "SAVE"
    CONTEXT = "CONTEXT"  # RFC 5267 section 4.2: a hint, which is not needed here
    UPDATE = "UPDATE"  # RFC 5267 section 4.3


@dataclass(frozen=True, slots=True)
class Returns:
    """Results that a SEARCH or SORT asks for. `partial`: the first and last places wanted (RFC 5267 section 4.4).

    `update_items`: what UPDATE is to send of each new message that comes into the results (RFC 5465 section 7).
    """

    options: frozenset[ReturnOption]
    partial: tuple[int, int] | None = None
    update_items: tuple[FetchItem, ...] = ()

    def __contains__(self, option: ReturnOption) -> bool:
        return option in self.options

    @property
    def silent(self) -> bool:
        """True if there is no response: what is found is for `$` alone (RFC 5182 section 2.1)."""
        return self.partial is None and self.options - _NOT_RESULTS == {ReturnOption.SAVE}


_NOT_RESULTS = frozenset({ReturnOption.CONTEXT, ReturnOption.UPDATE})


def single_keys(key: SearchKey) -> Iterator[SearchKey]:
    """Yield the keys of a tree that hold no others."""
    match key:
        case And(keys):
            for part in keys:
                yield from single_keys(part)
        case Or(left, right):
            yield from single_keys(left)
            yield from single_keys(right)
        case Not(negated):
            yield from single_keys(negated)
        case _:
            yield key


def depends_on_message_alone(key: SearchKey) -> bool:
    """Return True if the same message matches the key as long as it does not change."""
    return not any(
        isinstance(single, SequenceNumbers | Saved | Recent | ReceivedWithin)
        or (isinstance(single, Uids) and any(None in ends for ends in single.uids.ranges))
        for single in single_keys(key)
    )


def count_keys(key: SearchKey) -> int:
    """Return the number of single keys in a tree of keys."""
    return sum(1 for _ in single_keys(key))


def count_ranges(key: SearchKey, saved: int) -> int:
    """Return the number of ranges in all sequence sets of a tree of keys; `$` counts as `saved`."""
    count = 0
    for single in single_keys(key):
        match single:
            case SequenceNumbers(numbers) | Uids(numbers):
                count += len(numbers.ranges)
            case Saved():
                count += saved
    return count


def has_numbers(key: SearchKey) -> bool:
    """Return True if a tree of keys names messages by their sequence numbers."""
    return any(isinstance(single, SequenceNumbers) for single in single_keys(key))


def has_modseq(key: SearchKey) -> bool:
    """Return True if a tree of keys has a MODSEQ."""
    return any(isinstance(single, ModSeq) for single in single_keys(key))


def not_flagged(flag: str) -> Not:
    """Return the key of UNKEYWORD, UNSEEN and so on."""
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
        "SAVEDATESUPPORTED": All(),  # RFC 8514 section 4.3: all mailboxes keep save dates
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
SAVED_KEYS: Mapping[str, Relation] = MappingProxyType({f"SAVED{relation.value}": relation for relation in Relation})
"""The date keys."""
