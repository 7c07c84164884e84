"""ENABLE (RFC 5161), and how a client learns what its cache lacks (RFC 7162 sections 3.1.4.1, 3.2.5 and 3.2.6)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, islice

import trio

from protocol.values import UID_MAX, UidSet
from replicator.imap import cache_update
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.responses import untagged, vanished_response

LOOKED_AT_ONCE = 5000  # messages whose MODSEQ is compared, in a millisecond
TOLD_AT_ONCE = 100  # changed messages, in a millisecond
COMPARED_AT_ONCE = 500  # messages, between which UIDs have vanished: a line of some KiB

_CAN_BE_ENABLED = {name.upper(): name for name in ("CONDSTORE", "QRESYNC", "UTF8=ACCEPT", "IMAP4rev2")}


async def enable(session: Session, command: c.Enable) -> Completion:
    """Run ENABLE. What this server cannot enable is passed over (RFC 5161 section 3.1)."""
    enabled = [name for name in dict.fromkeys(command.extensions) if name in _CAN_BE_ENABLED]
    if "CONDSTORE" in enabled or "QRESYNC" in enabled:
        session.become_aware(qresync="QRESYNC" in enabled)
    session.aware.rev2 |= "IMAP4REV2" in enabled
    session.aware.utf8 |= "UTF8=ACCEPT" in enabled or session.aware.rev2
    await session.write([untagged(" ".join(["ENABLED", *(_CAN_BE_ENABLED[name] for name in enabled)]))])
    return Completion("Enabled")


async def update_cache(session: Session, resync: c.Resync) -> None:
    """Tell what the client's cache lacks: the QRESYNC of SELECT, for a mailbox whose UIDVALIDITY it knows."""
    selection = session.selection
    view = selection.view
    since = cache_update.believed_modseq(resync.modseq, view.highestmodseq)
    known = UidSet(((1, view.uidnext - 1),)) if view.uidnext > 1 else UidSet()
    if resync.known is not None:
        known = resync.known
    # A client that comes from another branch may have missed more than the numbers of messages tell.
    sample = resync.sample if since else None

    def compare() -> tuple[UidSet, list[range]]:  # the client may name thousands of ranges
        numbering = selection.numbering  # which does not change meanwhile: nothing is announced while a command runs
        up_to = cache_update.known_up_to(sample, numbering.uids) if sample is not None else 0
        return cache_update.between(known, up_to + 1, UID_MAX), numbering.within(known)

    doubtful, runs = await session.services.parsing.apart(compare)
    await tell_vanished(session, doubtful)
    changed = await changed_since(session, runs, since)
    for told, (number, uid) in enumerate(selection.numbering.pairs([changed])):
        if (message := view.messages.get(uid)) is not None:
            await session.write(selection.changed_message(number, message))
        if told % TOLD_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()


async def tell_vanished(session: Session, known: UidSet) -> None:
    """Tell which of these UIDs are not in the mailbox, by VANISHED (EARLIER).

    Messages that were expunged in this session count as there: the client hears of them later (RFC 7162 section
    3.2.10.2), as it does of new ones.
    """
    numbering, view = session.selection.numbering, session.selection.view
    present = array("I")
    present.extend(numbering.uids)  # at once, other than by the constructor
    present.extend(view.messages.irange(numbering.last + 1))
    first = 1
    for start in range(0, len(present) + 1, COMPARED_AT_ONCE):
        some = present[start : start + COMPARED_AT_ONCE]
        last = some[-1] if len(some) == COMPARED_AT_ONCE else UID_MAX
        has_gaps = last - first >= len(some)
        if has_gaps and (gone := cache_update.vanished(cache_update.between(known, first, last), some)):
            await session.write([vanished_response(gone, earlier=True)])
        first = last + 1
        await trio.lowlevel.checkpoint()


async def changed_since(session: Session, runs: Sequence[range], modseq: int) -> Sequence[int]:
    """Return the sequence numbers of the messages of these runs, which ascend, that have a MODSEQ above this one."""
    numbering, view = session.selection.numbering, session.selection.view
    uids, message_of = numbering.uids, view.messages.get
    changed = view.changed_above(modseq)
    if changed is not None and len(changed) < sum(map(len, runs)):
        above = [uid for uid in changed if (message := message_of(uid)) and message.modseq > modseq]
        return [number for number in numbering.numbers(above) if _is_in(runs, number)]
    numbers, found = chain.from_iterable(runs), array("I")
    while some := [*islice(numbers, LOOKED_AT_ONCE)]:
        found.extend(
            [number for number in some if (message := message_of(uids[number - 1])) and message.modseq > modseq]
        )
        await trio.lowlevel.checkpoint()
    return found


def _is_in(runs: Sequence[range], number: int) -> bool:
    position = bisect_right(runs, number, key=lambda run: run.start) - 1
    return position >= 0 and number in runs[position]
