r"""FETCH (RFC 3501 section 6.4.5), one slice of the messages at a time.

For each slice, FETCH reads the message bodies, then marks the readable messages as seen if the items require it, then
sends them with `\Seen` in their flags. So no flag ever needs to be reverted, and a FETCH that is interrupted has marked
at most one slice of unsent messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from protocol.values import UidSet
from replicator.errors import MailError
from replicator.imap.cache_update import between, heard_modseq
from replicator.imap.handlers.messages.fetch_plan import plan_of
from replicator.imap.handlers.messages.fetch_reading import LeftOut, slices_of
from replicator.imap.handlers.messages.fetch_summaries import tell_summaries
from replicator.imap.handlers.messages.fetch_telling import tell
from replicator.imap.handlers.messages.named_messages import expunged_elsewhere, resolved
from replicator.imap.handlers.resync import changed_since, tell_vanished
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.fetch_items import Attribute, FetchItem, sets_seen
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.sequence_set import SavedResult
from replicator.mail.view import SEEN

RANGES_NAMED = 10  # of UIDs, in a one-line answer

log = logging.getLogger(__name__)


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
    selection, plan = session.selection, plan_of(_items(command))
    named = await resolved(session, command.numbers, by_uid=command.by_uid)
    if command.vanished:
        await _tell_vanished(session, command)
    runs: Sequence[Sequence[int]] = named
    if command.changed_since is not None:
        runs = [await changed_since(session, named, heard_modseq(command.changed_since))]
    if plan.tells_modseq:
        session.become_aware()
    marks = not selection.read_only and any(sets_seen(item) for item in command.items)
    left_out = LeftOut()
    if plan.is_summary and not marks:
        await tell_summaries(session, plan, selection.numbering.pairs(runs), left_out)
        return _completion(command, left_out)
    async with aclosing(slices_of(session, plan, selection.numbering.pairs(runs), left_out)) as slices:
        async for some in slices:
            seen = UidSet()
            if marks:
                try:
                    seen = await _mark_seen(session, [one.message.uid for one in some])
                except MailError:  # a full disk or a lost link does not prevent reading; it delays one slice only
                    marks = False
            await tell(session, plan, some, seen)
    return _completion(command, left_out)


async def fetch_new(session: Session, items: Iterable[FetchItem], uids: Iterable[int]) -> None:
    r"""Tell these items of new messages that are announced, without marking any as seen (RFC 5465 section 5.2).

    Those that are gone, or cannot be read in the time for that, are left out, and all if the database fails.
    """
    plan = plan_of(items)
    if not plan.items:
        return
    number = session.selection.numbering.number
    pairs = ((found, uid) for uid in uids if (found := number(uid)) is not None)
    try:
        if plan.is_summary:
            await tell_summaries(session, plan, pairs, LeftOut())
            return
        async with aclosing(slices_of(session, plan, pairs, LeftOut())) as slices:
            async for some in slices:
                await tell(session, plan, some, UidSet())
    except MailError as error:  # the client knows that the messages are there, and a command is still to be answered
        log.warning("cannot tell a client of new messages what it wants to know: %s", error)


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


def _items(command: c.Fetch) -> list[FetchItem]:
    items = list(command.items)
    if command.changed_since is not None and Attribute.MODSEQ not in items:  # RFC 7162 section 3.1.4.1
        items.append(Attribute.MODSEQ)
    if command.by_uid and Attribute.UID not in items:  # RFC 3501 section 6.4.8
        items.insert(0, Attribute.UID)
    return items


async def _mark_seen(session: Session, uids: Iterable[int]) -> UidSet:
    r"""Set `\Seen` by one change and return the UIDs of messages that lacked it. Raises MailError."""
    selection = session.selection
    rows = (selection.view.messages.get(uid) for uid in uids)
    unseen = UidSet.of(row.uid for row in rows if row is not None and SEEN not in row.flags)
    if unseen:
        await session.mail.store_flags(selection.view, unseen, added=frozenset({SEEN}))
        selection.forget_changes(unseen)
    return unseen


def _completion(command: c.Fetch, left_out: LeftOut) -> Completion:
    if left_out.unreadable:
        unreadable = UidSet.of(left_out.unreadable)
        ranges = ",".join(str(UidSet((one,))) for one in unreadable.ranges[:RANGES_NAMED])
        more = ",..." if len(unreadable.ranges) > RANGES_NAMED else ""
        out = "1 message is" if len(unreadable) == 1 else f"{len(unreadable)} messages are"
        why = f"no node in reach has the body of UID {ranges}{more}"
        raise CommandFailedError(f"{out} left out: {why}; try again later", "UNAVAILABLE")
    if left_out.gone and not command.by_uid:
        return expunged_elsewhere("Fetched", left_out.gone)
    return Completion("Fetched")
