"""Parser from frames to commands, by the grammar `imap.lark`; it explains errors to the client."""

from __future__ import annotations

import re

from lark import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

from protocol.framing import Frame
from protocol.grammar_tables import parser_of
from replicator.imap.wire.commands.builders.text_values import MeaninglessError
from replicator.imap.wire.commands.command_builder import CommandBuilder
from replicator.imap.wire.commands.command_types import Tagged
from replicator.imap.wire.fetch_items import BodySection

_TAG = re.compile(rb"[!#$&',\-./0-9:;<=>?@A-Z\[\]^_`a-z|}~]{1,64}(?= |\Z)")  # TAG of protocol/lexical.lark

_WORDS = {
    "$END": "the end of the command",
    "<END-OF-FILE>": "the end of the command",
    "ASTRING_ATOM": "an atom",
    "ATOM": "an atom",
    "ATTRIBUTE": "the name of a FETCH item",
    "BINARY_SECTION": "the name of a FETCH item",
    "BINARY_SIZE": "the name of a FETCH item",
    "BODY_SECTION": "BODY[",
    "DATE": "a date",
    "DATE_TIME": "a date and time",
    "DOLLAR": "a sequence set",
    "DOT": "a full stop",
    "ENTRY_NAME": 'the name of a flag, such as "/flags/\\\\draft",',
    "ENTRY_TYPE": "all or priv or shared",
    "FETCH_MACRO": "a macro",
    "FLAG": "a flag",
    "INITIAL_RESPONSE": "base64",
    "LAZY_PREVIEW": "the name of a FETCH item",
    "LESSTHAN": "<",
    "LIST_ATOM": "a pattern",
    "LIST_RETURN": "a return option",
    "LIST_SELECTION": "a selection option",
    "LITERAL": "a literal",
    "LITERAL8": "a literal",
    "LPAR": "(",
    "MAILBOX_FILTER": "a kind of mailboxes",
    "METADATA_DEPTH": "0 or 1 or infinity",
    "NAMING_FILTER": "a kind of mailboxes",
    "NUMBER": "a number",
    "NZ_NUMBER": "a number above 0",
    "PART": "a part number",
    "QUOTED": "a quoted string",
    "COLON": ":",
    "PARTIAL": "a result option",
    "RETURN_OPTION": "a result option",
    "RPAR": ")",
    "RSQB": "]",
    "SECTION_FIELDS": "HEADER.FIELDS",
    "SECTION_MIME": "MIME",
    "SECTION_TEXT": "HEADER or TEXT",
    "SEQUENCE_SET": "a sequence set",
    "SORT_KEY": "a sort key",
    "SORT_REVERSE": "REVERSE",
    "STATUS_ITEM": "the name of a STATUS item",
    "STORE_ITEM": "FLAGS",
    "TAG": "a tag",
    "THREAD_ALGORITHM": "the name of a threading algorithm",
    "_SP": "a space",
}  # other terminals are keywords, called by their own names

_ALTERNATIVES = {"CAPABILITY": "the name of a command", "SEARCH_PLAIN": "a search key"}
"""For positions where many terminals are allowed: one of these terminals, and a common name for all of them."""

_NUMBERS = {"NUMBER", "NZ_NUMBER", "SEQUENCE_SET", "PART"}

_QUOTABLE = {"ASTRING_ATOM", "LIST_ATOM"}
"""Tokens in place of which a quoted string or a literal may stand."""

_OUTSIDE_ASCII = (
    "; characters outside ASCII need a literal, or quotes if you have sent ENABLE UTF8=ACCEPT or ENABLE IMAP4rev2"
)

_VERB_SHOWN = 32  # octets of an unknown command that the answer repeats: no command has so long a name


class CommandSyntaxError(Exception):
    """The text is no valid command. `tag` is the command's, if readable; the message fits into a BAD response."""

    def __init__(self, message: str, tag: str | None) -> None:
        super().__init__(message)
        self.tag = tag


class CommandParser:
    """Parses one frame at a time in each thread. The constructor loads the grammar: share it between connections."""

    def __init__(self) -> None:
        self._lark = parser_of(__package__, "imap.lark", ["tagged", "section"], CommandBuilder())
        builder = self._lark.options.transformer
        assert isinstance(builder, CommandBuilder)
        self._begin = builder.begin  # once: the decorator of its class makes each look-up of a method expensive
        after_tag = self._lark.parse_interactive("a ", start="tagged")
        after_tag.exhaust_lexer()
        can_follow = after_tag.choices()  # type: ignore[no-untyped-call]
        self._verbs = frozenset(name for name in can_follow if name.isupper())  # the others are rules

    def parse(self, frame: Frame, *, utf8: bool = False) -> Tagged:
        """Return the command of a frame. `utf8`: all mailbox names are UTF-8. Raises CommandSyntaxError."""
        self._begin(frame.literals, utf8=utf8)
        try:
            command = self._lark.parse(frame.text.decode("latin-1"), start="tagged")
        except (UnexpectedCharacters, UnexpectedEOF, UnexpectedToken) as error:
            raise CommandSyntaxError(self._explain(error, frame.text), tag_of(frame.text)) from error
        except MeaninglessError as error:
            raise CommandSyntaxError(str(error), tag_of(frame.text)) from error
        finally:
            self._begin()
        assert isinstance(command, Tagged)  # guaranteed by the grammar's start rule
        return command

    def section(self, text: str) -> BodySection:
        """Return the section of this text, which is what FETCH has in `BODY[text]`. Raises CommandSyntaxError."""
        self._begin()
        try:
            section = self._lark.parse(text, start="section")
        except (UnexpectedCharacters, UnexpectedEOF, UnexpectedToken, MeaninglessError) as error:
            raise CommandSyntaxError(f"{text!r} is not a section of a message", None) from error
        assert isinstance(section, BodySection)
        return section

    def _explain(self, error: UnexpectedCharacters | UnexpectedEOF | UnexpectedToken, text: bytes) -> str:
        verb = verb_of(text)
        if verb and tag_of(text) is not None and verb.decode("latin-1") not in self._verbs:
            return f"Unknown command {_printable(verb)}"
        return _explain(error, text)


def tag_of(text: bytes) -> str | None:
    """Return the tag at the beginning of a command, even if the rest is wrong."""
    tag = _TAG.match(text)
    return tag[0].decode("ascii") if tag else None


def verb_of(text: bytes) -> bytes:
    """Return the word after the tag, in capitals: the command's name, if it is one."""
    words = text.split(b" ", 2)
    return words[1].upper() if len(words) > 1 else b""


def _printable(verb: bytes) -> str:
    shown = "".join(chr(octet) if 0x20 < octet < 0x7F else "?" for octet in verb[:_VERB_SHOWN])
    return shown if len(verb) <= _VERB_SHOWN else f"{shown}..."


def _explain(error: UnexpectedCharacters | UnexpectedEOF | UnexpectedToken, text: bytes) -> str:
    where = f"at column {error.column}"
    if digits := _digits_before(error, text):
        return f"The number at column {error.column - digits} is too large"
    if isinstance(error, UnexpectedCharacters):
        expected = set(error.allowed or ())
    else:
        expected = set(error.expected)
        if isinstance(error, UnexpectedEOF) or error.token.type == "$END":
            where = "at the end"
            if expected == {"_SP"}:  # without the space, the argument after it is missing too
                return f"Expected {'an argument' if b' ' in text else 'the name of a command'} {where}"
    if _is_outside_ascii(error, text, expected):
        where += _OUTSIDE_ASCII
    if "QUOTED" in expected and _is_open_quote(error, text):
        return f"The quoted string {where} has no end"
    for terminal, words in _ALTERNATIVES.items():
        if terminal in expected:
            return f"Expected {words} {where}"
    return f"Expected {' or '.join(sorted({_WORDS.get(name, name) for name in expected}))} {where}"


def _is_open_quote(error: UnexpectedCharacters | UnexpectedEOF | UnexpectedToken, text: bytes) -> bool:
    """Return True if the error is at a quotation mark, and none ends the string."""
    if isinstance(error, UnexpectedEOF) or error.pos_in_stream is None:
        return False
    return re.match(rb'"(?:[^"\\]|\\.)*\Z', text[error.pos_in_stream :], re.DOTALL) is not None


def _is_outside_ascii(
    error: UnexpectedCharacters | UnexpectedEOF | UnexpectedToken, text: bytes, expected: set[str]
) -> bool:
    """Return True if the error is at an octet above 127 of what could be a quoted string or a literal."""
    if isinstance(error, UnexpectedEOF) or error.pos_in_stream is None or text[error.pos_in_stream :][:1] < b"\x80":
        return False
    before = error.token_history[-1] if error.token_history else None
    is_within = before is not None and before.type in _QUOTABLE and before.end_pos == error.pos_in_stream
    return is_within or "QUOTED" in expected


def _digits_before(error: UnexpectedCharacters | UnexpectedEOF | UnexpectedToken, text: bytes) -> int:
    """Return the digits of a number that has more than its terminal may have, up to the error; else 0."""
    if isinstance(error, UnexpectedEOF) or not error.token_history or error.pos_in_stream is None:
        return 0
    before, position = error.token_history[-1], error.pos_in_stream
    if before is None or before.type not in _NUMBERS or before.end_pos != position:
        return 0
    begun = text[:position]
    return len(begun) - len(begun.rstrip(b"0123456789")) if text[position : position + 1].isdigit() else 0
