"""Common parts of SEARCH, SORT and THREAD: finding messages, telling which, and keeping them for `$`.

Messages that neither the view nor what is kept of their bodies decides are read, one at a time. With result options
(RFC 4731, RFC 5267), the answer is an ESEARCH response; SAVE keeps what was found for `$` (RFC 5182).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import trio

from protocol.units import KIB
from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.messages.named_messages import MANY_RANGES
from replicator.imap.handlers.searches.header_reading import LARGEST_VALUES_BYTES, read_slice
from replicator.imap.header_cache import slices
from replicator.imap.matching.phases import Basis, Search
from replicator.imap.rendering import outline
from replicator.imap.session import Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import esearch_response, places, search_response
from replicator.imap.wire.search_keys import (
    ReturnOption,
    Returns,
    SearchProgram,
    count_keys,
    count_ranges,
    has_modseq,
)
from replicator.imap.work_meter import WorkExceededError, WorkMeter
from replicator.mail.view import Message

NUMBERED_AT_ONCE = 5000  # messages, whose sequence numbers are looked up in some milliseconds
SEARCHED_HERE_BYTES = 128 * KIB  # of values times keys, a few milliseconds at worst; more are searched in a thread
NARROWED_AT_ONCE = 250  # messages, whose outlines and search texts take some milliseconds to search, in a thread

_ALL_COUNT = frozenset({ReturnOption.ALL, ReturnOption.COUNT})


class Found(NamedTuple):
    """UIDs of the messages that match, ascending, and of those that could not be read."""

    uids: array[int]
    unreadable: Sequence[int]


# ---- finding ----------------------------------------------------------------------------------------------------


@contextmanager
def limited_work(session: Session, verb: str) -> Iterator[WorkMeter]:
    """Yield the meter of a command's work. Raises CommandFailedError once the work exceeds the limit."""
    work = WorkMeter(session.limits.imap_search_work)
    try:
        yield work
    except WorkExceededError as error:
        text = f"The {verb} takes more than {work.limit} steps; search fewer messages, or with fewer keys"
        raise session.refusal("imap_search_work", text) from error


async def find(
    session: Session,
    program: SearchProgram,
    saved: Sequence[int],
    work: WorkMeter,
    *,
    among: Sequence[int] | None = None,
) -> Found:
    """Return the messages that match; `saved` are the UIDs that `$` means. `among`: only of these UIDs, ascending.

    Raises BadCharsetError, WorkExceededError and, for too many keys, CommandFailedError.
    """
    limit = session.limits.imap_search_keys
    if (keys := count_keys(program.key)) > limit:
        raise session.refusal(
            "imap_search_keys", f"A SEARCH may have {limit} keys, not {keys}; search in several steps"
        )
    utf8_alone = session.aware.utf8 and not session.aware.rev2
    if utf8_alone and (program.charset or "UTF-8").upper() != "UTF-8":  # RFC 6855 section 3 and its erratum 4029
        raise CommandFailedError("All text is UTF-8 after ENABLE UTF8=ACCEPT; name no other charset", condition="BAD")
    if has_modseq(program.key):
        session.become_aware()
    numbering, view = session.selection.numbering, session.selection.view
    uids, is_whole = (numbering.uids, True) if among is None else (among, False)
    basis = Basis(uids, numbering.recent, saved, session.services.clock_ms(), is_whole)
    prepare = partial(Search, program, view, basis, work)
    is_long = count_ranges(program.key, len(saved)) > MANY_RANGES
    evaluation = await session.services.parsing.apart(prepare) if is_long else prepare()
    matching, unreadable = array("I"), array("I")
    for found, doubtful in evaluation.decide():
        await trio.lowlevel.checkpoint()
        if evaluation.reads_bodies:
            unreadable.extend(await _by_bodies(session, doubtful, evaluation, found))
        else:
            unreadable.extend(await _by_headers(session, doubtful, evaluation, found, work))
        matching.extend(sorted(found))
    return Found(matching, unreadable)


async def _by_headers(
    session: Session, doubtful: Sequence[int], evaluation: Search, found: set[int], work: WorkMeter
) -> list[int]:
    """Add to `found` which of these messages match by their headers. Return those whose header cannot be read."""
    present, unreadable = session.selection.view.messages, list[int]()
    for some in slices(doubtful):
        part = await read_slice(session, some, evaluation.columns, work, largest_bytes=LARGEST_VALUES_BYTES)
        if not part.messages:
            continue
        if part.columns.size_bytes * evaluation.keys > SEARCHED_HERE_BYTES:
            apart = partial(evaluation.by_columns_apart, part.messages, part.columns)
            matching = set(filter(present.__contains__, await session.services.parsing.apart(apart)))
        else:
            matching = evaluation.by_columns(part.messages, part.columns)
        found.update(matching.difference(part.unreadable, part.large))
        unreadable += part.unreadable
        unreadable += await _by_reading(session, sorted(part.large), evaluation, found)
    return sorted(unreadable)


async def _by_bodies(session: Session, doubtful: Sequence[int], evaluation: Search, found: set[int]) -> list[int]:
    """Add to `found` which of these messages match. Return those that cannot be read."""
    left = await _narrowed(session, doubtful, evaluation, found)
    return await _by_reading(session, left, evaluation, found)


async def _by_reading(session: Session, uids: Sequence[int], evaluation: Search, found: set[int]) -> list[int]:
    """Add to `found` which of these messages match, reading one at a time. Return those that cannot be read."""
    present, unreadable = session.selection.view.messages, list[int]()
    for uid in uids:
        await trio.lowlevel.checkpoint()
        if (message := present.get(uid)) is None:
            continue
        try:
            if await _matches(session, message, evaluation) and uid in present:
                found.add(uid)
        except ContentUnavailableError:
            unreadable.append(uid)
    return unreadable


async def _narrowed(session: Session, doubtful: Sequence[int], evaluation: Search, found: set[int]) -> list[int]:
    """Add to `found` the UIDs that match by outlines and search texts. Return the UIDs that are still in doubt."""
    messages, left, start = session.selection.view.messages, list[int](), 0
    in_doubt = [message for uid in doubtful if (message := messages.get(uid))]
    while start < len(in_doubt):
        some = in_doubt[start : start + NARROWED_AT_ONCE]
        texts, taken = await session.mail.search_texts(some)
        some, start = some[:taken], start + taken
        outlines = await session.mail.outlines(some, outline.VERSION) if evaluation.columns else {}
        if not (outlines or texts):
            left.extend(message.uid for message in some)
            continue
        decided = await session.services.parsing.apart(partial(evaluation.narrow, some, outlines, texts))
        found.update(filter(messages.__contains__, decided.sure))
        left.extend(decided.doubtful)
    return left


async def _matches(session: Session, message: Message, evaluation: Search) -> bool:
    parsing, bodies = session.services.parsing, evaluation.reads_bodies
    with session.reading():
        kept = await session.mail.read_body(message)
        async with parsing.opened(kept, with_structure=bodies, with_bodies=bodies) as body:
            work = partial(evaluation.matches, message, body)
            return await parsing.run(body, work, with_structure=bodies, values=evaluation.keys)


# ---- telling ----------------------------------------------------------------------------------------------------


async def tell(
    session: Session, verb: str, uids: Sequence[int], command: c.Search | c.Sort, places: Sequence[int] | None = None
) -> None:
    """Tell the client of these messages, which ascend by UID, in the form that it has asked for.

    `places`: those at which the messages are, in the order in which the client is to be told of them.
    """
    returns = command.returns
    if returns is not None and returns.silent:
        return
    numbers = uids if command.by_uid else await sequence_numbers(session, uids)
    if places is not None:
        numbers = await values_at(numbers, places)
    modseq = None
    if has_modseq(command.program.key):
        ordered = uids if places is None else await values_at(uids, places)
        modseq = await _highest_modseq(session, ordered, returns)
    if returns is None:
        respond = partial(search_response, verb, numbers, modseq)
    else:
        respond = partial(esearch_response, session.tag, numbers, returns, modseq, by_uid=command.by_uid)
    many = len(numbers) > NUMBERED_AT_ONCE
    await session.write(await session.services.parsing.apart(respond) if many else respond())


async def values_at(values: Sequence[int], places: Sequence[int]) -> Sequence[int]:
    """Return the values at these places."""
    ordered = array("I")
    for start in range(0, len(places), NUMBERED_AT_ONCE):
        ordered.extend(array("I", [values[place] for place in places[start : start + NUMBERED_AT_ONCE]]))
        await trio.lowlevel.checkpoint()
    return ordered


async def _highest_modseq(session: Session, uids: Sequence[int], returns: Returns | None) -> int | None:
    """Return the highest MODSEQ of the messages that are told, None if there are none (RFC 4731 section 3.2)."""
    if returns is not None and not returns.options & _ALL_COUNT:
        uids = _told_singly(uids, returns)
    messages, highest = session.selection.view.messages, 0
    for start in range(0, len(uids), NUMBERED_AT_ONCE):
        some = (messages.get(uid) for uid in uids[start : start + NUMBERED_AT_ONCE])
        highest = max(highest, *(message.modseq for message in some if message is not None), 0)
        await trio.lowlevel.checkpoint()
    return highest or None


def _told_singly(ordered: Sequence[int], returns: Returns) -> list[int]:
    """Return the UIDs that MIN, MAX and PARTIAL name, ascending."""
    part = set(() if returns.partial is None else places(ordered, returns.partial))  # RFC 9394 section 3.3
    part.update(ordered[:1] if ReturnOption.MIN in returns else (), ordered[-1:] if ReturnOption.MAX in returns else ())
    return sorted(part)


async def sequence_numbers(session: Session, uids: Sequence[int]) -> Sequence[int]:
    """Return the sequence numbers of these announced messages, which ascend."""
    numbers_of, numbers = session.selection.numbering.numbers_of, array("I")
    for start in range(0, len(uids), NUMBERED_AT_ONCE):
        numbers.extend(numbers_of(uids[start : start + NUMBERED_AT_ONCE]))
        await trio.lowlevel.checkpoint()
    return numbers


def check_sortable(session: Session, found: Found) -> None:
    """Raise CommandFailedError if these are more messages than one command may put in order."""
    limit = session.limits.imap_sort_messages
    if len(found.uids) > limit:
        raise session.refusal(
            "imap_sort_messages", f"A SORT or THREAD may have {limit} messages, not {len(found.uids)}; search fewer"
        )


def check_readable(found: Found) -> None:
    """Raise CommandFailedError if messages could not be read, and therefore match nothing."""
    if found.unreadable:
        raise CommandFailedError(
            f"No node in reach has the bodies of {len(found.unreadable)} messages; try again later", "UNAVAILABLE"
        )


# ---- saving -----------------------------------------------------------------------------------------------------


def take_saved(session: Session, returns: Returns | None) -> Sequence[int]:
    """Return the UIDs that `$` means in a command with these options. With SAVE, they are forgotten.

    So `$` is empty if the answer is NO (RFC 5182 section 2.1).
    """
    saved = session.selection.saved
    if returns is not None and ReturnOption.SAVE in returns:
        session.selection.saved = ()
    return saved


async def save(
    session: Session, found: Found, uids: Sequence[int], returns: Returns | None, places: Sequence[int] | None = None
) -> None:
    """Keep what `$` means after a command that has found these messages (RFC 5182 section 2.4).

    `uids` and `places`: as `tell` told them.
    """
    if returns is None or ReturnOption.SAVE not in returns:
        return
    if returns.silent or _ALL_COUNT & returns.options:
        session.selection.saved = found.uids
        return
    ordered = uids if places is None else await values_at(uids, places)
    session.selection.saved = _told_singly(ordered, returns)
