"""SORT (RFC 5256 section 3), with the results of ESORT (RFC 5267)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replicator.imap.handlers.header_reading import read_headers, rows_alone
from replicator.imap.handlers.results import check_readable, check_sortable, find, limited_work, save, take_saved, tell
from replicator.imap.ordering.sorting import Row, needs_header, row_of, uids_in_order
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.imap.work_meter import WorkMeter

SORTED_HERE = 500  # messages; more are sorted in a thread


async def sort(session: Session, command: c.Sort) -> Completion:
    """Run SORT and UID SORT. Raises as SEARCH does.

    A message whose header no reachable node has is sorted as if it had none.
    """
    criteria = tuple({criterion.key: criterion for criterion in reversed(command.criteria)}.values())[::-1]
    with limited_work(session, "SORT") as work:
        found = await find(session, command.program, take_saved(session, command.returns), work)
        check_sortable(session, found)
        rows, headless = await _rows(session, found.uids, criteria, work)
    order = partial(uids_in_order, rows)
    ordered = await session.services.parsing.apart(order) if len(rows) > SORTED_HERE else order()
    await tell(session, "SORT", ordered, command)
    check_readable(found)
    save(session, found, ordered, command.returns)
    return Completion(f"Sorted, without the headers of {headless} messages" if headless else "Sorted")


async def _rows(
    session: Session, uids: Sequence[int], criteria: tuple[SortCriterion, ...], work: WorkMeter
) -> tuple[list[Row], int]:
    extract = partial(row_of, criteria)
    if needs_header(criteria):
        rows = list[Row]()
        return rows, await read_headers(session, uids, extract, rows.append, work=work, values=len(criteria))
    return await rows_alone(session, uids, extract, work), 0
