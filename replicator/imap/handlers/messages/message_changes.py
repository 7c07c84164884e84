"""Commands that change or leave the selected mailbox: STORE, COPY, MOVE, EXPUNGE, CHECK, CLOSE, UNSELECT."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import trio

from protocol.values import UidSet
from replicator.imap.handlers.messages.named_messages import (
    MANY_RANGES,
    MESSAGES_BETWEEN_CHECKPOINTS,
    expunged_elsewhere,
    resolved,
)
from replicator.imap.handlers.resync import LOOKED_AT_ONCE, changed_since
from replicator.imap.selection import Selection
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError, offering_to_create
from replicator.imap.wire.responses import copyuid, status_line
from replicator.imap.wire.sequence_set import MessageSet, SavedResult
from replicator.mail.flags import keywords, other_flags, removable_flags, settable_flags
from replicator.mail.view import MailboxView, Message

_DELETED = "\\Deleted"


async def store(session: Session, command: c.Store) -> Completion:
    """Run STORE and UID STORE. `.SILENT` suppresses only the client's own changes.

    A client that is aware of CONDSTORE always hears of the new MODSEQs (RFC 7162 section 3.1.3).
    """
    if command.unchanged_since is not None:
        session.become_aware()
    selection = _writable(session)
    view = selection.view
    runs = await resolved(session, command.numbers, by_uid=command.by_uid)
    each, uids = await _named(session, runs)
    # No await between this and the request: the command means the messages that exist now.
    gone = _gone(view, each)
    added, removed = _flag_changes(selection, command, uids)
    before = _before(session, each) if command.silent else []
    untold = selection.untold_changes()
    refused = UidSet()
    if command.unchanged_since is not None and not (added or removed):
        refused = await _changed(session, runs, command.unchanged_since)
    elif gone < len(each) and (added or removed):
        result = await session.mail.store_flags(
            view, uids, added=added, removed=removed, unchanged_since=command.unchanged_since
        )
        refused = result.refused if command.unchanged_since is not None else refused
    expected: dict[int, frozenset[str]] = {}
    if command.silent:
        expect = partial(_expected, before, each, untold, added, removed)
        expected = await session.services.parsing.apart_if_many(len(before), expect)
    if command.silent and not session.aware.condstore:
        await selection.forget_expected(expected)
    else:
        selection.forget_changes(each)
        await _tell_flags(session, runs, expected, refused, with_uid=command.by_uid)
    return await _stored(session, command, runs, refused, gone)


async def _changed(session: Session, runs: list[range], modseq: int) -> UidSet:
    """Return the UIDs of the messages of these runs that have a MODSEQ above this one."""
    found = await changed_since(session, runs, modseq)
    pairs = session.selection.numbering.pairs([found])
    return await session.services.parsing.apart_if_many(len(found), lambda: UidSet.of(uid for _, uid in pairs))


async def _stored(session: Session, command: c.Store, runs: list[range], refused: UidSet, gone: int) -> Completion:
    """Return the end of a STORE: which messages were changed since, or how many are gone."""
    view, numbering, modified = session.selection.view, session.selection.numbering, array("I")
    for position, (number, uid) in enumerate(numbering.pairs(runs) if refused else ()):
        if uid in refused and uid in view.messages:
            modified.append(uid if command.by_uid else number)
        if position % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
            await trio.lowlevel.checkpoint()
    if modified:
        printed = await session.services.parsing.apart_if_many(len(modified), lambda: str(UidSet.of(modified)))
        return Completion(f"{len(modified)} of the messages have been changed since", f"MODIFIED {printed}")
    if gone and not command.by_uid:
        return expunged_elsewhere("Stored", gone)
    return Completion("Stored")


def _before(session: Session, uids: Sequence[int]) -> list[Message]:
    """Return the messages as they are now; with them others, in any order, if that is faster."""
    view = session.selection.view
    if len(uids) > session.services.parsing.many_messages:
        return view.snapshot()
    return [view.messages[uid] for uid in uids if uid in view.messages]


def _expected(
    before: list[Message],
    named: Iterable[int],
    untold: frozenset[int],
    added: frozenset[str],
    removed: frozenset[str],
) -> dict[int, frozenset[str]]:
    """Return the flags that the client expects, and use up the list: to free all of the messages at once takes long.

    Of the `untold` messages the client does not know the flags before, so it is to be told their flags afterwards.
    A whole mailbox has few different sets of flags, made once each.
    """
    made: dict[frozenset[str], frozenset[str]] = {}
    expected, uids = {}, frozenset(named) - untold
    while before:
        message = before.pop()
        if message.uid in uids:
            if message.flags not in made:
                made[message.flags] = (message.flags - removed) | added
            expected[message.uid] = made[message.flags]
    return expected


def _flag_changes(selection: Selection, command: c.Store, uids: UidSet) -> tuple[frozenset[str], frozenset[str]]:
    """Return the flags to add and the flags to remove."""
    if command.action is c.StoreAction.REMOVE:
        return frozenset(), removable_flags(command.flags, selection.view)
    wanted = settable_flags(command.flags, keywords(selection.view.by_flag))
    if command.action is c.StoreAction.ADD:
        return wanted, frozenset()
    return wanted, other_flags(wanted, selection.view, uids)


async def _tell_flags(
    session: Session, runs: list[range], expected: Mapping[int, frozenset[str]], refused: UidSet, *, with_uid: bool
) -> None:
    """Tell the messages' flags, or the MODSEQ alone of those that have the flags that their client expects."""
    selection = session.selection
    for position, (number, uid) in enumerate(selection.numbering.pairs(runs)):
        if (message := selection.view.messages.get(uid)) is not None:
            with_flags = message.flags != expected.get(uid) or uid in refused
            await session.write(selection.changed_message(number, message, with_uid=with_uid, with_flags=with_flags))
        if position % MESSAGES_BETWEEN_CHECKPOINTS == 0:
            await trio.lowlevel.checkpoint()


async def copy(session: Session, command: c.Copy) -> Completion:
    """Run COPY and MOVE, with COPYUID (RFC 4315 section 3), on all of the messages or none."""
    selection = _writable(session) if command.remove else session.selection
    await session.mail.catch_up(session.user)
    runs = await resolved(session, command.numbers, by_uid=command.by_uid)
    with offering_to_create(command.mailbox):
        destination = await session.folder(command.mailbox)
        each, uids = await _named(session, runs)
        # No await between this and the request: the command means the messages that exist now.
        if (gone := _gone(selection.view, each)) and not command.by_uid:
            raise _expunged_elsewhere(gone)
        act = session.mail.move if command.remove else session.mail.copy
        copied = await act(selection.view, uids, destination)
    if not copied.uids:
        return Completion("No messages to copy or move")
    selection.put_here(destination, (uid for _, uid in copied.uids if copied.shown))
    tell = partial(copyuid, copied.uidvalidity, copied.uids)
    code = await session.services.parsing.apart_if_many(len(copied.uids), tell) if copied.shown else None
    if not command.remove:
        return Completion("Copied", code)
    await session.write([status_line("OK", "Moved there", code)])  # RFC 6851 section 4.3: before the EXPUNGEs
    return Completion("Moved")


async def expunge(session: Session, command: c.Expunge) -> Completion:
    """Run EXPUNGE and UID EXPUNGE."""
    selection = _writable(session)
    if uids := await _deleted(session, command.uids):
        await session.mail.expunge(selection.view, uids)
    return Completion("Expunged")


async def check(session: Session, _command: c.Check) -> Completion:
    """Run CHECK: everything answered with OK is on disk already."""
    await session.catch_up()
    return Completion("Checked")


async def close(session: Session, _command: c.Close) -> Completion:
    """Run CLOSE: expunge silently, and deselect."""
    selection = session.selection
    if not selection.read_only and (uids := await _deleted(session)):
        await session.mail.expunge(selection.view, uids)
    session.select(None)
    return Completion("Closed")


async def unselect(session: Session, _command: c.Unselect) -> Completion:
    """Run UNSELECT (RFC 3691): deselect without expunging."""
    session.select(None)
    return Completion("Closed")


def _writable(session: Session) -> Selection:
    if session.selection.read_only:
        raise CommandFailedError("The mailbox was opened read-only; SELECT it to change it", "READ-ONLY")
    return session.selection


async def _named(session: Session, runs: list[range]) -> tuple[Sequence[int], UidSet]:
    """Return the UIDs that these sequence numbers stand for, one by one and as a set, even of messages that are gone.

    That may wait, but the result stays right: the numbering does not change while a command runs.
    """
    each = session.selection.numbering.uids_of(runs)
    return each, await session.services.parsing.apart_if_many(len(each), partial(UidSet.of, each))


def _gone(view: MailboxView, uids: Sequence[int]) -> int:
    """Return how many of the messages do not exist any more."""
    return len(uids) - sum(map(view.messages.__contains__, uids))


async def _deleted(session: Session, named: MessageSet | None = None) -> UidSet:
    r"""Return announced messages with `\Deleted`: an expunge removes only what its client saw (design section 3).

    `named`: only of these UIDs.
    """
    selection = session.selection
    number = selection.numbering.number
    deleted = [*selection.view.by_flag.get(_DELETED, ())]

    def announced() -> UidSet:
        # The numbering does not change meanwhile: nothing is announced while a command runs.
        if isinstance(named, SavedResult):
            wanted: UidSet | None = UidSet.of(selection.saved)
        else:
            wanted = named.resolve(selection.numbering.last) if named is not None else None
        return UidSet.of([uid for uid in deleted if number(uid) and (wanted is None or uid in wanted)])

    if isinstance(named, SavedResult):
        many = len(selection.saved)
    else:
        many = len(named.ranges) * (session.services.parsing.many_messages // MANY_RANGES) if named is not None else 0
    return await session.services.parsing.apart_if_many(len(deleted) + many, announced)


def _expunged_elsewhere(gone: int) -> CommandFailedError:
    """Return the refusal of RFC 2180 section 4, with the code of RFC 5530 section 3."""
    return CommandFailedError(f"{gone} of the messages have been expunged; NOOP tells which", "EXPUNGEISSUED")
