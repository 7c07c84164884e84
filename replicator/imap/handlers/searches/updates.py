"""Announcements of changes, with updates of searches (RFC 5267 section 4.3), and CANCELUPDATE."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import groupby

import trio

from replicator.errors import ContentUnavailableError, MailError
from replicator.imap.handlers.messages.fetch import fetch_new
from replicator.imap.handlers.searches.header_reading import read_slice
from replicator.imap.handlers.searches.results import find
from replicator.imap.header_cache import slices
from replicator.imap.notifications import Wishes
from replicator.imap.ordering.sorting import Row, Sortables
from replicator.imap.search_updates import MAX_RESULTS, MAX_SEARCHES, SearchUpdates, UpdatedSearch
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import status_line
from replicator.imap.wire.search_keys import ReturnOption, Returns, depends_on_message_alone
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.imap.work_meter import WorkExceededError, WorkMeter

READING_S = 2.0
"""Seconds in which all bodies that an announcement needs are read.

The client's next command waits for that, and for another announcement before it is answered. Bodies on this node's disk
take milliseconds, those of a peer in reach some round trips, and those of a peer that is away half a minute each, for
nothing.
"""

# ---- announcing -------------------------------------------------------------------------------------------------


async def announce(
    session: Session,
    *,
    expunges: bool,
    with_uid: bool = False,
    wishes: Wishes | None = None,
    is_own_expunge: bool = False,
) -> bool:
    """Tell the client of changes in the selected mailbox, some at a time. Return True if there were any.

    Changes that it does not want to hear of, by its NOTIFY or `wishes`, are left out; but expunged messages are told
    after its own EXPUNGE in any case. Raises MailboxGoneError.
    """
    selection, updates, wishes = session.selection, session.updates, wishes or session.wishes
    if not (wishes.arrivals or is_own_expunge):
        selection.check()
        return False
    known = selection.numbering.last
    with_uid = with_uid or wishes.at_once  # RFC 5465 section 5.1
    # Both gather at one moment: before each EXPUNGE comes its REMOVEFROM (RFC 5267 section 4.3.4).
    parts = selection.announce(expunges=expunges, arrivals=wishes.arrivals, flags=wishes.flags, with_uid=with_uid)
    gone = await _removed(session, updates, updates.gather()) if updates is not None else []
    await session.write(gone)
    is_news = bool(gone)
    for lines in parts:
        is_news = is_news or bool(lines)
        await session.write(lines)
        await trio.lowlevel.checkpoint()
    new = selection.news(known)
    searches = [] if updates is None else updates.searches.values()
    if new and (wishes.items or any(search.items for search in searches)):
        await session.write(await selection.claim_recent())  # FETCH tells it
    with session.reading_within(READING_S):
        results = await _tell_new(session, new, wishes.items)
    return is_news or results


async def _removed(session: Session, updates: SearchUpdates, expunged: AbstractSet[int]) -> list[bytes]:
    """Return how expunged messages change the results. Their numbers are those before their EXPUNGE."""
    numbers, lines = session.selection.numbering.numbers_of, list[bytes]()
    for search in updates.searches.values() if expunged else ():
        remove = partial(search.remove, expunged, numbers)
        lines += await session.services.parsing.apart_if_many(len(search) + len(expunged), remove)
    return lines


async def _tell_new(session: Session, new: Sequence[int], items: tuple[FetchItem, ...]) -> bool:
    """Tell what the client wants to know of new messages, by one FETCH for each, then how results have changed.

    In this order by RFC 5465 section 5.2 and RFC 5267 section 4.3. Return True if results have changed.
    """
    updates = session.updates
    results: list[bytes] = []
    of_results: dict[int, tuple[FetchItem, ...]] = {}
    if updates is not None:
        results, of_results = await _updated_all(session, updates, new)
    told = new if items else sorted(of_results)
    for wanted, uids in groupby(told, lambda uid: of_results.get(uid, ())):
        await fetch_new(session, (*items, *wanted), uids)
    await session.write(results)
    return bool(results)


async def _updated_all(
    session: Session, updates: SearchUpdates, new: Sequence[int]
) -> tuple[list[bytes], dict[int, tuple[FetchItem, ...]]]:
    """Return the responses for results that have changed, and the items to be told of new messages in them, by UID.

    Numbers of new messages are known by now.
    """
    take = partial(updates.take_changed, session.selection.numbering.last)
    changed = await session.services.parsing.apart_if_many(updates.changes, take)
    results: list[bytes] = []
    of_results: dict[int, tuple[FetchItem, ...]] = {}
    for search in list(updates.searches.values()) if changed else ():
        lines: list[bytes] = []
        added: Sequence[int] = ()
        try:
            lines, added = await _updated(session, search, changed)
            why = _too_many(len(search))
        except WorkExceededError:
            why = "It takes too much work to keep this search up to date"
        except MailError as error:  # the command that was done meanwhile is still to be answered
            why = str(error)
        if why is not None:
            del updates.searches[search.tag]
            lines, added = [_no_update(search.tag, why)], ()
        results += lines
        for uid in set(new).intersection(added) if search.items else ():
            of_results[uid] = (*of_results.get(uid, ()), *search.items)
    return results, of_results


async def _updated(
    session: Session, search: UpdatedSearch, changed: Sequence[int]
) -> tuple[list[bytes], Sequence[int]]:
    """Return the responses that tell how changed messages have changed the results, and which of them have come in.

    Raises WorkExceededError; ContentUnavailableError if the time of the announcement was too short for their bodies.
    """
    work = WorkMeter(session.limits.imap_search_work)
    found = await find(session, search.program, (), work, among=changed)
    parsing, many = session.services.parsing, len(search) + len(changed)
    new = await parsing.apart_if_many(many, partial(search.without, found.uids))
    sortables, headless = None, 0
    if search.criteria is not None:
        sortables, headless = await sortables_of(session, new, search.criteria, work)
    if session.reading_is_over and (found.unreadable or headless):
        raise ContentUnavailableError("This search is no longer kept up to date, as bodies do not come in time")
    numbers = session.selection.numbering.numbers_of

    def update() -> list[bytes]:
        stay = {*found.uids, *found.unreadable}  # what cannot be read at all stays what it was
        gone = [uid for uid in changed if uid not in stay]
        rows = [(uid,) for uid in new] if sortables is None else sortables.rows(range(len(sortables)))
        return search.remove(gone, numbers) + search.add(rows, numbers)

    return await parsing.apart_if_many(many, update), new


async def sortables_of(
    session: Session, uids: Sequence[int], criteria: tuple[SortCriterion, ...], work: WorkMeter
) -> tuple[Sortables, int]:
    """Return what these messages are sorted by, and the number of those without a readable header."""
    sortables, headless = Sortables(criteria), 0
    for some in slices(uids):
        part = await read_slice(session, some, sortables.columns, work)
        sortables.add(part.messages, part.columns)
        headless += len(part.unreadable)
    return sortables, headless


# ---- asking for updates, and cancelling them --------------------------------------------------------------------


def wanted_updates(command: c.Search | c.Sort) -> Returns | None:
    """Return the options of a command whose client wants to hear how the results change, else None."""
    returns = command.returns
    return returns if returns is not None and ReturnOption.UPDATE in returns else None


def watch(session: Session, command: c.Search | c.Sort) -> None:
    """Note what changes from now on, if the command asks for updates.

    Raises CommandFailedError for a tag in use, and for too many items that are wanted of new messages.
    """
    if (returns := wanted_updates(command)) is None:
        return
    limit = session.limits.imap_fetch_items
    if (items := len(returns.update_items)) > limit:
        raise session.refusal("imap_fetch_items", f"An UPDATE may have {limit} FETCH items, not {items}")
    if session.updates is None:
        session.updates = SearchUpdates(session.selection.view, session.selection.numbering.last)
    if session.tag in session.updates.searches:  # RFC 5267 section 4.3
        raise CommandFailedError(f"A search with tag {session.tag} is kept up to date", condition="BAD")


async def keep_updated(
    session: Session,
    command: c.Search | c.Sort,
    count: int,
    rows: Callable[[], Collection[Row]],
    criteria: tuple[SortCriterion, ...] | None = None,
) -> None:
    """Keep the command's results, so many, up to date, if it asks for that, or refuse to (RFC 5267 section 4.3.1).

    `rows` is called only if they are kept.
    """
    updates, returns = session.updates, wanted_updates(command)
    if updates is None or returns is None:
        return
    if len(updates.searches) >= MAX_SEARCHES:
        why = f"{MAX_SEARCHES} searches are kept up to date already"
    elif (too_many := _too_many(count)) is not None:
        why = too_many
    elif not depends_on_message_alone(command.program.key):
        why = "Searches by number, age or $ are not kept up to date; use UIDs"
    else:
        items = returns.update_items
        search = UpdatedSearch(session.tag, command.program, criteria, by_uid=command.by_uid, items=items)
        await session.services.parsing.apart_if_many(count, lambda: search.begin(rows()))
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


def _too_many(results: int) -> str | None:
    """Return the refusal of a search with so many results, if they are too many."""
    return None if results <= MAX_RESULTS else f"Searches with more than {MAX_RESULTS} results are not kept up to date"


def _no_update(tag: str, why: str) -> bytes:
    return status_line("NO", why, f'NOUPDATE "{tag}"')
