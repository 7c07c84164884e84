"""Results of searches that their client wants to be kept up to date (UPDATE, RFC 5267 section 4.3).

The session asks for the lines, in this order: what is expunged, before the EXPUNGEs; then, once new messages are
announced, what changed messages have come in and gone out of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack

from replicator.imap.ordering.parts import in_order
from replicator.imap.ordering.sorting import Row, uid_of
from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.responses import update_response
from replicator.imap.wire.search_keys import SearchProgram
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.mail.view import MailboxView

MAX_SEARCHES = 4
"""Limit of searches of a session that are kept up to date: each looks at every message that changes."""

MAX_RESULTS = 20_000
"""Limit of results of a search that is to be kept up to date: they stay in memory, and are gone through at once."""

Numbers = Callable[[Sequence[int]], Sequence[int]]
"""The numbers by which the client knows messages, whose UIDs ascend, in their order. There is at least one."""


class UpdatedSearch:
    """The results of one search, as its client knows them. `criteria` is None if they have no order.

    Each method goes once through all results, however many come or go: a thread may do it, one at a time.
    """

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

    def __len__(self) -> int:
        return len(self._uids)

    def begin(self, rows: Collection[Row]) -> None:
        """Set the first results, in their order."""
        self._uids = set(map(uid_of, rows))
        self._order = [*rows] if self.criteria is not None else []

    def without(self, uids: Iterable[int]) -> list[int]:
        """Return those of these messages that are not among the results."""
        return [uid for uid in uids if uid not in self._uids]

    def remove(self, uids: Iterable[int], numbers: Numbers) -> list[bytes]:
        """Remove these messages, if they are among the results; return REMOVEFROM, in which the last come first."""
        gone = self._uids.intersection(uids)
        if not gone:
            return []
        self._uids -= gone
        if self.criteria is None:
            return [self._line("REMOVEFROM", sorted(gone), numbers)]
        places = self._places(gone)[::-1]
        line = self._line("REMOVEFROM", [uid_of(self._order[place - 1]) for place in places], numbers, places)
        self._order = [row for row in self._order if uid_of(row) not in gone]
        return [line]

    def add(self, rows: Collection[Row], numbers: Numbers) -> list[bytes]:
        """Add messages that are not among the results; return ADDTO, in which the first come first."""
        if not rows:
            return []
        new = set(map(uid_of, rows))
        self._uids |= new
        if self.criteria is None:
            return [self._line("ADDTO", sorted(new), numbers)]
        self._order = sorted([*self._order, *in_order([*rows], lambda row: row)])  # merges two parts that are in order
        places = self._places(new)
        return [self._line("ADDTO", [uid_of(self._order[place - 1]) for place in places], numbers, places)]

    def _places(self, uids: AbstractSet[int]) -> list[int]:
        """Return the places, from 1 on, of these messages in the order."""
        return [place for place, uid in enumerate(map(uid_of, self._order), 1) if uid in uids]

    def _line(self, name: str, uids: Sequence[int], numbers: Numbers, places: Sequence[int] | None = None) -> bytes:
        """Format messages that come or go, which ascend by UID, or are at these places."""
        if not self._by_uid:
            ascending = sorted(uids)
            known = dict(zip(ascending, numbers(ascending), strict=True))
            uids = [known[uid] for uid in uids]
        return update_response(self.tag, name, uids, places, by_uid=self._by_uid)


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

    def gather(self) -> set[int]:
        """Collect the changes from the view; return the UIDs of messages that have been expunged."""
        changed, expunged = self._subscription.take()
        self._changed |= changed
        self._changed -= expunged
        return expunged

    @property
    def changes(self) -> int:
        """Number of messages that are new or changed."""
        return len(self._changed)

    def take_changed(self, last: int) -> list[int]:
        """Return the UIDs of messages up to UID `last` that are new or changed since the last call, ascending.

        A thread may do it.
        """
        changed = self._changed
        self._changed = {uid for uid in changed if uid > last}
        return sorted(changed - self._changed)
