"""Results of searches that their client wants to be kept up to date (UPDATE, RFC 5267 section 4.3).

The session asks for the lines, in this order: what is expunged, before the EXPUNGEs; then, once new messages are
announced, what changed messages have come in and gone out of the results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import ExitStack

from replicator.imap.ordering.sorting import Row, uid_of
from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.responses import update_response
from replicator.imap.wire.search_keys import SearchProgram
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.view import MailboxView

MAX_SEARCHES = 4
"""Limit of searches of a session that are kept up to date: each looks at every message that changes."""

MAX_RESULTS = 20_000
"""Limit of results of a search that is to be kept up to date: they stay in memory, and are gone through at once."""

Numbered = Callable[[int], int | None]
"""The number by which the client knows a UID."""


class UpdatedSearch:
    """The results of one search, as its client knows them. `criteria` is None if they have no order."""

    def __init__(
        self,
        tag: str,
        program: SearchProgram,
        criteria: tuple[SortCriterion, ...] | None,
        *,
        by_uid: bool,
        items: tuple[FetchItem, ...] = (),
    ) -> None:
        """`items`: what the client is sent of each new message that comes into the results (RFC 5465 section 7)."""
        self.items = items
        self.tag = tag
        self.program = program
        self.criteria = criteria
        self._by_uid = by_uid
        self._uids: set[int] = set()
        self._order: list[Row] = []  # empty if they have no order

    def __contains__(self, uid: int) -> bool:
        return uid in self._uids

    def begin(self, rows: Collection[Row]) -> None:
        """Set the first results, in their order."""
        self._uids = set(map(uid_of, rows))
        self._order = [*rows] if self.criteria is not None else []

    def remove(self, uids: Iterable[int], number: Numbered) -> list[bytes]:
        """Remove these messages, if they are among the results; return REMOVEFROM, in which the last come first."""
        gone = self._uids.intersection(uids)
        self._uids -= gone
        if not gone:
            return []
        if self.criteria is None:
            return [self._line("REMOVEFROM", [(0, sorted(self._numbers(gone, number)))])]
        places = enumerate(map(uid_of, self._order), 1)
        pairs = [(place, self._numbers([uid], number)) for place, uid in places if uid in gone]
        self._order = [row for row in self._order if uid_of(row) not in gone]
        return [self._line("REMOVEFROM", reversed(pairs))]

    def add(self, rows: Collection[Row], number: Numbered) -> list[bytes]:
        """Add messages that are not among the results; return ADDTO."""
        if not rows:
            return []
        self._uids.update(map(uid_of, rows))
        if self.criteria is None:
            return [self._line("ADDTO", [(0, sorted(self._numbers(map(uid_of, rows), number)))])]
        pairs = []
        for row in sorted(rows):
            place = bisect_left(self._order, row)
            self._order.insert(place, row)
            pairs.append((place + 1, self._numbers([uid_of(row)], number)))
        return [self._line("ADDTO", pairs)]

    def _numbers(self, uids: Iterable[int], number: Numbered) -> list[int]:
        numbers = uids if self._by_uid else map(number, uids)
        return [number for number in numbers if number is not None]

    def _line(self, name: str, pairs: Iterable[tuple[int, list[int]]]) -> bytes:
        return update_response(self.tag, name, pairs, by_uid=self._by_uid)


class SearchUpdates:
    """All searches of a session that are kept up to date, by the tags of their commands, and what has changed.

    `last`: the last UID that the client knows. Searches pass over later messages until these are announced.
    """

    def __init__(self, view: MailboxView, last: int) -> None:
        self._exit = ExitStack()
        self._subscription = self._exit.enter_context(view.subscribe())
        self.searches: dict[str, UpdatedSearch] = {}
        self._changed = set(view.messages.irange(last + 1))

    def close(self) -> None:
        """End the subscription to the mailbox."""
        self._exit.close()

    def take_expunged(self, number: Numbered) -> list[bytes]:
        """Return REMOVEFROM for all messages that have been expunged. The numbers are those before their EXPUNGE."""
        changed, expunged = self._subscription.take()
        self._changed |= changed
        self._changed -= expunged
        return [line for search in self.searches.values() for line in search.remove(expunged, number)]

    def changed(self, last: int) -> list[int]:
        """Return the UIDs of messages up to UID `last` that are new or changed, ascending."""
        return sorted(uid for uid in self._changed if uid <= last)

    def forget_changed(self, uids: AbstractSet[int]) -> None:
        """Forget that these messages are new or changed: the searches have looked at them."""
        self._changed -= uids
