"""Commands on folders (RFC 3501 section 6.3)."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from replicator.errors import InvalidNameError, MailboxFullError
from replicator.imap.handlers.folders.folder_list import FolderSelection, list_entries
from replicator.imap.handlers.folders.metadata import shown_uses
from replicator.imap.handlers.resync import update_cache
from replicator.imap.selection import Selection, shown_modseq
from replicator.imap.session import Completion, Session
from replicator.imap.special_uses import checked_uses
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import list_line, status_line, status_response, untagged
from replicator.mail.mailstore import INBOX, SEPARATOR, Folder, FolderStatus, check_new_name

_OF_DELETED = frozenset({c.StatusItem.DELETED, c.StatusItem.DELETED_STORAGE})
_NAMES_BETWEEN_CHECKPOINTS = 10  # a millisecond or two where names are as long as they may be
_MESSAGES_BETWEEN_CHECKPOINTS = 2000  # a millisecond


async def namespace(session: Session, _command: c.Namespace) -> Completion:
    """Run NAMESPACE (RFC 2342): personal mail at the root, and no other namespace."""
    await session.write([untagged(f'NAMESPACE (("" "{SEPARATOR}")) NIL NIL')])
    return Completion("Namespace listed")


async def create(session: Session, command: c.Create) -> Completion:
    """Run CREATE. A trailing separator only announces that the folder will have subfolders (RFC 3501 section 6.3.3)."""
    check_new_name(command.mailbox)
    name, use = command.mailbox.removesuffix(SEPARATOR), checked_uses(command.uses)
    try:
        folder = await session.mail.create_folder(session.user, name, use or None)
    except MailboxFullError as error:
        raise session.refusal_of(error) from error
    return Completion("Created", mailbox_id_code(folder))


async def delete(session: Session, command: c.Delete) -> Completion:
    """Run DELETE. If the selected mailbox is deleted, none is selected afterwards."""
    if command.mailbox == INBOX:
        raise InvalidNameError("INBOX cannot be deleted")
    selection = session.selection_or_none
    await session.mail.catch_up(session.user, command.mailbox)  # another folder may have this name by now
    folder = await session.folder(command.mailbox)
    await session.mail.delete_folder(session.user, command.mailbox)
    if selection is not None and selection.folder.mailbox_id == folder.mailbox_id:
        session.select(None)
    return Completion("Deleted")


async def rename(session: Session, command: c.Rename) -> Completion:
    """Run RENAME. If INBOX is selected and renamed, none is selected afterwards: its mail is in another folder."""
    check_new_name(command.new_name)
    name = command.new_name.removesuffix(SEPARATOR)
    await session.mail.catch_up(session.user)
    try:
        await session.mail.rename_folder(session.user, command.mailbox, name)
    except MailboxFullError as error:
        raise session.refusal_of(error) from error
    selection = session.selection_or_none
    if selection is not None and command.mailbox == selection.folder.name == INBOX:
        session.select(None)
    return Completion("Renamed")


async def subscribe(session: Session, command: c.Subscribe) -> Completion:
    """Run SUBSCRIBE and UNSUBSCRIBE."""
    try:
        await session.mail.subscribe(session.user, command.mailbox, subscribed=command.subscribed)
    except MailboxFullError as error:
        raise session.refusal_of(error) from error
    return Completion("Subscribed" if command.subscribed else "Unsubscribed")


async def status(session: Session, command: c.Status) -> Completion:
    """Run STATUS."""
    await session.mail.catch_up(session.user, command.mailbox)
    await session.write([await status_of(session, await session.folder(command.mailbox), command.items)])
    return Completion("Counted")


async def status_of(session: Session, folder: Folder, items: Iterable[c.StatusItem]) -> bytes:
    """Return the STATUS response with these items."""
    asked = dict.fromkeys(items)
    if c.StatusItem.HIGHESTMODSEQ in asked:
        session.become_aware()
    return await counted(session, folder, asked)


async def counted(session: Session, folder: Folder, items: Iterable[c.StatusItem]) -> bytes:
    """Return the STATUS response with these items, each once, which the client may not have asked for."""
    asked = [*items]
    counters = await session.mail.status(folder)
    recent = await session.mail.count_recent(folder) if c.StatusItem.RECENT in asked else 0
    deleted = await _deleted(session, folder) if _OF_DELETED.intersection(asked) else (0, 0)
    values = [(item.value, _status_value(session, item, counters, recent, deleted)) for item in asked]
    return status_response(folder.name, values, utf8=session.aware.utf8)


async def _deleted(session: Session, folder: Folder) -> tuple[int, int]:
    r"""Return the number of messages with `\Deleted`, and their size in octets."""
    view = await session.mail.open_mailbox(folder)
    uids = [*view.by_flag.get("\\Deleted", ())]
    messages = size_bytes = 0
    for start in range(0, len(uids), _MESSAGES_BETWEEN_CHECKPOINTS):
        some = (view.messages.get(uid) for uid in uids[start : start + _MESSAGES_BETWEEN_CHECKPOINTS])
        for message in filter(None, some):
            messages, size_bytes = messages + 1, size_bytes + message.size_bytes
        await trio.lowlevel.checkpoint()
    return messages, size_bytes


def _status_value(
    session: Session, item: c.StatusItem, status: FolderStatus, recent: int, deleted: tuple[int, int]
) -> str:
    values = {
        c.StatusItem.MESSAGES: status.messages,
        c.StatusItem.RECENT: recent,
        c.StatusItem.UIDNEXT: status.uidnext,
        c.StatusItem.UIDVALIDITY: status.folder.uidvalidity,
        c.StatusItem.UNSEEN: status.unseen,
        c.StatusItem.SIZE: status.size_bytes,
        c.StatusItem.DELETED: deleted[0],
        c.StatusItem.DELETED_STORAGE: deleted[1],
        c.StatusItem.APPENDLIMIT: session.services.max_message_bytes,
        c.StatusItem.MAILBOXID: f"({mailbox_id(status.folder)})",
        c.StatusItem.HIGHESTMODSEQ: shown_modseq(status.highestmodseq),
    }
    return str(values[item])


async def select(session: Session, command: c.Select) -> Completion:
    """Run SELECT and EXAMINE. The previous mailbox is closed even if the command fails (RFC 3501 section 6.3.1)."""
    if command.resync is not None and not session.aware.qresync:
        raise CommandFailedError("QRESYNC needs ENABLE QRESYNC before it", condition="BAD")
    if session.selection_or_none is not None:
        session.select(None)
        await session.write([status_line("OK", "Previous mailbox closed", "CLOSED")])  # RFC 7162 section 3.2.11
    if command.condstore:
        session.become_aware()
    await session.mail.catch_up(session.user, command.mailbox)
    folder = await session.folder(command.mailbox)
    selection = await Selection.open(session.mail, folder, read_only=command.read_only, aware=session.aware)
    session.select(selection)
    unseen = selection.first_unseen()
    lines = [
        *selection.flag_lines(),
        selection.exists_line(),
        *selection.recent_lines(),
        *([status_line("OK", "First unseen message", f"UNSEEN {unseen}")] if unseen is not None else []),
        status_line("OK", "UIDs are valid", f"UIDVALIDITY {selection.uidvalidity}"),
        status_line("OK", "Next UID", f"UIDNEXT {selection.view.uidnext}"),
        selection.modseq_line(),
        status_line("OK", "Id of the mailbox", mailbox_id_code(folder)),
    ]
    await session.write(lines)
    if session.aware.rev2:
        await _tell_folder(session, folder.name)
    if command.resync is not None and command.resync.uidvalidity == selection.uidvalidity:
        await update_cache(session, command.resync)
    return Completion("Selected", "READ-ONLY" if command.read_only else "READ-WRITE")


async def _tell_folder(session: Session, name: str) -> None:
    """Tell the client of the folder that it selects, by LIST (RFC 9051 section 6.3.2)."""
    folders = {folder.name: folder.mailbox_id for folder in await session.mail.folders(session.user)}
    shown = FolderSelection(marked=[await shown_uses(session, folders)])
    for visited, entry in enumerate(list_entries([name], [*folders], shown)):
        if entry is not None and entry.name == name:  # the name may look like a pattern
            await session.write([list_line("LIST", entry.attributes, name, utf8=session.aware.utf8)])
        if visited % _NAMES_BETWEEN_CHECKPOINTS == 0:
            await trio.lowlevel.checkpoint()


def mailbox_id(folder: Folder) -> str:
    """Return the MAILBOXID (RFC 8474 section 4); it begins with a letter, as section 7 there advises."""
    return f"F{folder.mailbox_id.hex()}"


def mailbox_id_code(folder: Folder) -> str:
    """Return the response code of SELECT and CREATE (RFC 8474 sections 4.1 and 4.2)."""
    return f"MAILBOXID ({mailbox_id(folder)})"
