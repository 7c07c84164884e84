"""SEARCH as an algebra of bounds: each test gives the messages that pass for sure, and those that may pass.

Tests that need a message's body give no bounds until the scope holds it. NOT, AND and OR combine bounds like sets. Sets
are never changed in place, because scopes and bounds share them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import AnyStr, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from protocol.units import KIB
from protocol.values import UID_MAX, UidSet
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue, made
from replicator.imap.rendering.outline import Outline
from replicator.imap.rendering.search_text import SearchText, compared_header, compared_texts, encoded
from replicator.imap.work_meter import WorkMeter
from replicator.mail.view import MailboxView, Message
from replicator.mime.header import Header

V = TypeVar("V", bound=ColumnValue)

_PIECE = 64 * KIB  # characters or octets
_NO_FIELDS = Header.at(b"", 0, 0)
_UIDS_A_RANGE = 10  # UIDs that are looked up in a set, one by one, in the time of finding the messages of one range


class Cost(IntEnum):
    """Cost of a test, by the data that it reads. Cheap tests run first, and each narrows the scope of the next."""

    UIDS = 0
    FLAGS = 1
    ROWS = 2
    HEADER = 3
    BODY = 4


# ---- what is searched -------------------------------------------------------------------------------------------


class HeaderText:
    """A message's header fields as people read them, as they are compared. What it does not tell is None."""

    def __init__(self, header: Header, work: WorkMeter) -> None:
        self._fields = header
        self._work = work
        self._values: dict[object, ColumnValue] = {}

    def tells(self, _column: Column[V]) -> bool:
        """Return True if the column's value is known."""
        return True

    def value(self, column: Column[V]) -> V:
        """Return the value of a column that is known."""
        if column not in self._values:
            self._values[column] = made(column, self._fields, self._work)
        return cast("V", self._values[column])

    def in_header(self, _wanted: str, /) -> bool | None:
        """Return True if the whole header contains the text."""
        return None

    def in_body(self, _wanted: str, /) -> bool | None:
        """Return True if a text part, or the header of a nested message, contains the text."""
        return None

    def _any_has(self, texts: Sequence[Sequence[AnyStr]], wanted: AnyStr) -> bool:
        self._work.spend(len(texts) + sum(len(piece) for text in texts for piece in text) // KIB)
        return any(contains(text, wanted) for text in texts)


class KeptText(HeaderText):
    """Kept knowledge of a message's text: an outline, a search text, or both."""

    def __init__(self, outline: Outline | None, kept: SearchText | None, work: WorkMeter) -> None:
        super().__init__(_NO_FIELDS if outline is None else outline.header, work)
        self._outline = outline
        self._kept = kept

    def tells(self, column: Column[V]) -> bool:
        """See `HeaderText`."""
        return self._outline is not None and column.field not in self._outline.left_out

    def in_header(self, wanted: str, /) -> bool | None:
        """See `HeaderText`."""
        return None if self._kept is None else self._any_has([[self._kept.header]], encoded(wanted))

    def in_body(self, wanted: str, /) -> bool | None:
        """See `HeaderText`."""
        return None if self._kept is None else self._any_has([[text] for text in self._kept.texts], encoded(wanted))


class ReadableText(HeaderText):
    """A message's whole text. Held only while one message is examined."""

    def __init__(self, body: ParsedBody, work: WorkMeter) -> None:
        super().__init__(body.header, work)
        self._body = body

    def in_header(self, wanted: str, /) -> bool:
        """See `HeaderText`."""
        return self._any_has([[self._header]], wanted)

    def in_body(self, wanted: str, /) -> bool:
        """See `HeaderText`."""
        return self._any_has(self._texts, wanted)

    @cached_property
    def _header(self) -> str:
        return compared_header(self._body.header)

    @cached_property
    def _texts(self) -> list[list[str]]:
        return [[*pieces] for pieces in compared_texts(self._body)]


def has_text(value: str | None, wanted: str) -> bool:
    """Return True if a column's text contains the text that is searched for, within one of the fields."""
    if value is None:
        return False
    return wanted in value if len(value) <= _PIECE else contains((value,), wanted)


def contains(text: Sequence[AnyStr], wanted: AnyStr) -> bool:
    """Return True if `wanted` is in the text, which comes in pieces without anything in between.

    Looks at some of it at a time: other threads wait while a piece is searched.

    The search of a piece takes its length times that of `wanted`, at worst, if `wanted` is short.
    """
    before = wanted[:0]  # the end of what was searched, in which `wanted` may begin
    for piece in text:
        for start in range(0, len(piece), _PIECE):
            searched = before + piece[start : start + _PIECE]
            if wanted in searched:
                return True
            before = searched[max(0, len(searched) - len(wanted) + 1) :]
    return not wanted


@dataclass(frozen=True)
class SearchScope:
    """The messages to test: those of `uids`, which ascend and are not empty, that are in the view and in `narrowed`.

    `is_run`: no other message of the view lies between these UIDs. `spellings` are the mailbox's flags by their names
    in lower case. `texts` are those that are known, by UID; `columns` what is known of the headers, in the order of
    `uids`.
    """

    view: MailboxView
    spellings: Mapping[str, Sequence[str]]
    uids: Sequence[int]
    work: WorkMeter
    texts: Mapping[int, HeaderText] = field(default_factory=dict)
    columns: Columns | None = None
    is_run: bool = False
    narrowed: set[int] | None = None

    @classmethod
    def of_some(
        cls,
        view: MailboxView,
        uids: Sequence[int],
        work: WorkMeter,
        columns: Columns | None = None,
        *,
        is_run: bool = False,
    ) -> Self:
        """Return the scope of the messages with these UIDs, ascending and not empty, that are still in the view."""
        return cls(view, _spellings(view), uids, work, columns=columns, is_run=is_run)

    @classmethod
    def of_one(cls, message: Message, body: ParsedBody, work: WorkMeter) -> Self:
        """Return the scope of one message with its text. It shares nothing with the live view: a thread may use it."""
        return cls._alone((message,), work, texts={message.uid: ReadableText(body, work)})

    @classmethod
    def of_kept(cls, messages: Sequence[Message], kept: Mapping[int, KeptText], work: WorkMeter) -> Self:
        """Return the scope of these messages, ascending and not empty, with what is kept of them, as `of_one` does."""
        return cls._alone(messages, work, texts=kept)

    @classmethod
    def of_columns(cls, messages: Sequence[Message], columns: Columns, work: WorkMeter) -> Self:
        """Return the scope of these messages, ascending and not empty, with their columns, as `of_one` does."""
        return cls._alone(messages, work, columns=columns)

    @classmethod
    def _alone(
        cls,
        messages: Sequence[Message],
        work: WorkMeter,
        *,
        texts: Mapping[int, HeaderText] = MappingProxyType({}),
        columns: Columns | None = None,
    ) -> Self:
        uids = [message.uid for message in messages]
        alone = MailboxView.build(
            mailbox_id=b"", user="", uidvalidity=1, uidnext=uids[-1] + 1, highestmodseq=0, rows=messages
        )
        return cls(alone, _spellings(alone), uids, work, texts, columns)

    @cached_property
    def chosen(self) -> set[int]:
        """UIDs of the messages to test. To test a flag of a run of messages, nobody needs to find them all."""
        if self.narrowed is not None:
            return self.narrowed
        return set(filter(self.view.messages.__contains__, self.uids))

    def within(self, uids: UidSet) -> set[int]:
        """Return the UIDs in scope that are among `uids`."""
        ranges, first, last = uids.ranges, self.uids[0], self.uids[-1]
        low = max(0, bisect_right(ranges, (first, UID_MAX)) - 1)
        high = bisect_right(ranges, (last, UID_MAX), low)
        self.work.spend(high - low + len(self.chosen))
        if high - low > len(self.chosen) // _UIDS_A_RANGE:
            return {uid for uid in self.chosen if uid in uids}
        found: set[int] = set()
        for start, end in ranges[low:high]:
            found.update(self.view.messages.irange(max(start, first), min(end, last)))
        return found & self.chosen

    def having(self, flag: str) -> set[int]:
        """Return the UIDs in scope that have this flag, in any case."""
        is_whole = self.is_run and self.narrowed is None
        self.work.spend(len(self.uids if is_whole else self.chosen))
        spellings = self.spellings.get(flag, ())
        spelled = chain.from_iterable(self.view.by_flag[one].irange(self.uids[0], self.uids[-1]) for one in spellings)
        return set(spelled) if is_whole else self.chosen.intersection(spelled)


def _spellings(view: MailboxView) -> Mapping[str, Sequence[str]]:
    spellings: dict[str, list[str]] = {}
    for flag in view.by_flag:
        spellings.setdefault(flag.lower(), []).append(flag)
    return spellings


# ---- tests ------------------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """Result of a test: the messages that pass for `sure`, within the `possible` ones, within the scope."""

    sure: set[int]
    possible: set[int]

    @classmethod
    def exact(cls, uids: set[int]) -> Bounds:
        """Return bounds that leave no doubt."""
        return cls(uids, uids)


class Test(Protocol):
    """A search key, compiled for evaluation."""

    @property
    def cost(self) -> Cost:
        """The most expensive data that the test reads."""
        ...

    def bounds(self, scope: SearchScope) -> Bounds:
        """Return bounds on the scope's messages that pass."""
        ...


@dataclass(frozen=True, slots=True)
class Within:
    """A test for messages with these UIDs."""

    uids: UidSet
    cost: Cost = Cost.UIDS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        return Bounds.exact(scope.within(self.uids))


@dataclass(frozen=True, slots=True)
class Having:
    """A test for one flag, in lower case, in all spellings that the mailbox has."""

    flag: str
    cost: Cost = Cost.FLAGS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        return Bounds.exact(scope.having(self.flag))


@dataclass(frozen=True, slots=True)
class OfRow:
    """A test of a message's row in the view."""

    matches: Callable[[Message], bool]
    cost: Cost = Cost.ROWS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        scope.work.spend(len(scope.chosen))
        messages = scope.view.messages
        return Bounds.exact({uid for uid in scope.chosen if self.matches(messages[uid])})


@dataclass(frozen=True, slots=True)
class OfColumn(Generic[V]):
    """A test of a value that is made of a message's header."""

    column: Column[V]
    passes: Callable[[V], bool]
    cost: Cost = Cost.HEADER

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        scope.work.spend(len(scope.chosen))
        if scope.columns is not None:
            scope.work.spend(scope.columns.size_of(self.column) // KIB)
            values = zip(scope.uids, scope.columns.of(self.column), strict=True)
            return Bounds.exact(scope.chosen.intersection([uid for uid, value in values if self.passes(value)]))
        found = {uid: scope.texts[uid].value(self.column) for uid in scope.chosen if self._is_known(uid, scope)}
        sure = {uid for uid, value in found.items() if self.passes(value)}
        return Bounds(sure, scope.chosen.difference(found.keys() - sure))

    def _is_known(self, uid: int, scope: SearchScope) -> bool:
        return uid in scope.texts and scope.texts[uid].tells(self.column)


@dataclass(frozen=True, slots=True)
class OfText:
    """A test of a message's text. `matches` returns None if what is known of the text does not tell."""

    matches: Callable[[HeaderText], bool | None]
    cost: Cost = Cost.HEADER

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        scope.work.spend(len(scope.chosen))
        if not scope.texts:
            return Bounds(set(), scope.chosen)
        found = {uid: self.matches(scope.texts[uid]) if uid in scope.texts else None for uid in scope.chosen}
        sure = {uid for uid, matched in found.items() if matched}
        return Bounds(sure, {uid for uid, matched in found.items() if matched is not False})


@dataclass(frozen=True, slots=True)
class AllOf:
    """A test for messages that pass all of the tests; without tests, every message passes."""

    tests: tuple[Test, ...]  # cheapest first

    @property
    def cost(self) -> Cost:
        """The cost of the most expensive test."""
        return self.tests[-1].cost if self.tests else Cost.UIDS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        sure = None
        for test in self.tests:
            bounds = test.bounds(scope)
            sure = bounds.sure if sure is None else sure & bounds.sure
            if not bounds.possible:
                return bounds
            scope = replace(scope, narrowed=bounds.possible)
        return Bounds(scope.chosen if sure is None else sure, scope.chosen)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A test for messages that pass any of the tests."""

    tests: tuple[Test, ...]  # cheapest first

    @property
    def cost(self) -> Cost:
        """The cost of the most expensive test."""
        return self.tests[-1].cost if self.tests else Cost.UIDS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        sure: set[int] = set()
        possible: set[int] = set()
        for test in self.tests:
            bounds = test.bounds(scope)
            sure, possible = sure | bounds.sure, possible | bounds.possible
            if sure >= scope.chosen:
                break
        return Bounds(sure, possible)


@dataclass(frozen=True, slots=True)
class NoneOf:
    """A test for messages that do not pass the inner test."""

    test: Test

    @property
    def cost(self) -> Cost:
        """The cost of the inner test."""
        return self.test.cost

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        sure, possible = self.test.bounds(scope)
        return Bounds(scope.chosen - possible, scope.chosen - sure)
