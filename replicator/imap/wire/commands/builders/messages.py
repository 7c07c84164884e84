"""Commands on messages of the selected mailbox: FETCH, STORE, COPY, MOVE, EXPUNGE, and their UID forms."""

from __future__ import annotations

from dataclasses import replace

from lark import Token, v_args

from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.fetch_items import FetchItemBuilder
from replicator.imap.wire.commands.builders.text_values import MeaninglessError, modseq_number
from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.sequence_set import MessageSet
from replicator.mail.flags import RECENT


@v_args(inline=True)
class MessageBuilder(FetchItemBuilder):
    """Builds the commands that read, change and remove messages."""

    def expunge(self, uids: MessageSet | None = None) -> c.Command:
        return c.Expunge(uids)

    def fetch(
        self, numbers: MessageSet, items: tuple[FetchItem, ...], modifiers: tuple[int | None, bool] | None
    ) -> c.Command:
        changed_since, vanished = modifiers or (None, False)
        return c.Fetch(numbers, items, changed_since, vanished)

    def fetch_modifiers(self, *given: int | None) -> tuple[int | None, bool]:
        if len(given) != len({type(one) for one in given}):
            raise MeaninglessError("each modifier may stand once")
        return next((one for one in given if one is not None), None), None in given

    def changed_since(self, modseq: Token) -> int:
        return modseq_number(modseq)

    def vanished(self) -> None:
        return None

    def store(self, numbers: MessageSet, unchanged_since: int | None, item: Token, flags: tuple[str, ...]) -> c.Command:
        if any(flag.lower() == RECENT.lower() for flag in flags):  # not a flag that STORE takes, RFC 3501 section 9
            raise MeaninglessError(f"only the server sets {RECENT}")
        action, _, silent = item.upper().partition(".")
        return c.Store(numbers, c.StoreAction(action), flags, bool(silent), unchanged_since)

    def unchanged_since(self, modseq: Token) -> int:
        return modseq_number(modseq)

    def copy(self, numbers: MessageSet, mailbox: str) -> c.Command:
        return c.Copy(numbers, mailbox)

    def move(self, numbers: MessageSet, mailbox: str) -> c.Command:
        return c.Copy(numbers, mailbox, remove=True)

    def by_uid(self, command: c.Fetch | c.Store | c.Copy | c.Search | c.Sort | c.Thread) -> c.Command:
        return replace(command, by_uid=True)
