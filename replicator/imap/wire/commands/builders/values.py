"""Values that commands of several groups have: strings, mailbox names, sets of numbers, flags."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator

from lark import Token, Transformer, v_args

from protocol.values import UidSet
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.text_values import MeaninglessError, message_range, octets
from replicator.imap.wire.mailbox_names import MailboxNameError, decode_pattern
from replicator.imap.wire.sequence_set import SavedResult, SequenceSet
from replicator.mail.mailstore import SEPARATOR, canonical_name

_OF_NO_NAME = 2 * SEPARATOR  # no folder's name has an empty level

_ESCAPED = re.compile(rb'\\(["\\])')


@v_args(inline=True)
class ValueBuilder(Transformer[Token, c.Tagged]):
    """Builds values of one text at a time in each thread. Call `begin` before each."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def begin(self, literals: Iterable[bytes] = (), *, utf8: bool = False) -> None:
        """Prepare for the next text of this thread, with its literals in order. `utf8`: all names are UTF-8."""
        self._of_thread.utf8 = utf8
        self._of_thread.literals = iter(literals)
        self._of_thread.bad_name = None

    @property
    def literals(self) -> Iterator[bytes]:
        """The literals that were not used yet, of the text that this thread parses."""
        left: Iterator[bytes] = self._of_thread.literals
        return left

    @property
    def bad_name(self) -> str | None:
        """A statement of what is wrong with a mailbox name of the text, or None."""
        wrong: str | None = self._of_thread.bad_name
        return wrong

    def mailbox(self, encoded: bytes) -> str:
        """Decode a name. No folder has a name that makes no sense, so its command is valid, but fails."""
        try:
            return canonical_name(decode_pattern(encoded, utf8=self._of_thread.utf8))
        except MailboxNameError as error:
            self._of_thread.bad_name = str(error)
            return ""

    def pattern_of(self, encoded: bytes) -> str:
        """Decode a pattern of LIST, or its beginning. One that makes no sense matches nothing (RFC 5258 section 3)."""
        try:
            return decode_pattern(encoded, utf8=self._of_thread.utf8)
        except MailboxNameError:
            return _OF_NO_NAME

    def atom(self, text: Token) -> bytes:
        return octets(text)

    def quoted(self, text: Token) -> bytes:
        quoted = octets(text)
        try:
            quoted.decode("utf-8")
        except UnicodeDecodeError as error:  # RFC 6855 section 3, RFC 9051 section 9
            raise MeaninglessError("a quoted string must be UTF-8") from error
        return _ESCAPED.sub(rb"\1", quoted[1:-1])

    def literal(self, _marker: Token) -> bytes:
        return next(self.literals)

    def literal8(self, _marker: Token) -> bytes:
        return next(self.literals)

    def nil(self) -> None:
        return None

    def sequence_set(self, text: Token) -> SequenceSet:
        return SequenceSet(tuple(message_range(item) for item in text.split(",")))

    def saved_result(self) -> SavedResult:
        return SavedResult()

    def uid_set(self, text: Token) -> UidSet:
        if "*" in text:
            raise MeaninglessError("what a client knows already has no *")
        ends = [message_range(item) for item in text.split(",")]
        return SequenceSet(tuple(ends)).resolve(0)

    def flags(self, *flags: Token) -> tuple[str, ...]:
        return tuple(str(flag) for flag in flags)

    def flag_list(self, *flags: Token | None) -> tuple[str, ...]:
        return tuple(str(flag) for flag in flags if flag is not None)


def joined(items: tuple[object, ...]) -> tuple[object, ...]:
    """Return the items of a rule that recurs on its left: one item, or those so far and one more."""
    before, *more = items
    return (*before, *more) if isinstance(before, tuple) else items
