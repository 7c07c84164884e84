"""NOTIFY (RFC 5465), and what it makes the server say of folders other than the selected one.

LIST tells of names and subscriptions, METADATA of annotations, STATUS of messages. They say what is so now, so changes
that come fast are told together. A client hears nothing of what its own CREATE, DELETE, RENAME, SUBSCRIBE and
SETMETADATA do to names and annotations; the STATUS of a mailbox into which it copies or appends tells of others'
changes, too, so it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import trio

from replicator.errors import MailError
from replicator.imap.handlers.folders.folder_list import NONEXISTENT, SUBSCRIBED
from replicator.imap.handlers.folders.folders import counted
from replicator.imap.handlers.folders.metadata import annotations_set_by, shown_uses
from replicator.imap.handlers.searches.updates import announce
from replicator.imap.notifications import Notifications, Wishes, is_caused_by, status_values
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.event_groups import Event
from replicator.imap.wire.fetch_items import Attribute
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import list_line, metadata_names_response, status_line, status_response
from replicator.mail.folder_watch import FolderChanges
from replicator.mail.mailstore import Folder
from replicator.mail.watched_folders import FolderEvent, FolderTree

_NAMES_BETWEEN_CHECKPOINTS = 20  # a millisecond or two where names are as long as they may be

_OVERFLOW = "NOTIFICATIONOVERFLOW"


async def notify(session: Session, command: c.Notify) -> Completion:
    """Run NOTIFY. NOTIFY SET is a NOOP, too (RFC 5465 section 3.1)."""
    _check(session, command)
    if command.groups:
        await session.catch_up()
        if session.selection_or_none is not None:
            await announce(session, expunges=True, wishes=Wishes())
    notifications = Notifications(command.groups)
    if notifications.needs_watch:
        await session.mail.catch_up(session.user)
        notifications.watch = await session.mail.watch_folders(session.user)
    session.notify(notifications)
    if any(Attribute.MODSEQ in (group.items or ()) for group in command.groups):
        session.become_aware()
    if command.status and notifications.watch is not None:
        await _tell_all(session, notifications, notifications.watch.tree)
    return Completion("You will be notified" if command.groups else "You will not be notified")


def _check(session: Session, command: c.Notify) -> None:
    """Check that the groups can be carried out. Raises CommandFailedError."""
    if any(group.has_unsupported for group in command.groups):  # RFC 5465 section 3.1
        names = " ".join(event.value for event in Event)
        raise CommandFailedError("Some of these events are unknown here", f"BADEVENT ({names})")
    limit = session.limits.imap_notify_mailboxes
    if (named := sum(len(group.names) for group in command.groups)) > limit:
        text = f"A NOTIFY may name {limit} mailboxes, not {named}; use SUBTREE or PERSONAL"
        raise session.refusal("imap_notify_mailboxes", text, _OVERFLOW)
    limit = session.limits.imap_fetch_items
    if (items := sum(len(group.items or ()) for group in command.groups)) > limit:
        raise session.refusal("imap_fetch_items", f"A NOTIFY may have {limit} FETCH items, not {items}", _OVERFLOW)


async def _tell_all(session: Session, notifications: Notifications, tree: FolderTree) -> None:
    """Tell what is in each mailbox of whose messages the client wants to hear, as LIST with STATUS does."""
    condstore = session.aware.condstore
    for position, (name, folder) in enumerate(tree.folders.items()):
        if position % _NAMES_BETWEEN_CHECKPOINTS == 0:
            await trio.lowlevel.checkpoint()
        if not notifications.wants_status(name, tree) or _is_selected(session, folder.mailbox_id):
            continue
        items = notifications.items(name, tree, condstore=condstore)
        try:
            one = Folder(session.user, name, folder.mailbox_id, folder.uidvalidity, folder.own)
            await session.write([await counted(session, one, items)])
        except MailError:  # it may not be shown yet; what comes there is told
            continue


async def tell_folders(session: Session, command: c.Command | None = None) -> None:
    """Tell what has changed in folders that are not selected; not what the command just done has changed."""
    notifications = session.notifications
    if notifications is None or notifications.watch is None or session.ended:
        return
    try:
        changes = await notifications.watch.take()
    except MailError as error:
        await _give_up(session, str(error))
        return
    if changes.missed:
        await _give_up(session, "More has changed than can be told")
        return
    try:
        due = await _Events(session, notifications, changes, command).tell()
    except MailError as error:
        await _give_up(session, str(error))
        return
    if notifications.untold is not None and not _is_selected(session, notifications.untold):
        due += [name] if (name := changes.tree.names.get(notifications.untold)) is not None else []
        notifications.untold = None
    arrivals = dict.fromkeys((*due, *changes.arrivals))
    await _tell_counters(session, notifications, changes.tree, arrivals, Event.MESSAGE_NEW)
    flags = [name for name in changes.flags if name not in arrivals]
    await _tell_counters(session, notifications, changes.tree, flags, Event.FLAG_CHANGE)


async def _give_up(session: Session, why: str) -> None:
    """Tell that the client will not be notified any more (RFC 5465 section 5.8)."""
    session.notify(Notifications())
    await session.write([status_line("OK", f"{why}; send NOTIFY again, then LIST, STATUS and GETMETADATA", _OVERFLOW)])


@dataclass(slots=True)
class _Events:
    """Events of names, subscriptions and annotations, told in their order: a rename takes annotations along.

    `due`: names of renamed folders whose messages are news to the client. `command`: the one that was just done.
    """

    session: Session
    notifications: Notifications
    changes: FolderChanges
    command: c.Command | None
    due: list[str] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)  # new names of folders that the client knows to have moved
    _uses: Mapping[str, str] | None = None  # read once, and only if they are shown
    _annotated: dict[str, dict[str, None]] = field(default_factory=dict)  # folder -> annotations to be told of

    async def tell(self) -> list[str]:
        """Tell everything, and return `due`. Raises MailError if special uses cannot be read."""
        own = annotations_set_by(self.command)
        for position, event in enumerate(self.changes.events):
            if position % _NAMES_BETWEEN_CHECKPOINTS == 0:
                await trio.lowlevel.checkpoint()
            if isinstance(event, FolderEvent):
                await self._tell_annotations()
                await self._tell_name(event)
            elif event not in own and self.notifications.wants_annotation(event, self.changes.tree):
                self._annotated.setdefault(event.name, {})[event.entry] = None
        await self._tell_annotations()
        return self.due

    async def _tell_annotations(self) -> None:
        for position, (name, entries) in enumerate(self._annotated.items()):
            if position % _NAMES_BETWEEN_CHECKPOINTS == 0:
                await trio.lowlevel.checkpoint()
            await self.session.write(metadata_names_response(name, [*entries], utf8=self.session.aware.utf8))
        self._annotated = {}

    async def _tell_name(self, event: FolderEvent) -> None:
        tree, notifications, command = self.changes.tree, self.notifications, self.command
        is_known = event.implied_by in self._known or (command is not None and is_caused_by(command, event))
        if not is_known and notifications.wants_event(event, tree):
            if event.exists and self._uses is None:
                ids = {name: folder.mailbox_id for name, folder in tree.folders.items()}
                self._uses = await shown_uses(self.session, ids)
            await self.session.write([_line(event, tree, self._uses or {}, utf8=self.session.aware.utf8)])
            is_known = True
        if event.old_name is not None:
            if is_known:
                self._known.add(event.name)
            if not (is_known and notifications.wants_status(event.old_name, tree)):
                self.due.append(event.name)


def _line(event: FolderEvent, tree: FolderTree, uses: Mapping[str, str], *, utf8: bool) -> bytes:
    attributes = [] if event.exists else [NONEXISTENT]
    attributes.append("\\HasChildren" if event.name in tree.children else "\\HasNoChildren")
    attributes += [SUBSCRIBED] if event.subscribed else []
    attributes += [uses[event.name]] if event.exists and event.name in uses else []
    return list_line("LIST", attributes, event.name, old_name=event.old_name, utf8=utf8)


async def _tell_counters(
    session: Session, notifications: Notifications, tree: FolderTree, names: Iterable[str], event: Event
) -> None:
    """Tell what is in the folders of these names, as far as the client wants to hear of this event there."""
    condstore = session.aware.condstore
    for position, name in enumerate(names):
        if position % _NAMES_BETWEEN_CHECKPOINTS == 0:
            await trio.lowlevel.checkpoint()
        if (folder := tree.folders.get(name)) is None or not notifications.wants(event, name, tree):
            continue
        if _is_selected(session, folder.mailbox_id):  # RFC 5465 section 3.1: SELECTED alone tells of that one
            notifications.untold = folder.mailbox_id
            continue
        values = status_values(folder)
        items = notifications.items(name, tree, condstore=condstore)
        told = [(item.value, str(values[item])) for item in items]
        await session.write([status_response(name, told, utf8=session.aware.utf8)])


def _is_selected(session: Session, mailbox_id: bytes) -> bool:
    selection = session.selection_or_none
    return selection is not None and selection.folder.mailbox_id == mailbox_id
