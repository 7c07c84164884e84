"""Commands on folders: selected, created, listed, counted, and their quotas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from lark import Token, v_args

from protocol.values import UidSet
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.text_values import MeaninglessError, message_number, modseq_number
from replicator.imap.wire.commands.builders.values import ValueBuilder

_SelectParameters: TypeAlias = tuple[bool, c.Resync | None]
"""CONDSTORE, and the argument of QRESYNC."""

_ListReturns: TypeAlias = tuple[Iterable[c.ListReturn], tuple[c.StatusItem, ...]]
"""Return options of LIST, and the items of the one called STATUS."""


@v_args(inline=True)
class FolderBuilder(ValueBuilder):
    """Builds SELECT and its end, CREATE to UNSUBSCRIBE, LIST, LSUB, STATUS and the commands of quotas."""

    def select(self, mailbox: str, parameters: _SelectParameters | None) -> c.Command:
        condstore, resync = parameters or (False, None)
        return c.Select(mailbox, condstore=condstore, resync=resync)

    def examine(self, mailbox: str, parameters: _SelectParameters | None) -> c.Command:
        condstore, resync = parameters or (False, None)
        return c.Select(mailbox, read_only=True, condstore=condstore, resync=resync)

    def select_parameters(self, *given: c.Resync | None) -> _SelectParameters:
        if len(given) != len({type(one) for one in given}):
            raise MeaninglessError("each parameter may stand once")
        return None in given, next((one for one in given if one is not None), None)

    def condstore(self) -> None:
        return None

    def resync(self, uidvalidity: Token, modseq: Token, known: UidSet | None, sample: c.MatchData | None) -> c.Resync:
        number = message_number(uidvalidity)
        assert number is not None
        return c.Resync(number, modseq_number(modseq), known, sample)

    def match_data(self, numbers: UidSet, uids: UidSet) -> c.MatchData:
        if len(numbers) != len(uids):
            raise MeaninglessError(f"there are {len(numbers)} sequence numbers and {len(uids)} UIDs to match")
        return c.MatchData(numbers, uids)

    def close(self) -> c.Command:
        return c.Close()

    def unselect(self) -> c.Command:
        return c.Unselect()

    def create(self, mailbox: str, uses: tuple[str, ...] | None) -> c.Command:
        return c.Create(mailbox, uses or ())

    def delete(self, mailbox: str) -> c.Command:
        return c.Delete(mailbox)

    def rename(self, mailbox: str, new_name: str) -> c.Command:
        return c.Rename(mailbox, new_name)

    def subscribe(self, mailbox: str) -> c.Command:
        return c.Subscribe(mailbox)

    def unsubscribe(self, mailbox: str) -> c.Command:
        return c.Subscribe(mailbox, subscribed=False)

    def list(
        self,
        selection: frozenset[c.ListSelection] | None,
        reference: bytes,
        patterns: bytes | tuple[bytes, ...],
        options: _ListReturns | None,
    ) -> c.Command:
        returned, status = options or ((), ())
        return c.ListMailboxes(
            self.pattern_of(reference),
            tuple(map(self.pattern_of, [patterns] if isinstance(patterns, bytes) else patterns)),
            selection or frozenset(),
            frozenset(returned),
            status,
            extended=selection is not None or options is not None or not isinstance(patterns, bytes),
        )

    def list_selection(self, *options: Token | None) -> frozenset[c.ListSelection]:
        selection = frozenset(c.ListSelection(option.upper()) for option in options if option is not None)
        if c.ListSelection.RECURSIVEMATCH in selection and not selection & c.LIST_CRITERIA:  # RFC 5258 section 3.1
            raise MeaninglessError("RECURSIVEMATCH needs another selection option beside it: SUBSCRIBED or SPECIAL-USE")
        return selection

    def list_patterns(self, *patterns: bytes) -> tuple[bytes, ...]:
        return patterns

    def list_return(self, *options: c.ListReturn | tuple[c.StatusItem, ...] | None) -> _ListReturns:
        status = [items for items in options if isinstance(items, tuple)]
        return [one for one in options if isinstance(one, c.ListReturn)], status[-1] if status else ()

    def return_option(self, name: Token) -> c.ListReturn:
        return c.ListReturn(name.upper())

    def lsub(self, reference: bytes, pattern: bytes) -> c.Command:
        return c.ListSubscriptions(self.pattern_of(reference), self.pattern_of(pattern))

    def list_mailbox(self, pattern: bytes) -> bytes:
        return pattern

    def status(self, mailbox: str, items: tuple[c.StatusItem, ...]) -> c.Command:
        return c.Status(mailbox, items)

    def status_items(self, *items: Token) -> tuple[c.StatusItem, ...]:
        return tuple(c.StatusItem(item.upper()) for item in items)

    def get_quota(self, root: bytes) -> c.Command:
        return c.GetQuota(root)

    def get_quota_root(self, mailbox: str) -> c.Command:
        return c.GetQuotaRoot(mailbox)

    def set_quota(self, root: bytes, *_limits: None) -> c.Command:
        return c.SetQuota(root)

    def quota_limit(self, _resource: Token, _limit: Token) -> None:
        return None
