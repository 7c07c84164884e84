"""Announcements of changes, with updates of searches (RFC 5267 section 4.3), and CANCELUPDATE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import trio

from replicator.imap.handlers.header_reading import read_headers, rows_alone
from replicator.imap.handlers.results import find
from replicator.imap.ordering.sorting import Row, needs_header, row_of
from replicator.imap.search_updates import MAX_RESULTS, MAX_SEARCHES, SearchUpdates, UpdatedSearch
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import status_line
from replicator.imap.wire.search_keys import ReturnOption, depends_on_message_alone
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.imap.work_meter import WorkExceededError, WorkMeter

# ---- announcing -------------------------------------------------------------------------------------------------


async def announce(session: Session, *, expunges: bool, with_uid: bool = False) -> None:
    """Tell the client of changes in the selected mailbox, some at a time. Raises MailboxGoneError."""
    updates = session.updates
    gone = updates.take_expunged(session.selection.numbering.number) if updates is not None else []
    parts = session.selection.announce(expunges=expunges, with_uid=with_uid)
    # No await before the first part: REMOVEFROM must come before the EXPUNGE (RFC 5267 section 4.3.4).
    first = next(parts, [])
    await session.write([*gone, *first])
    await trio.lowlevel.checkpoint()
    for lines in parts:
        await session.write(lines)
        await trio.lowlevel.checkpoint()
    if updates is not None:
        await _tell_updates(session, updates)


async def _tell_updates(session: Session, updates: SearchUpdates) -> None:
    """Tell how changed messages have changed the results. Numbers of new messages are known by now."""
    changed = updates.changed(session.selection.numbering.last)
    if not changed:
        return
    for search in list(updates.searches.values()):
        try:
            lines = await _updated(session, search, changed)
        except WorkExceededError:
            del updates.searches[search.tag]
            lines = [_no_update(search.tag, "It takes too much work to keep this search up to date")]
        await session.write(lines)
    updates.forget_changed(frozenset(changed))


async def _updated(session: Session, search: UpdatedSearch, changed: Sequence[int]) -> list[bytes]:
    work = WorkMeter(session.limits.imap_search_work)
    found = await find(session, search.program, (), work, among=changed)
    matching = set(found.uids)
    new = [uid for uid in found.uids if uid not in search]
    rows: list[Row] = [(uid,) for uid in new]
    if search.criteria is not None:
        rows, _ = await rows_of(session, new, search.criteria, work)
    # What cannot be read now stays what it was.
    gone = [uid for uid in changed if uid not in matching and uid not in found.unreadable]
    number = session.selection.numbering.number
    return search.remove(gone, number) + search.add(rows, number)


async def rows_of(
    session: Session, uids: Sequence[int], criteria: tuple[SortCriterion, ...], work: WorkMeter
) -> tuple[list[Row], int]:
    """Return the values by which these messages are sorted, and the number of those without a readable header."""
    extract = partial(row_of, criteria)
    if not needs_header(criteria):
        return await rows_alone(session, uids, extract, work), 0
    rows = list[Row]()
    return rows, await read_headers(session, uids, extract, rows.append, work=work, values=len(criteria))


# ---- asking for updates, and cancelling them --------------------------------------------------------------------


def watch(session: Session, command: c.Search | c.Sort) -> None:
    """Note what changes from now on, if the command asks for updates. Raises CommandFailedError for a tag in use."""
    if command.returns is None or ReturnOption.UPDATE not in command.returns:
        return
    if session.updates is None:
        session.updates = SearchUpdates(session.selection.view, session.selection.numbering.last)
    if session.tag in session.updates.searches:  # RFC 5267 section 4.3
        raise CommandFailedError(f"A search with tag {session.tag} is kept up to date", condition="BAD")


async def keep_updated(
    session: Session,
    command: c.Search | c.Sort,
    rows: Collection[Row],
    criteria: tuple[SortCriterion, ...] | None = None,
) -> None:
    """Keep these results of the command up to date, if it asks for that, or refuse to (RFC 5267 section 4.3.1)."""
    updates = session.updates
    if command.returns is None or ReturnOption.UPDATE not in command.returns or updates is None:
        return
    if len(updates.searches) >= MAX_SEARCHES:
        why = f"{MAX_SEARCHES} searches are kept up to date already"
    elif len(rows) > MAX_RESULTS:
        why = f"Searches with more than {MAX_RESULTS} results are not kept up to date"
    elif not depends_on_message_alone(command.program.key):
        why = "Searches by number, age or $ are not kept up to date; use UIDs"
    else:
        search = UpdatedSearch(session.tag, command.program, criteria, by_uid=command.by_uid)
        search.begin(rows)
        updates.searches[session.tag] = search
        return
    await session.write([_no_update(session.tag, why)])


async def cancel_update(session: Session, command: c.CancelUpdate) -> Completion:
    """Run CANCELUPDATE."""
    searches = session.updates.searches if session.updates is not None else {}
    if unknown := [tag for tag in command.tags if tag not in searches]:
        raise CommandFailedError(f"No search with tag {unknown[0][:64]} is being updated", condition="BAD")
    for tag in command.tags:
        searches.pop(tag, None)
    return Completion("No more updates")


def _no_update(tag: str, why: str) -> bytes:
    return status_line("NO", why, f'NOUPDATE "{tag}"')
