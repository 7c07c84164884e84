"""Insertion of a few new messages into an order that is in memory: most of the others' values need not be read."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from replicator.imap.handlers.searches.header_reading import read_slice
from replicator.imap.handlers.searches.kept_orders import KeptOrder, latest_order
from replicator.imap.handlers.searches.updates import sortables_of
from replicator.imap.header_cache import slices
from replicator.imap.ordering.order import Order
from replicator.imap.ordering.sorting import Row, Sortables
from replicator.imap.session import Session
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.imap.work_meter import WorkMeter

MOST_INSERTED = 20
"""Most messages that are inserted into a kept order. With more, all are sorted anew, which reads each slice once."""


async def inserted_order(
    session: Session, uids: array[int], criteria: tuple[SortCriterion, ...], work: WorkMeter
) -> Order | None:
    """Return the order of these messages by the one that was kept last. Raises WorkExceededError.

    Return None if that does not have all of them but a few with higher UIDs, or has more than twice as many, or if
    values of some cannot be read.
    """
    kept = latest_order(session, criteria)
    if kept is None or len(kept.uids) > 2 * len(uids):
        return None
    new_from = bisect_right(uids, kept.uids[-1]) if kept.uids else 0
    new = uids[new_from:]
    if len(new) > MOST_INSERTED:
        return None
    apart_if_many = session.services.parsing.apart_if_many
    if (places := await apart_if_many(len(kept.uids), partial(_places_of, kept, uids[:new_from]))) is None:
        return None
    sortables, headless = await sortables_of(session, new, criteria, work)
    if headless or sortables.uids != new:
        return None
    compared = _Compared(session, await apart_if_many(len(uids), lambda: [*slices(uids)]), criteria, work)
    ordered, start = array("I"), 0
    for row, place in sorted(zip(sortables.rows(range(len(new))), range(new_from, len(uids)), strict=True)):
        if (end := await compared.count_before(row, places, start)) is None:
            return None
        ordered += places[start:end]
        ordered.append(place)
        start = end
    return Order(ordered + places[start:])


def _places_of(kept: KeptOrder, uids: array[int]) -> array[int] | None:
    """Return the places of these messages in the order that is kept, or None if it does not have all of them."""
    if uids == kept.uids:
        return kept.order.places
    place_of = {uid: place for place, uid in enumerate(uids)}
    places = (place_of.get(kept.uids[place]) for place in kept.order.places)
    staying = array("I", (place for place in places if place is not None))
    return staying if len(staying) == len(uids) else None


class _Compared:
    """Messages of an order with which others are compared: slices of them are read as they are needed."""

    def __init__(
        self, session: Session, slices: Sequence[Sequence[int]], criteria: Sequence[SortCriterion], work: WorkMeter
    ) -> None:
        self._session, self._slices, self._criteria, self._work = session, slices, criteria, work
        self._ends = [*accumulate(map(len, slices))]
        self._read: dict[int, Sequence[Row]] = {}

    async def count_before(self, row: Row, places: Sequence[int], start: int) -> int | None:
        """Return the number of these places whose messages come before this row, as those before `start` do.

        Return None if the values of one are not to be had.
        """
        low, high = start, len(places)
        while low < high:
            middle = (low + high) // 2
            if (other := await self._row(places[middle])) is None:
                return None
            low, high = (low, middle) if row < other else (middle + 1, high)
        return low

    async def _row(self, place: int) -> Row | None:
        number = bisect_right(self._ends, place)
        some = self._slices[number]
        if (rows := self._read.get(number)) is None:
            sortables = Sortables(self._criteria)
            part = await read_slice(self._session, some, sortables.columns, self._work)
            sortables.add(part.messages, part.columns)
            if part.unreadable or len(sortables) < len(some):
                return None
            rows = self._read[number] = sortables.rows(range(len(some)))
        return rows[place - self._ends[number]]  # counted from the slice's end
