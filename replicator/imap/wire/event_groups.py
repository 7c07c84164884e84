"""Arguments of NOTIFY (RFC 5465 section 8): which events in which mailboxes a client wants to hear of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from replicator.imap.wire.fetch_items import FetchItem


class MailboxFilter(Enum):
    """Kinds of mailboxes (RFC 5465 section 6)."""

    SELECTED = "SELECTED"
    SELECTED_DELAYED = "SELECTED-DELAYED"
    INBOXES = "INBOXES"
    PERSONAL = "PERSONAL"
    SUBSCRIBED = "SUBSCRIBED"
    SUBTREE = "SUBTREE"
    MAILBOXES = "MAILBOXES"


OF_SELECTED = frozenset({MailboxFilter.SELECTED, MailboxFilter.SELECTED_DELAYED})


class Event(Enum):
    """The events that this server supports, with the names that BADEVENT lists (RFC 5465 section 5)."""

    MESSAGE_NEW = "MessageNew"
    MESSAGE_EXPUNGE = "MessageExpunge"
    FLAG_CHANGE = "FlagChange"
    MAILBOX_NAME = "MailboxName"
    SUBSCRIPTION_CHANGE = "SubscriptionChange"
    MAILBOX_METADATA_CHANGE = "MailboxMetadataChange"
    SERVER_METADATA_CHANGE = "ServerMetadataChange"


_BY_NAME = {event.value.upper(): event for event in Event}
_ANNOTATION_CHANGE = "ANNOTATIONCHANGE"  # known to the rules of section 5, but not supported
_COME_AND_GO = {Event.MESSAGE_NEW.value.upper(), Event.MESSAGE_EXPUNGE.value.upper()}
_OF_MESSAGES = {*_COME_AND_GO, Event.FLAG_CHANGE.value.upper(), _ANNOTATION_CHANGE}


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events in some mailboxes. `names`: of SUBTREE and MAILBOXES; `events` are in capitals, known or not.

    `items`: what the client wants to be sent of each new message; None if it has named no items.
    """

    mailboxes: MailboxFilter
    names: tuple[str, ...]
    events: tuple[str, ...]
    items: tuple[FetchItem, ...] | None = None

    @property
    def supported(self) -> frozenset[Event]:
        """The events that this server supports."""
        return frozenset(_BY_NAME[name] for name in self.events if name in _BY_NAME)

    @property
    def has_unsupported(self) -> bool:
        """True if there are others, so that the answer is NO with BADEVENT (RFC 5465 section 3.1)."""
        return not _BY_NAME.keys() >= set(self.events)


def problem(groups: Iterable[EventGroup]) -> str | None:
    """Return why these groups cannot stand in one NOTIFY, or None if they can (RFC 5465 sections 5, 6.1 and 8)."""
    selected = [group for group in groups if group.mailboxes in OF_SELECTED]
    if len(selected) > 1:
        return "SELECTED or SELECTED-DELAYED may stand once"
    for group in groups:
        events, of_selected = set(group.events), group.mailboxes in OF_SELECTED
        if events & _OF_MESSAGES and not events >= _COME_AND_GO:
            return "MessageNew and MessageExpunge stand together, and FlagChange and AnnotationChange with both of them"
        if of_selected and not events <= _OF_MESSAGES:
            return f"{group.mailboxes.value} takes events of messages alone"
        if group.items is not None and not of_selected:
            return "MessageNew has FETCH items with SELECTED and SELECTED-DELAYED alone"
    return None
