"""Wishes of a client to hear of changes, by its last NOTIFY (RFC 5465), and how it is told. Pure, but for the watch.

Where several groups of one NOTIFY name a mailbox, all their events count (section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.event_groups import OF_SELECTED, Event, EventGroup, MailboxFilter
from replicator.imap.wire.fetch_items import FetchItem
from replicator.mail.folder_watch import FolderSubscription
from replicator.mail.mailstore import INBOX, SEPARATOR
from replicator.mail.watched_folders import ACCOUNT, AnnotationEvent, FolderEvent, FolderTree, WatchedFolder, parents


@dataclass(frozen=True, slots=True)
class Wishes:
    """Wishes of a client for the selected mailbox; these are those of one that has never sent NOTIFY.

    `at_once`: between commands, too; expunged messages only if not `delayed` (RFC 5465 section 6.1). `items`: what is
    sent of each new message.
    """

    arrivals: bool = True
    flags: bool = True
    at_once: bool = False
    delayed: bool = False
    items: tuple[FetchItem, ...] = ()


class _Mailboxes:
    """The mailboxes of which a client wants to hear some event (RFC 5465 sections 6.2 to 6.6)."""

    def __init__(self, groups: Iterable[EventGroup]) -> None:
        self._kinds = {group.mailboxes for group in groups}
        named = [(group.mailboxes, name) for group in groups for name in group.names]
        self._trees = frozenset(name for kind, name in named if kind is MailboxFilter.SUBTREE)
        self._names = frozenset(name for kind, name in named if kind is MailboxFilter.MAILBOXES)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def has(self, name: str, *, subscribed: bool) -> bool:
        """Return True if the client wants to hear of this mailbox."""
        return (
            MailboxFilter.PERSONAL in self._kinds
            or (MailboxFilter.INBOXES in self._kinds and name == INBOX)  # mail is delivered nowhere else
            or (MailboxFilter.SUBSCRIBED in self._kinds and subscribed)
            or name in self._names
            or (bool(self._trees) and not self._trees.isdisjoint((name, *parents(name))))
        )


class Notifications:
    """Wishes of one client. `watch` is None if it wants to hear of the selected mailbox at most. `close` ends it."""

    def __init__(self, groups: Iterable[EventGroup] = (), watch: FolderSubscription | None = None) -> None:
        groups = [*groups]
        self.wishes = _wishes([group for group in groups if group.mailboxes in OF_SELECTED])
        others = [group for group in groups if group.mailboxes not in OF_SELECTED]
        self._wanted = {event: _Mailboxes([one for one in others if event in one.supported]) for event in Event}
        self.watch = watch
        self.untold: bytes | None = None
        """The selected mailbox, if it has changed: its STATUS is due once it is not selected any more."""

    @property
    def needs_watch(self) -> bool:
        """True if the client wants to hear of other mailboxes than the selected one."""
        return any(self._wanted.values())

    def close(self) -> None:
        """End the watch."""
        if self.watch is not None:
            self.watch.close()

    def wants(self, event: Event, name: str, tree: FolderTree) -> bool:
        """Return True if the client wants to hear of this event there."""
        return self._wanted[event].has(name, subscribed=name in tree.subscriptions)

    def wants_status(self, name: str, tree: FolderTree) -> bool:
        """Return True if the client wants to hear of events of messages there."""
        return self.wants(Event.MESSAGE_NEW, name, tree)

    def wants_event(self, event: FolderEvent, tree: FolderTree) -> bool:
        """Return True if the client wants to hear of a change of a name, or of a subscription."""
        if event.of_subscription:  # it is subscribed now, or was before
            return self._wanted[Event.SUBSCRIPTION_CHANGE].has(event.name, subscribed=True)
        names = (event.name,) if event.old_name is None else (event.name, event.old_name)
        return any(self.wants(Event.MAILBOX_NAME, name, tree) for name in names)

    def wants_annotation(self, event: AnnotationEvent, tree: FolderTree) -> bool:
        """Return True if the client wants to hear of a change of an annotation (RFC 5465 sections 5.6 and 5.7).

        Those of the account belong to no mailbox, so any group may ask for them.
        """
        if event.name == ACCOUNT:
            return bool(self._wanted[Event.SERVER_METADATA_CHANGE])
        return self.wants(Event.MAILBOX_METADATA_CHANGE, event.name, tree)

    def items(self, name: str, tree: FolderTree, *, condstore: bool) -> Iterator[c.StatusItem]:
        """Yield the items of a STATUS about this mailbox (RFC 5465 sections 3.1 and 5.1 to 5.3)."""
        of_flags = self.wants(Event.FLAG_CHANGE, name, tree)
        yield from (c.StatusItem.MESSAGES, c.StatusItem.UIDNEXT, c.StatusItem.UIDVALIDITY)
        if of_flags:
            yield c.StatusItem.UNSEEN
        if of_flags or condstore:
            yield c.StatusItem.HIGHESTMODSEQ


def _wishes(selected: list[EventGroup]) -> Wishes:
    if not selected or Event.MESSAGE_NEW not in selected[0].supported:
        return Wishes(arrivals=False, flags=False)
    (group,) = selected
    delayed = group.mailboxes is MailboxFilter.SELECTED_DELAYED
    flags = Event.FLAG_CHANGE in group.supported
    return Wishes(flags=flags, at_once=True, delayed=delayed, items=group.items or ())


def status_values(folder: WatchedFolder) -> dict[c.StatusItem, int]:
    """Return the values of the items of a STATUS that NOTIFY sends."""
    return {
        c.StatusItem.MESSAGES: folder.messages,
        c.StatusItem.UIDNEXT: folder.uidnext,
        c.StatusItem.UIDVALIDITY: folder.uidvalidity,
        c.StatusItem.UNSEEN: folder.unseen,
        c.StatusItem.HIGHESTMODSEQ: max(1, folder.highestmodseq),  # 0 would mean that there is none (RFC 7162, 3.1.7)
    }


def is_caused_by(command: c.Command, event: FolderEvent) -> bool:
    """Return True if this command of the client has had that effect, so that it is no news (RFC 5465 section 5)."""
    match command:
        case c.Create(name):
            name = name.removesuffix(SEPARATOR)
            return event.exists and not event.of_subscription and event.name in {name, *parents(name)}
        case c.Delete(name):
            return event.name == name and not event.exists and not event.of_subscription
        case c.Rename(old, new):
            new = new.removesuffix(SEPARATOR)
            is_old = event.name == old and not event.exists
            return not event.of_subscription and (is_old or (event.exists and event.name in {new, *parents(new)}))
        case c.Subscribe(name, subscribed):
            return event.of_subscription and (event.name, event.subscribed) == (name, subscribed)
        case _:
            return False
