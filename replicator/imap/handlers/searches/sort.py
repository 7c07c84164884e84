"""SORT (RFC 5256 section 3), with the results of ESORT (RFC 5267)."""

from __future__ import annotations

from array import array
from functools import partial

from replicator.imap.handlers.searches.kept_orders import keep_order, kept_order
from replicator.imap.handlers.searches.order_insertion import inserted_order
from replicator.imap.handlers.searches.results import (
    check_readable,
    check_sortable,
    find,
    limited_work,
    save,
    take_saved,
    tell,
)
from replicator.imap.handlers.searches.updates import keep_updated, sortables_of, wanted_updates, watch
from replicator.imap.ordering.order import Order
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.imap.work_meter import WorkMeter

SORTED_HERE = 500  # messages; more are sorted in a thread


async def sort(session: Session, command: c.Sort) -> Completion:
    """Run SORT and UID SORT. Raises as SEARCH does.

    A message whose header no reachable node has is sorted as if it had none.
    """
    by_key: dict[SortKey, SortCriterion] = {}
    for criterion in command.criteria:
        by_key.setdefault(criterion.key, criterion)  # what is equal by the first one is equal by the second
    criteria = tuple(by_key.values())
    watch(session, command)
    with limited_work(session, "SORT") as work:
        found = await find(session, command.program, take_saved(session, command.returns), work)
        check_sortable(session, found)
        order = await _known_order(session, found.uids, criteria, work) if wanted_updates(command) is None else None
        uids, sortables, headless = found.uids, None, 0
        if order is None:
            sortables, headless = await sortables_of(session, uids, criteria, work)
            uids, apart = sortables.uids, session.services.parsing.apart
            order = await apart(sortables.order) if len(uids) > SORTED_HERE else sortables.order()
            if not headless:
                await keep_order(session, uids, criteria, order)
    await tell(session, "SORT", uids, command, order.places)
    if sortables is not None:
        await keep_updated(session, command, len(uids), partial(sortables.rows, order.places), criteria)
    check_readable(found)
    await save(session, found, uids, command.returns, order.places)
    return Completion(f"Sorted, without the headers of {headless} messages" if headless else "Sorted")


async def _known_order(
    session: Session, uids: array[int], criteria: tuple[SortCriterion, ...], work: WorkMeter
) -> Order | None:
    """Return the order of these messages if it, or that of most of them, is in memory. Raises WorkExceededError."""
    order = await kept_order(session, uids, criteria)
    if order is None and (order := await inserted_order(session, uids, criteria, work)) is not None:
        await keep_order(session, uids, criteria, order)
    return order
