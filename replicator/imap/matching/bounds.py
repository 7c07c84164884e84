"""SEARCH as an algebra of bounds: each test gives the messages that pass for sure, and those that may pass.

Tests that need a message's body give no bounds until the scope holds it. NOT, AND and OR combine bounds like sets. Sets
are never changed in place, because scopes and bounds share them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol, Self

from sortedcontainers import SortedSet

from protocol.values import UidSet
from replicator.imap.rendering.decoding import header_text, part_text, sent_date, value_text
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.mime.structure import Part
from replicator.view import MailboxView, Message


class Cost(IntEnum):
    """Cost of a test, by the data that it reads. Cheap tests run first, and each narrows the scope of the next."""

    UIDS = 0
    FLAGS = 1
    ROWS = 2
    HEADER = 3
    BODY = 4


def is_text(part: Part) -> bool:
    """Return True if the part's content is text for people to read."""
    return part.nested is None and part.content_type.value == b"TEXT"


# ---- what is searched -------------------------------------------------------------------------------------------


class ReadableText:
    """A message's text as people read it, case-folded for comparison. Held only while one message is examined."""

    def __init__(self, body: ParsedBody) -> None:
        self._body = body

    def values(self, name: bytes) -> Iterable[str]:
        """Return the values of all header fields of this name, which must be in lower case."""
        return (value_text(value).casefold() for value in self._body.header.values(name))

    @cached_property
    def header(self) -> str:
        """The whole header."""
        return header_text(self._body.header).casefold()

    @cached_property
    def sent(self) -> dt.date | None:
        """The day in the Date field."""
        return sent_date(self._body.header)

    @cached_property
    def body(self) -> list[str]:
        """The text parts, and the headers of nested messages."""
        found = []
        for part in self._body.structure.walk():
            if part.nested is not None:
                found.append(header_text(part.nested.header).casefold())
            elif is_text(part):
                found.append(part_text(part).casefold())
        return found


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The messages to test: all up to `last`, or those `chosen`; with the text if there is only one."""

    view: MailboxView
    last: int
    chosen: set[int] | None = None
    text: ReadableText | None = None

    @classmethod
    def of_one(cls, message: Message, text: ReadableText) -> Self:
        """Return the scope of one message with its text. It shares nothing with the live view: a thread may use it."""
        alone = MailboxView.build(
            mailbox_id=b"", user="", uidvalidity=1, uidnext=message.uid + 1, highestmodseq=0, rows=(message,)
        )
        return cls(alone, message.uid, {message.uid}, text)

    def everything(self) -> set[int]:
        """Return the UIDs of all messages in scope."""
        if self.chosen is not None:
            return self.chosen
        messages = self.view.messages
        return set(islice(messages, messages.bisect_right(self.last)))

    def within(self, uids: UidSet) -> set[int]:
        """Return the UIDs in scope that are among `uids`."""
        if self.chosen is not None:
            return {uid for uid in self.chosen if uid in uids}
        messages = self.view.messages
        return {uid for low, high in uids.ranges for uid in messages.irange(low, min(high, self.last))}

    def having(self, flag: str) -> set[int]:
        """Return the UIDs in scope that have this flag, in this spelling."""
        flagged = self.view.by_flag.get(flag, SortedSet())
        if self.chosen is not None:
            return {uid for uid in self.chosen if uid in flagged}
        return set(flagged.irange(maximum=self.last))


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
    """A test for one flag, in all spellings that the mailbox has."""

    flags: tuple[str, ...]
    cost: Cost = Cost.FLAGS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        return Bounds.exact(set().union(*(scope.having(flag) for flag in self.flags)))


@dataclass(frozen=True, slots=True)
class OfRow:
    """A test of a message's row in the view."""

    matches: Callable[[Message], bool]
    cost: Cost = Cost.ROWS

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        messages = scope.view.messages
        return Bounds.exact({uid for uid in scope.everything() if self.matches(messages[uid])})


@dataclass(frozen=True, slots=True)
class OfText:
    """A test of a message's text."""

    matches: Callable[[ReadableText], bool]
    cost: Cost = Cost.HEADER

    def bounds(self, scope: SearchScope) -> Bounds:
        """See `Test`."""
        if scope.text is None:
            return Bounds(set(), scope.everything())
        return Bounds.exact(scope.everything() if scope.everything() and self.matches(scope.text) else set())


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
            scope = replace(scope, chosen=bounds.possible)
        return Bounds(scope.everything() if sure is None else sure, scope.everything())


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
            if scope.chosen is not None and sure >= scope.chosen:
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
        everything = scope.everything()
        return Bounds(everything - possible, everything - sure)
