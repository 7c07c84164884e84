"""Commands that change or leave the selected mailbox: STORE, COPY, MOVE, EXPUNGE, CHECK, CLOSE, UNSELECT."""

from __future__ import annotations

import trio

from protocol.values import UidSet
from replicator.flags import keywords, other_flags, removable_flags, settable_flags
from replicator.imap.handlers.fetch import MANY_RANGES, MESSAGES_BETWEEN_CHECKPOINTS, resolved
from replicator.imap.selection import Selection
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.fetch_items import Value
from replicator.imap.wire.refusals import CommandFailedError, offering_to_create
from replicator.imap.wire.responses import copyuid, fetch_response, status_line, without_body
from replicator.imap.wire.sequence_set import SequenceSet
from replicator.view import MailboxView

MANY_MESSAGES = 2000  # each takes a microsecond, and more than these are looked up in a thread

_DELETED = "\\Deleted"


async def store(session: Session, command: c.Store) -> Completion:
    """Run STORE and UID STORE. `.SILENT` suppresses only the client's own changes."""
    selection = _writable(session)
    view = selection.view
    runs = await resolved(session, command.numbers, by_uid=command.by_uid)
    uids, gone = _existing(selection, runs)
    added, removed = _flag_changes(selection, command, uids)
    expected = _expected(view, uids, added, removed) if command.silent else {}
    selection.gather()
    if uids and (added or removed):
        await session.mail.store_flags(view, uids, added=added, removed=removed)
    if command.silent:
        selection.forget_expected(expected)
    else:
        selection.forget_changes(uids)
        await _tell_flags(session, runs, with_uid=command.by_uid)
    if gone and not command.by_uid:
        raise _expunged_elsewhere(gone)
    return Completion("Stored")


def _expected(
    view: MailboxView, uids: UidSet, added: frozenset[str], removed: frozenset[str]
) -> dict[int, frozenset[str]]:
    """Return the flags that the messages will have. A whole mailbox has few different sets of flags, made once each."""
    made: dict[frozenset[str], frozenset[str]] = {}
    expected = {}
    for uid in uids:
        flags = view.messages[uid].flags
        if flags not in made:
            made[flags] = (flags - removed) | added
        expected[uid] = made[flags]
    return expected


def _flag_changes(selection: Selection, command: c.Store, uids: UidSet) -> tuple[frozenset[str], frozenset[str]]:
    """Return the flags to add and the flags to remove."""
    if command.action is c.StoreAction.REMOVE:
        return frozenset(), removable_flags(command.flags, selection.view)
    wanted = settable_flags(command.flags, keywords(selection.view))
    if command.action is c.StoreAction.ADD:
        return wanted, frozenset()
    return wanted, other_flags(wanted, selection.view, uids)


async def _tell_flags(session: Session, runs: list[range], *, with_uid: bool) -> None:
    selection = session.selection
    for position, (number, uid) in enumerate(selection.numbering.pairs(runs)):
        if (message := selection.view.messages.get(uid)) is not None:
            values: list[tuple[bytes, Value]] = [(b"UID", uid)] if with_uid else []
            values.append((b"FLAGS", selection.printed_flags(message)))
            await session.write(without_body(fetch_response(number, values)))
        if position % MESSAGES_BETWEEN_CHECKPOINTS == 0:
            await trio.lowlevel.checkpoint()


async def copy(session: Session, command: c.Copy) -> Completion:
    """Run COPY and MOVE, with COPYUID (RFC 4315 section 3), on all of the messages or none."""
    selection = _writable(session) if command.remove else session.selection
    runs = await resolved(session, command.numbers, by_uid=command.by_uid)
    with offering_to_create():
        destination = await session.folder(command.mailbox)
        # No await between this and the request: the command means the messages that exist now.
        uids, gone = _existing(selection, runs)
        if gone and not command.by_uid:
            raise _expunged_elsewhere(gone)
        act = session.mail.move if command.remove else session.mail.copy
        copied = await act(selection.view, uids, destination)
    if not copied.uids:
        return Completion("No messages to copy or move")
    code = copyuid(copied.uidvalidity, copied.uids) if copied.shown else None
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


async def check(_session: Session, _command: c.Check) -> Completion:
    """Run CHECK: everything answered with OK is on disk already."""
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


def _existing(selection: Selection, runs: list[range]) -> tuple[UidSet, int]:
    """Return the messages that still exist, and the number of those that do not."""
    uids = [uid for _, uid in selection.numbering.pairs(runs)]
    existing = [uid for uid in uids if uid in selection.view.messages]
    return UidSet.of(existing), len(uids) - len(existing)


async def _deleted(session: Session, named: SequenceSet | None = None) -> UidSet:
    r"""Return announced messages with `\Deleted`: an expunge removes only what its client saw (design section 3).

    `named`: only of these UIDs.
    """
    selection = session.selection
    number = selection.numbering.number
    deleted = [*selection.view.by_flag.get(_DELETED, ())]

    def announced() -> UidSet:
        # The numbering does not change meanwhile: nothing is announced while a command runs.
        wanted = named.resolve(selection.numbering.last) if named is not None else None
        return UidSet.of([uid for uid in deleted if number(uid) and (wanted is None or uid in wanted)])

    many = len(deleted) > MANY_MESSAGES or (named is not None and len(named.ranges) > MANY_RANGES)
    return await session.services.parsing.apart(announced) if many else announced()


def _expunged_elsewhere(gone: int) -> CommandFailedError:
    """Return the refusal of RFC 2180 section 4, with the code of RFC 5530 section 3."""
    return CommandFailedError(f"{gone} of the messages have been expunged; NOOP tells which", "EXPUNGEISSUED")
