"""NOTIFY (RFC 5465 section 8)."""

from __future__ import annotations

from lark import Token, v_args

from replicator.imap.wire import event_groups
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.fetch_items import FetchItemBuilder, Items, items_after
from replicator.imap.wire.commands.builders.text_values import MeaninglessError
from replicator.imap.wire.event_groups import Event, EventGroup, MailboxFilter


@v_args(inline=True)
class NotifyBuilder(FetchItemBuilder):
    """Builds NOTIFY, its groups of mailboxes and their events."""

    def notify_none(self) -> c.Command:
        return c.Notify()

    def notify_set(self, status: str | None, *groups: EventGroup) -> c.Command:
        if why := event_groups.problem(groups):
            raise MeaninglessError(why)
        return c.Notify(groups, status=status is not None)

    def status_indicator(self) -> str:
        return "STATUS"

    def event_group(
        self, mailboxes: tuple[MailboxFilter, tuple[str, ...]], events: tuple[tuple[str, ...], Items | None]
    ) -> EventGroup:
        return EventGroup(*mailboxes, *events)

    def event_mailboxes(self, name: Token, *mailboxes: str) -> tuple[MailboxFilter, tuple[str, ...]]:
        return MailboxFilter(name.upper()), mailboxes

    def events(self, *given: str | Items) -> tuple[tuple[str, ...], Items | None]:
        names = tuple(one for one in given if isinstance(one, str))
        return names, items_after(Event.MESSAGE_NEW.value.upper(), given)

    def event(self, name: Token) -> str:
        return name.upper()
