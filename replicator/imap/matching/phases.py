"""SEARCH (RFC 3501 section 6.4.4) over a mailbox view, in three phases.

The first phase bounds every key by what the view knows: the messages that match for sure, and those that may. A key on
content matches none for sure and may match all; NOT, AND and OR combine these bounds like sets. The second phase,
`narrow`, bounds the keys of the messages in doubt by their outlines and search texts, too. In the third phase the
caller reads only the messages that are still in doubt, and calls `matches` for each. All phases take a part of the
messages at a time, so that the caller can pause.

No I/O here. A SEARCH covers the messages that the session has announced: those up to its last UID (new ones get higher
UIDs, design section 3) that are still in the view.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import singledispatchmethod
from typing import NamedTuple, TypeVar

from protocol.values import UidSet
from replicator.imap.matching.bounds import (
    AllOf,
    AnyOf,
    Cost,
    Having,
    KeptText,
    NoneOf,
    OfColumn,
    OfRow,
    OfText,
    SearchScope,
    Test,
    Within,
    has_text,
)
from replicator.imap.rendering.fetch_answers import ParsedBody, email_id
from replicator.imap.rendering.header_columns import (
    SENT_DAY,
    THREAD_NAMED,
    Column,
    Columns,
    ColumnValue,
    texts,
    texts_and_addresses,
)
from replicator.imap.rendering.outline import Outline
from replicator.imap.rendering.search_text import SearchText
from replicator.imap.rendering.thread_id import lone_thread
from replicator.imap.text.casemap import casemap
from replicator.imap.wire import search_keys as keys
from replicator.imap.work_meter import WorkMeter
from replicator.mail.view import MailboxView, Message
from replicator.mime.header import Header

V = TypeVar("V", bound=ColumnValue)

_DAY_MS = 86_400_000
_EPOCH = dt.date(1970, 1, 1)


STEP_WORK = 5_000
"""Steps of work on the rows of messages between two pauses: some milliseconds."""


class Decided(NamedTuple):
    """Result of the first phase for some messages: UIDs that match for `sure`, and `doubtful` ones, ascending."""

    sure: set[int]
    doubtful: list[int]


class Basis(NamedTuple):
    r"""The meaning of a session's numbers and times. It must stay the same while a SEARCH runs.

    `uids` are the ones announced to the client, ascending, sequence number n at index n - 1, or if not `is_whole`, some
    of them; `recent` are the UIDs that are `\Recent` in the session, and `saved` those that `$` means.
    """

    uids: Sequence[int]
    recent: UidSet = UidSet()
    saved: Sequence[int] = ()
    now_ms: int = 0
    is_whole: bool = False


class Search:
    """One SEARCH of one session.

    The view may change while it runs: each message is tested as it is at one moment. Raises BadCharsetError.
    """

    def __init__(self, program: keys.SearchProgram, view: MailboxView, basis: Basis, work: WorkMeter) -> None:
        self._view = view
        self._uids, self._is_whole = basis.uids, basis.is_whole
        self._work = work
        compiler = _Compiler(basis, _codec(program.charset))
        self._test = compiler.test_of(program.key)
        self.columns = [*compiler.columns]
        """The columns that the keys compare. If there is nothing, outlines tell nothing that helps."""
        self.keys = max(1, keys.count_keys(program.key))

    def decide(self) -> Iterator[Decided]:
        """Yield, for some messages at a time, those that match with any body, and those that need a call of `matches`.

        Raises WorkExceededError.
        """
        for some in self._steps(max(1, STEP_WORK // self.keys)):
            sure, possible = self._test.bounds(SearchScope.of_some(self._view, some, self._work, is_run=self._is_whole))
            yield Decided(sure, sorted(possible - sure))

    def _steps(self, at_once: int) -> Iterator[Sequence[int]]:
        """Yield UIDs, so many at a time, or a few less: the next step begins at a round UID, if one is near.

        So a step has the same messages next time, whatever comes or goes before them (`slices` in `header_cache`).
        """
        start = 0
        while start < len(self._uids):
            end = min(start + at_once, len(self._uids))
            if end < len(self._uids):
                least = self._uids[end] // at_once * at_once
                end = bisect_left(self._uids, least, start + 1 + at_once // 2, end)
            yield self._uids[start:end]
            start = end

    def narrow(
        self, messages: Sequence[Message], outlines: Mapping[bytes, bytes], texts: Mapping[bytes, bytes]
    ) -> Decided:
        """Return the messages that match by outlines and search texts, and those that still need a call of `matches`.

        The messages come in ascending order; there is at least one. `outlines` and `texts`: by content hash. May run in
        a thread, as `matches` may. Raises WorkExceededError.
        """
        kept = dict[int, KeptText]()
        for message in messages:
            outline = Outline.unpack(outlines.get(message.content_hash))
            text = SearchText.unpack(texts.get(message.content_hash))
            if outline is not None or text is not None:
                kept[message.uid] = KeptText(outline, text, self._work)
        sure, possible = self._test.bounds(SearchScope.of_kept(messages, kept, self._work))
        return Decided(sure, sorted(possible - sure))

    def by_columns(self, messages: Sequence[Message], columns: Columns) -> set[int]:
        """Return which of these messages match, as they are in the view now. Their headers tell all that is in doubt.

        The messages come in ascending order; there is at least one. Raises WorkExceededError.
        """
        uids = [message.uid for message in messages]
        return self._test.bounds(SearchScope.of_some(self._view, uids, self._work, columns)).sure

    def by_columns_apart(self, messages: Sequence[Message], columns: Columns) -> set[int]:
        """Return which of these messages match as they are given. May run in a thread, otherwise like `by_columns`."""
        return self._test.bounds(SearchScope.of_columns(messages, columns, self._work)).sure

    @property
    def reads_bodies(self) -> bool:
        """True if `matches` reads more of a message than its header."""
        return self._test.cost is Cost.BODY

    def matches(self, message: Message, body: ParsedBody) -> bool:
        """Return True if the message matches. Uses no state that anything else changes, so it may run in a thread.

        Raises WorkExceededError.
        """
        return bool(self._test.bounds(SearchScope.of_one(message, body, self._work)).sure)


def _codec(charset: str | None) -> str:
    """Return the codec of a charset. Without a charset it is UTF-8, of which US-ASCII is a subset."""
    if charset is not None and charset.upper() not in keys.CHARSETS:
        raise keys.BadCharsetError(f"Charset {charset[:40]!r} is not supported; use {' or '.join(keys.CHARSETS)}")
    return "ascii" if charset is not None and charset.upper() == "US-ASCII" else "utf-8"


class _Compiler:
    """Compiles a client's search keys to tests: numbers to UIDs, octets to text."""

    def __init__(self, basis: Basis, codec: str) -> None:
        self._basis = basis
        self._codec = codec
        self.columns: dict[Column[ColumnValue], None] = {}

    @singledispatchmethod
    def test_of(self, key: keys.SearchKey) -> Test:
        """Return the test for a key. Raises BadCharsetError for a text that is invalid in the named charset."""
        raise AssertionError(f"no such search key: {key!r}")

    @test_of.register
    def _(self, _key: keys.All) -> Test:
        return AllOf(())

    @test_of.register
    def _(self, key: keys.And) -> Test:
        return AllOf(self._tests_of(key.keys))

    @test_of.register
    def _(self, key: keys.Or) -> Test:
        return AnyOf(self._tests_of((key.left, key.right)))

    @test_of.register
    def _(self, key: keys.Not) -> Test:
        return NoneOf(self.test_of(key.key))

    @test_of.register
    def _(self, key: keys.SequenceNumbers) -> Test:
        # Every announced UID between a run's ends is in the run, so its range of UIDs adds no message announced later.
        uids, count = self._basis.uids, len(self._basis.uids)
        runs = key.numbers.resolve(count).ranges
        return Within(
            UidSet.of_ranges((uids[low - 1], uids[min(high, count) - 1]) for low, high in runs if 0 < low <= count)
        )

    @test_of.register
    def _(self, key: keys.Uids) -> Test:
        return Within(key.uids.resolve(self._basis.uids[-1] if self._basis.uids else 0))

    @test_of.register
    def _(self, _key: keys.Saved) -> Test:
        return Within(UidSet.of(self._basis.saved))

    @test_of.register
    def _(self, key: keys.EmailId) -> Test:
        return OfRow(lambda message: email_id(message) == key.email_id)

    @test_of.register
    def _(self, key: keys.ThreadId) -> Test:
        alone = OfRow(lambda message: lone_thread(message) == key.thread_id)
        unnamed = self._of_column(THREAD_NAMED, lambda named: named is None)
        named = self._of_column(THREAD_NAMED, lambda named: named == key.thread_id)
        return AnyOf((AllOf((alone, unnamed)), named))

    @test_of.register
    def _(self, key: keys.ModSeq) -> Test:
        return OfRow(lambda message: message.modseq >= key.modseq)

    @test_of.register
    def _(self, key: keys.Flagged) -> Test:
        return Having(key.flag.lower())

    @test_of.register
    def _(self, _key: keys.Recent) -> Test:
        return Within(self._basis.recent)

    @test_of.register
    def _(self, key: keys.Larger) -> Test:
        return OfRow(lambda message: message.size_bytes > key.size_bytes)

    @test_of.register
    def _(self, key: keys.Smaller) -> Test:
        return OfRow(lambda message: message.size_bytes < key.size_bytes)

    @test_of.register
    def _(self, key: keys.Received) -> Test:
        day = (key.date - _EPOCH).days
        return OfRow(lambda message: _stands(message.received_ms // _DAY_MS, key.relation, day))

    @test_of.register
    def _(self, key: keys.SaveDate) -> Test:
        day = (key.date - _EPOCH).days
        return OfRow(lambda message: _stands(_saved_or_received_ms(message) // _DAY_MS, key.relation, day))

    @test_of.register
    def _(self, key: keys.ReceivedWithin) -> Test:
        since_ms = self._basis.now_ms - 1000 * key.seconds
        return OfRow(lambda message: (message.received_ms >= since_ms) is key.younger)

    @test_of.register
    def _(self, key: keys.Sent) -> Test:
        day = key.date.toordinal()
        return self._of_column(SENT_DAY, lambda sent: sent is not None and _stands(sent, key.relation, day))

    @test_of.register
    def _(self, key: keys.AddressContains) -> Test:
        return self._of_texts(texts_and_addresses, key.name, key.text)

    @test_of.register
    def _(self, key: keys.HeaderContains) -> Test:
        return self._of_texts(texts, key.name, key.text)

    @test_of.register
    def _(self, key: keys.BodyContains) -> Test:
        wanted = self._folded(key.text)
        return OfText(lambda text: text.in_body(wanted), Cost.BODY)

    @test_of.register
    def _(self, key: keys.TextContains) -> Test:
        wanted = self._folded(key.text)
        return OfText(lambda text: text.in_header(wanted) or text.in_body(wanted), Cost.BODY)

    def _of_texts(self, make: Callable[[Header, bytes], str | None], name: str, text: bytes) -> Test:
        wanted = self._folded(text)
        return self._of_column(Column(make, name.lower().encode("latin-1")), lambda value: has_text(value, wanted))

    def _of_column(self, column: Column[V], passes: Callable[[V], bool]) -> Test:
        self.columns[column] = None
        return OfColumn(column, passes)

    def _tests_of(self, parts: Iterable[keys.SearchKey]) -> tuple[Test, ...]:
        """Return the tests of different keys, cheapest first. Equal keys have one test."""
        return tuple(sorted(map(self.test_of, dict.fromkeys(parts)), key=lambda test: test.cost))

    def _folded(self, text: bytes) -> str:
        try:
            return casemap(text.decode(self._codec))
        except UnicodeDecodeError as error:
            raise keys.BadCharsetError(f"The text to search for is not in {self._codec.upper()}") from error


def _saved_or_received_ms(message: Message) -> int:
    """Return the time that counts for a search by save dates (RFC 8514 section 4.3)."""
    return message.received_ms if message.saved_ms is None else message.saved_ms


def _stands(day: int, relation: keys.Relation, to_day: int) -> bool:
    if relation is keys.Relation.BEFORE:
        return day < to_day
    return day == to_day if relation is keys.Relation.ON else day >= to_day
