r"""FETCH (RFC 3501 section 6.4.5), one slice of the messages at a time.

For each slice, FETCH reads the message bodies, then marks the readable messages as seen if the items require it, then
sends them with `\Seen` in their flags. So no flag ever needs to be reverted, and a FETCH that is interrupted has marked
at most one slice of unsent messages.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, tee
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import trio

from protocol.units import KIB, MIB
from protocol.values import UidSet
from replicator.errors import ContentUnavailableError, MailError
from replicator.imap.cache_update import between
from replicator.imap.handlers.messages.binary import decoded, measured
from replicator.imap.handlers.resync import changed_since, tell_vanished
from replicator.imap.matching.message_reader import PREVIEW_VALUES
from replicator.imap.rendering import outline
from replicator.imap.rendering.fetch_answers import ParsedBody, fetch_value
from replicator.imap.rendering.outline import Outline
from replicator.imap.rendering.row_answers import row_answer
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.connection import ConnectionEndedError
from replicator.imap.wire.fetch_items import (
    Attribute,
    Chunk,
    Decoded,
    FetchItem,
    Printed,
    Span,
    Value,
    needs_body,
    needs_structure,
    response_name,
    sets_seen,
)
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import fetch_response, printed, without_body, without_nul
from replicator.imap.wire.sequence_set import MessageSet, SavedResult
from replicator.mailstore import BodyReader
from replicator.view import SEEN, Message

RANGES_NAMED = 10  # of UIDs, in a one-line answer
MANY_RANGES = 500  # of a sequence set; each takes some microseconds, and more than these are resolved in a thread
MESSAGES_BETWEEN_CHECKPOINTS = 100  # about a millisecond of formatting; other connections wait no longer
ROWS_BETWEEN_CHECKPOINTS = 500  # the same, without bodies

# A slice is marked as seen by one change, so it is also the most that is marked for a client that disconnects.
SLICE_MESSAGES = MESSAGES_BETWEEN_CHECKPOINTS
SLICE_BYTES = MIB  # of bodies or outlines in memory, plus one more
OUTLINE_LEAST_BYTES = 2 * KIB  # that an outline counts for each item: an item takes some microseconds, however small
SLICE_S = 1.0  # limit of reading: messages read so far may be delayed by one distant body, not by many

log = logging.getLogger(__name__)

_Items: TypeAlias = Sequence[tuple[bytes, FetchItem]]
"""Items with the names that answers give them."""

_FLAGS = b"FLAGS"
_MODSEQ = b"MODSEQ"


@dataclass(frozen=True, slots=True)
class _Plan:
    """Data to send for each message. `by_outline`: outlines may tell all of it, or all that they alone may tell."""

    items: _Items
    with_body: bool
    with_structure: bool
    with_preview: bool
    with_lazy_preview: bool
    by_outline: bool
    tells_flags: bool
    tells_modseq: bool
    tells_uid: bool


_Values: TypeAlias = list[tuple[bytes, Printed]]
"""Values by the names that answers give them, in the order of the items; FLAGS is filled in when sending."""


class _Found(NamedTuple):
    """A message that exists, and the values of the items. `body` is None if it was not read."""

    number: int
    message: Message
    body: BodyReader | None
    values: _Values


class _Ahead(NamedTuple):
    """Outlines and bodies of a slice that are here, by content hash; all others are read one by one."""

    outlines: Mapping[bytes, bytes] = MappingProxyType({})
    bodies: Mapping[bytes, BodyReader] = MappingProxyType({})


@dataclass(slots=True)
class _LeftOut:
    """Messages left out: `gone` counts the expunged ones, `unreadable` lists UIDs whose body no reachable node has."""

    gone: int = 0
    unreadable: list[int] = field(default_factory=list)


async def fetch(session: Session, command: c.Fetch) -> Completion:
    """Run FETCH and UID FETCH. Messages that are gone or unreadable are left out; for these the answer is NO.

    For messages that were expunged elsewhere and not announced yet, the answer is OK with a code (RFC 5530 section 3);
    a UID without a message is not an error (RFC 3501 section 6.4.8).
    """
    limit = session.limits.imap_fetch_items
    if (items := len(command.items)) > limit:
        raise session.refusal(
            "imap_fetch_items", f"A FETCH may have {limit} items, not {items}; ask for fewer at a time"
        )
    selection, plan = session.selection, _plan(_items(command))
    runs: Sequence[Sequence[int]] = await resolved(session, command.numbers, by_uid=command.by_uid)
    if command.vanished:
        await _tell_vanished(session, command)
    if command.changed_since is not None:
        runs = [await changed_since(session, runs, command.changed_since)]
    if plan.tells_modseq:
        session.become_aware()
    if not (plan.with_body or plan.by_outline):
        gone = await _tell_rows(session, plan, runs)
        return _completion(gone=0 if command.by_uid else gone, unreadable=UidSet())
    marks = not selection.read_only and any(sets_seen(item) for item in command.items)
    left_out = _LeftOut()
    async with aclosing(_slices(session, plan, selection.numbering.pairs(runs), left_out)) as slices:
        async for some in slices:
            seen = UidSet()
            if marks:
                try:
                    seen = await _mark_seen(session, [one.message.uid for one in some])
                except MailError:  # a full disk or a lost link does not prevent reading; it delays one slice only
                    marks = False
            await _tell(session, plan, some, seen)
    return _completion(gone=0 if command.by_uid else left_out.gone, unreadable=UidSet.of(left_out.unreadable))


async def fetch_new(session: Session, items: Iterable[FetchItem], uids: Iterable[int]) -> None:
    r"""Tell these items of new messages that are announced, without marking any as seen (RFC 5465 section 5.2).

    Those that are gone or unreadable are left out, and all if the database fails.
    """
    plan = _plan(items)
    if not plan.items:
        return
    number = session.selection.numbering.number
    pairs = ((found, uid) for uid in uids if (found := number(uid)) is not None)
    try:
        async with aclosing(_slices(session, plan, pairs, _LeftOut())) as slices:
            async for some in slices:
                await _tell(session, plan, some, UidSet())
    except MailError as error:  # the client knows that the messages are there, and a command is still to be answered
        log.warning("cannot tell a client of new messages what it wants to know: %s", error)


async def _slices(
    session: Session, plan: _Plan, numbered: Iterable[tuple[int, int]], left_out: _LeftOut
) -> AsyncGenerator[list[_Found], None]:
    """Yield the messages of these sequence numbers and UIDs, as many at a time as are told together."""
    (pairs,) = tee(numbered, 1)
    for first in pairs:
        if plan.with_body:  # reading may take long, and messages of a client that disconnected must not be marked
            await session.connection.flush()
        ahead = await _read_ahead(session, plan, chain((first,), copy(pairs)))
        yield await _read(session, chain((first,), pairs), ahead, left_out, plan)


async def _tell_vanished(session: Session, command: c.Fetch) -> None:
    """Tell which UIDs are gone (RFC 7162 section 3.2.6). Raises CommandFailedError."""
    if not (command.by_uid and command.changed_since is not None and session.aware.qresync):
        raise CommandFailedError(
            "VANISHED needs UID FETCH, CHANGEDSINCE and, before it, ENABLE QRESYNC", condition="BAD"
        )
    numbers, saved, last = command.numbers, session.selection.saved, session.selection.view.uidnext - 1

    def named() -> UidSet:  # "*" is the last UID that was given: the messages up to there may be gone
        return UidSet.of(saved) if isinstance(numbers, SavedResult) else between(numbers.resolve(last), 1, last)

    await tell_vanished(session, await session.services.parsing.apart(named))


async def resolved(session: Session, numbers: MessageSet, *, by_uid: bool) -> list[range]:
    """Return runs of the sequence numbers. Raises CommandFailedError if a number is beyond the last message."""
    selection = session.selection
    resolve: Callable[[], list[range] | None]
    if isinstance(numbers, SavedResult):
        resolve, size = partial(selection.numbering.runs_of, selection.saved), len(selection.saved)
    else:
        resolve, size = partial(selection.numbering.resolve, numbers, by_uid=by_uid), len(numbers.ranges)
    # The numbering does not change meanwhile: nothing is announced while a command runs.
    runs = await session.services.parsing.apart(resolve) if size > MANY_RANGES else resolve()
    if runs is None:
        count = len(selection.numbering)
        raise CommandFailedError(f"A number is beyond the last of the {count} messages", condition="BAD")
    return runs


def _items(command: c.Fetch) -> list[FetchItem]:
    items = list(command.items)
    if command.changed_since is not None and Attribute.MODSEQ not in items:  # RFC 7162 section 3.1.4.1
        items.append(Attribute.MODSEQ)
    if command.by_uid and Attribute.UID not in items:  # RFC 3501 section 6.4.8
        items.insert(0, Attribute.UID)
    return items


def _plan(wanted: Iterable[FetchItem]) -> _Plan:
    items = list(dict.fromkeys(wanted))
    return _Plan(
        items=[(response_name(item).encode("ascii"), item) for item in items],
        with_body=any(needs_body(item) for item in items),
        with_structure=any(needs_structure(item) for item in items),
        with_preview=Attribute.PREVIEW in items,
        with_lazy_preview=Attribute.PREVIEW_LAZY in items,
        by_outline=any(outline.may_tell(item) for item in items)
        and all(outline.may_tell(item) for item in items if needs_body(item)),
        tells_flags=Attribute.FLAGS in items,
        tells_modseq=Attribute.MODSEQ in items,
        tells_uid=Attribute.UID in items,
    )


async def _tell_rows(session: Session, plan: _Plan, runs: Iterable[Iterable[int]]) -> int:
    """Send items that no body is needed for. Return the number of messages that are gone."""
    selection, gone = session.selection, 0
    messages, pairs = selection.view.messages, selection.numbering.pairs(runs)
    answer = row_answer(plan.items, lambda message: selection.printed_flags(message).encode("ascii"))
    while some := [*islice(pairs, ROWS_BETWEEN_CHECKPOINTS)]:
        chunks = []
        for number, uid in some:
            if (message := messages.get(uid)) is None:
                gone += 1
                continue
            if plan.tells_flags:
                chunks += selection.unheard_keywords(message)
            chunks.append(answer(number, message))
        await session.write((b"".join(chunks),))
        await trio.lowlevel.checkpoint()
    return gone


async def _read_ahead(session: Session, plan: _Plan, pairs: Iterable[tuple[int, int]]) -> _Ahead:
    """Read outlines of the next slice or, if they cannot tell all that is to be sent, small bodies: many at a time."""
    most = min(SLICE_MESSAGES, 1 + SLICE_BYTES // (len(plan.items) * OUTLINE_LEAST_BYTES))
    present = map(session.selection.view.messages.get, (uid for _, uid in islice(pairs, most)))
    messages = [message for message in present if message is not None]
    if plan.by_outline:
        return _Ahead(outlines=await session.mail.outlines(messages, outline.VERSION))
    return _Ahead(bodies=await session.mail.read_bodies(messages, SLICE_BYTES))


async def _read(
    session: Session, pairs: Iterable[tuple[int, int]], ahead: _Ahead, left_out: _LeftOut, plan: _Plan
) -> list[_Found]:
    """Read the next slice. `pairs`: sequence numbers and UIDs."""
    messages = session.selection.view.messages
    some = list[_Found]()
    size_bytes, deadline = 0, trio.current_time() + SLICE_S
    for number, uid in islice(pairs, SLICE_MESSAGES):
        if (message := messages.get(uid)) is None:
            left_out.gone += 1
        elif (values := _outlined(plan, message, packed := ahead.outlines.get(message.content_hash, b""))) is not None:
            some.append(_Found(number, message, None, values))
            size_bytes += len(plan.items) * max(OUTLINE_LEAST_BYTES, len(packed))
        else:
            try:
                body = ahead.bodies.get(message.content_hash) or await session.mail.read_body(message)
                values = await _said(session, plan, message, body)
                some.append(_Found(number, message, body, values))
                said_bytes = sum(len(chunk) for chunk in _chunks(values) if isinstance(chunk, bytes))
                size_bytes += max(said_bytes, len(body.skeleton.raw))
            except ContentUnavailableError:
                left_out.unreadable.append(uid)
        if size_bytes >= SLICE_BYTES or trio.current_time() >= deadline:
            break
    return some


async def _mark_seen(session: Session, uids: Iterable[int]) -> UidSet:
    r"""Set `\Seen` by one change and return the UIDs of messages that lacked it. Raises MailError."""
    selection = session.selection
    rows = (selection.view.messages.get(uid) for uid in uids)
    unseen = UidSet.of(row.uid for row in rows if row is not None and SEEN not in row.flags)
    if unseen:
        await session.mail.store_flags(selection.view, unseen, added=frozenset({SEEN}))
        selection.forget_changes(unseen)
    return unseen


async def _tell(session: Session, plan: _Plan, some: Iterable[_Found], seen: UidSet) -> None:
    """Send a slice. `seen` are UIDs that this FETCH marked as seen; their new flags are sent too."""
    selection, tells_changes = session.selection, plan.tells_flags or plan.tells_modseq
    chunks: list[bytes] = []
    for number, found, body, said in some:
        message = selection.view.messages.get(found.uid, found)  # with its present flags
        now: dict[bytes, Value] = {}
        if tells_changes or message.uid in seen:
            now = {_FLAGS: selection.printed_flags(message), _MODSEQ: (message.modseq,)}
        values = [(name, now.get(name, value)) for name, value in said]
        if message.uid in seen:
            if not plan.tells_flags:
                values.append((_FLAGS, now[_FLAGS]))
            if session.aware.condstore:  # RFC 7162 section 3.2.4
                values += [] if plan.tells_uid else [(b"UID", message.uid)]
                values += [] if plan.tells_modseq else [(_MODSEQ, (message.modseq,))]
        if plan.tells_flags or message.uid in seen:
            chunks += selection.unheard_keywords(message)
        response = fetch_response(number, values)
        if body is None:
            chunks += without_body(response)
            continue
        await session.write(chunks)
        chunks = []
        await _send(session, body, response)
        await trio.lowlevel.checkpoint()
    await session.write(chunks)
    await trio.lowlevel.checkpoint()


async def _said(session: Session, plan: _Plan, message: Message, body: BodyReader) -> _Values:
    """Return the values of the items, and check that octets to be sent later can be read, before the message is marked.

    Raises ContentUnavailableError.
    """
    parsing = session.services.parsing
    previews = plan.with_preview or plan.with_lazy_preview
    count = len(plan.items) + PREVIEW_VALUES * previews
    async with parsing.opened(body, with_structure=plan.with_structure, with_preview=plan.with_preview) as parsed:
        work = partial(_printed_values, plan.items, message, parsed)
        values = await parsing.run(parsed, work, with_structure=plan.with_structure or previews, values=count)
    for chunk in _chunks(values):
        if isinstance(chunk, Span):
            await body.check(chunk.start, chunk.end)
    return [(name, await measured(value, body)) for name, value in values]


async def _send(session: Session, body: BodyReader, chunks: list[Chunk]) -> None:
    """Send an answer; octets of a large body are read while they are sent.

    If they cannot be read after all, the connection ends, because their length was already announced (RFC 3501 section
    4.3).
    """
    for chunk in chunks:
        if isinstance(chunk, bytes):
            await session.write([chunk])
            continue
        try:
            if isinstance(chunk, Decoded):
                async with aclosing(decoded(chunk, body)) as octets:
                    async for some in octets:
                        await session.write([some])
            else:
                async with aclosing(body.read(chunk.start, chunk.end)) as octets:
                    async for some in octets:
                        await session.write([without_nul(some)])
        except ContentUnavailableError as error:
            log.warning("closing a connection: cannot read a body that was being sent: %s", error)
            raise ConnectionEndedError(f"cannot read a body that was being sent: {error}") from error


def _values(items: _Items, message: Message, body: ParsedBody | None) -> list[tuple[bytes, Value]]:
    return [(name, _value(item, message, body)) for name, item in items]


def _value(item: FetchItem, message: Message, body: ParsedBody | None) -> Value:
    return None if item is Attribute.FLAGS else fetch_value(item, message, body)


def _printed_values(items: _Items, message: Message, body: ParsedBody) -> _Values:
    """Return the values of the items. Uses no mutable state, so it may run in a thread."""
    return [(name, printed(value)) for name, value in _values(items, message, body)]


def _outlined(plan: _Plan, message: Message, packed: bytes | None) -> _Values | None:
    """Return the values of the items by the message's outline; None if it does not tell all of them."""
    if (known := Outline.unpack(packed)) is None and plan.with_body:
        return None
    values: _Values = []
    for name, item in plan.items:
        value = None if known is None else known.value(item, message)
        if value is None and needs_body(item):
            return None
        value = value or printed(_value(item, message, None))
        values.append((name, value))
    return values


def _chunks(values: _Values) -> Iterator[Chunk]:
    return (chunk for _, value in values for chunk in value.chunks)


def expunged_elsewhere(done: str, gone: int) -> Completion:
    """Return the end of a command that was carried out for all messages but those that are gone (RFC 5530)."""
    return Completion(f"{done}; {gone} of the messages have been expunged, and NOOP tells which", "EXPUNGEISSUED")


def _completion(*, gone: int, unreadable: UidSet) -> Completion:
    if unreadable:
        ranges = ",".join(str(UidSet((one,))) for one in unreadable.ranges[:RANGES_NAMED])
        more = ",..." if len(unreadable.ranges) > RANGES_NAMED else ""
        out = "1 message is" if len(unreadable) == 1 else f"{len(unreadable)} messages are"
        why = f"no node in reach has the body of UID {ranges}{more}"
        raise CommandFailedError(f"{out} left out: {why}; try again later", "UNAVAILABLE")
    if gone:
        return expunged_elsewhere("Fetched", gone)
    return Completion("Fetched")
