"""LIST and LSUB (RFC 3501 sections 6.3.8 and 6.3.9, RFC 5258, RFC 5819)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from replicator.errors import MailError
from replicator.imap.handlers.folders.folder_list import (
    MAX_PATTERN,
    NONEXISTENT,
    NOSELECT,
    SUBSCRIBED,
    WILDCARDS,
    FolderSelection,
    list_entries,
    lsub_entries,
)
from replicator.imap.handlers.folders.folders import status_of
from replicator.imap.handlers.folders.metadata import shown_uses
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import list_line
from replicator.mail.mailstore import Folder

_NAMES_BETWEEN_CHECKPOINTS = 10  # a millisecond or two where names are as long as they may be


async def list_folders(session: Session, command: c.ListMailboxes) -> Completion:
    """Run LIST."""
    if not command.extended and command.patterns == ("",):  # RFC 3501 section 6.3.8: a request for the separator
        await session.write([list_line("LIST", [NOSELECT], "")])
        return Completion("Separator listed")
    patterns = _checked(session, command.reference, command.patterns)
    await session.mail.catch_up(session.user)
    folders = {folder.name: folder for folder in await session.mail.folders(session.user)}
    criteria = sorted(option.value for option in command.selection & c.LIST_CRITERIA)
    selection = await _selection(session, command, folders)
    lines = []
    for visited, entry in enumerate(list_entries(patterns, [*folders], selection)):
        if entry is not None:
            child_info = criteria if entry.child_info else ()
            lines.append(list_line("LIST", entry.attributes, entry.name, child_info, utf8=session.aware.utf8))
        if entry is not None and command.status and entry.meets:
            with suppress(MailError):  # RFC 5819 section 2: LIST goes on without it
                lines.append(await status_of(session, folders[entry.name], command.status))
        if visited % _NAMES_BETWEEN_CHECKPOINTS == 0:
            await session.write(lines)
            lines = []
            await trio.lowlevel.checkpoint()
    await session.write(lines)
    return Completion("Folders listed")


async def list_subscriptions(session: Session, command: c.ListSubscriptions) -> Completion:
    """Run LSUB."""
    (pattern,) = _checked(session, command.reference, [command.pattern])
    await session.mail.catch_up(session.user)
    lines = []
    for visited, entry in enumerate(lsub_entries(pattern, await session.mail.subscriptions(session.user))):
        if entry is not None:
            lines.append(list_line("LSUB", entry.attributes, entry.name, utf8=session.aware.utf8))
        if visited % _NAMES_BETWEEN_CHECKPOINTS == 0:
            await session.write(lines)
            lines = []
            await trio.lowlevel.checkpoint()
    await session.write(lines)
    return Completion("Folders listed")


def _checked(session: Session, reference: str, patterns: Sequence[str]) -> list[str]:
    """Return the patterns below the reference. Raises CommandFailedError if they are too long or too costly."""
    length = len(reference) * len(patterns) + len(" ".join(patterns))
    if length > MAX_PATTERN:
        raise CommandFailedError(f"A pattern may have {MAX_PATTERN} characters, not {length}", "LIMIT")
    whole = [reference + pattern for pattern in patterns]
    limit = session.limits.imap_list_wildcards
    if (wildcards := sum(pattern.count(wildcard) for pattern in whole for wildcard in WILDCARDS)) > limit:
        raise session.refusal("imap_list_wildcards", f"A pattern may have {limit} wildcards, not {wildcards}")
    return whole


async def _selection(session: Session, command: c.ListMailboxes, folders: Mapping[str, Folder]) -> FolderSelection:
    """Return what the options of LIST select of the folders, and which attributes they ask for.

    REMOTE adds nothing: all folders are here. Children and special uses are shown unasked.
    """
    special = await shown_uses(session, {name: folder.mailbox_id for name, folder in folders.items()})
    if not command.extended:
        return FolderSelection(marked=[special], nonexistent=NONEXISTENT if session.aware.rev2 else NOSELECT)
    selected, returned = command.selection, command.returned
    by_subscription = c.ListSelection.SUBSCRIBED in selected
    subscribed: dict[str, str] = {}
    if by_subscription or c.ListReturn.SUBSCRIBED in returned:
        subscribed = dict.fromkeys(await session.mail.subscriptions(session.user), SUBSCRIBED)
    by_use = c.ListSelection.SPECIAL_USE in selected
    return FolderSelection(
        criteria=[*([subscribed.keys()] if by_subscription else ()), *([special.keys()] if by_use else ())],
        recursive=c.ListSelection.RECURSIVEMATCH in selected,
        unknown=[name for name in subscribed if name not in folders] if by_subscription else (),
        marked=[subscribed, special],
        nonexistent=NONEXISTENT,
    )
