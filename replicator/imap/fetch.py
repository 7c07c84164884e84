"""FETCH (RFC 3501 section 6.4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from protocol.values import UidSet
from replicator.errors import ContentUnavailableError, MailError
from replicator.imap import commands as c
from replicator.imap.fetch_items import Atom, Attribute, FetchItem, needs_text, response_name, sets_seen
from replicator.imap.message import MessageText, fetch_value
from replicator.imap.refusals import CommandFailedError
from replicator.imap.responses import fetch_response
from replicator.imap.selection import Selection
from replicator.imap.sequence_set import SequenceSet
from replicator.imap.session import Completion, Session
from replicator.view import SEEN, Message

RANGES_NAMED = 10  # of UIDs, in the one line of an answer
MESSAGES_BETWEEN_CHECKPOINTS = 100  # about a millisecond of formatting; other connections wait no longer


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to say of each message. `seen` are UIDs that this FETCH marked as seen, which is then told."""

    items: Sequence[tuple[bytes, FetchItem]]
    with_text: bool
    tells_flags: bool
    seen: UidSet


async def fetch(session: Session, command: c.Fetch) -> Completion:
    """FETCH and UID FETCH. What is gone or cannot be read is left out, and the answer then is NO.

    RFC 2180 section 4.1.2 for messages that were expunged elsewhere and not announced yet; a UID that is no message
    is no error (RFC 3501 section 6.4.8).
    """
    selection = session.selection
    runs = resolved(selection, command.numbers, by_uid=command.by_uid)
    plan = _plan(command, await _mark_seen(session, command.items, runs))
    gone, unreadable = 0, list[int]()
    chunks: list[bytes] = []
    for position, (number, uid) in enumerate(selection.numbering.pairs(runs)):
        message = selection.view.messages.get(uid)
        if message is None:
            gone += 1
            continue
        try:
            text = MessageText(await session.mail.read_content(message)) if plan.with_text else None
        except ContentUnavailableError:
            unreadable.append(uid)
            continue
        respond = partial(_response, plan, number, message, selection.printed_flags(message), text)
        chunks += await session.services.parsing.run(text, respond) if text else respond()
        if plan.with_text or position % MESSAGES_BETWEEN_CHECKPOINTS == 0:
            await session.write(chunks)
            chunks.clear()
            await trio.lowlevel.checkpoint()
    await session.write(chunks)
    await _unmark(session, UidSet.of(uid for uid in unreadable if uid in plan.seen))
    return _completion(gone=0 if command.by_uid else gone, unreadable=UidSet.of(unreadable))


def resolved(selection: Selection, numbers: SequenceSet, *, by_uid: bool) -> list[range]:
    """The sequence numbers meant. Raises CommandFailedError if one is beyond the last."""
    runs = selection.numbering.resolve(numbers, by_uid=by_uid)
    if runs is None:
        count = len(selection.numbering)
        raise CommandFailedError(f"There are {count} messages; a number is beyond the last", condition="BAD")
    return runs


def _plan(command: c.Fetch, seen: UidSet) -> _Plan:
    items = list(dict.fromkeys(command.items))
    if command.by_uid and Attribute.UID not in items:  # RFC 3501 section 6.4.8
        items.insert(0, Attribute.UID)
    return _Plan(
        items=[(response_name(item).encode("ascii"), item) for item in items],
        with_text=any(needs_text(item) for item in items),
        tells_flags=Attribute.FLAGS in items,
        seen=seen,
    )


async def _mark_seen(session: Session, items: Sequence[FetchItem], runs: list[range]) -> UidSet:
    r"""Set `\Seen` where the items ask for it: one change for the whole set. The UIDs on which it was new."""
    selection = session.selection
    if selection.read_only or not any(sets_seen(item) for item in items):
        return UidSet()
    rows = selection.view.messages
    named = (rows.get(uid) for _, uid in selection.numbering.pairs(runs))
    unseen = UidSet.of(row.uid for row in named if row is not None and SEEN not in row.flags)
    if unseen:
        try:
            await session.mail.store_flags(selection.view, unseen, added=frozenset({SEEN}))
        except MailError:  # a full disk or a lost link keeps nobody from reading
            return UidSet()
        selection.forget_changes(unseen)
    return unseen


async def _unmark(session: Session, uids: UidSet) -> None:
    r"""Take back `\Seen` from what could not be sent: nobody has seen it. The client is told as of any change."""
    if uids:
        with suppress(MailError):
            await session.mail.store_flags(session.selection.view, uids, removed=frozenset({SEEN}))


def _response(plan: _Plan, number: int, message: Message, flags: Atom, text: MessageText | None) -> list[bytes]:
    """Looks at nothing that changes: may run in a thread."""
    values = [
        (name, flags if item is Attribute.FLAGS else fetch_value(item, message, text)) for name, item in plan.items
    ]
    if message.uid in plan.seen and not plan.tells_flags:
        values.append((b"FLAGS", flags))
    return fetch_response(number, values)


def _completion(*, gone: int, unreadable: UidSet) -> Completion:
    if unreadable:
        ranges = ",".join(str(UidSet((one,))) for one in unreadable.ranges[:RANGES_NAMED])
        more = ",..." if len(unreadable.ranges) > RANGES_NAMED else ""
        out = "1 message is" if len(unreadable) == 1 else f"{len(unreadable)} messages are"
        why = f"no node in reach has the text of UID {ranges}{more}"
        raise CommandFailedError(f"{out} left out: {why}; try later", "UNAVAILABLE")
    if gone:
        raise CommandFailedError(f"{gone} of the messages have been expunged; NOOP tells which", "EXPUNGEISSUED")
    return Completion("Fetched")
