"""Parse frames into commands and replies: load `protocol.lark` and give each of its rules a meaning.

The grammar is loaded once and never changes; its transformer keeps nothing between two parses. A value that the grammar
admits but that is invalid (a number of 64 bits, ranges out of order) is refused here, with the same limits as in
`formatter`, so that any node can parse what another node formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from protocol import commands as c
from protocol.checksum import CHECKED, check_of
from protocol.framing import Frame, FrameLimits
from protocol.grammar_tables import parser_of
from protocol.units import KIB, MIB
from protocol.values import UID_MAX, Dot, UidSet

WIRE_LIMITS = FrameLimits(
    text=512 * KIB,  # a COPY of `LIST_MAX` messages, 33 bytes for each GUID, and its reply, with a dot for each
    literal=64 * MIB,  # the largest message that is not in parts
    literals_total=65 * MIB,  # a message and the names beside it
    literals=64,  # of a SAVE-ALL with as many messages; no other command has more than 4
)
NUMBER_MAX = 2**63 - 1
"""Largest number: SQLite, MessagePack and Parquet hold it in a signed 64-bit integer."""
NUMBER_32_MAX = UID_MAX
LIST_MAX = 10_000
"""Members of one list, each at least one object: above the number of nodes, runs, flags and mails in most mailboxes."""
TEXT_MAX = 64 * KIB
"""UTF-8 bytes of a user, a name or a text for people: the doors accept less, and such values are kept in memory."""
UID_SET_MAX = MIB
"""Characters of a set of UIDs: enough for a hundred thousand separate ranges, each of which costs an object."""
EXPECTED_MAX = 8
"""Number of alternatives that a syntax error lists."""

_literals: ContextVar[Iterator[bytes]] = ContextVar("literals")
"""Literals of the frame that is being parsed, in the order of their markers. Set only during `parse`."""

_ESCAPED = re.compile(r'\\(["\\])')


class ProtocolError(Exception):
    """The peer's bytes violate the protocol or exceed a limit.

    The message is one line that names the fault and its place.
    """


class ChangedError(ProtocolError):
    """The frame does not match its check: the connection has changed it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A command with its tag. `tag` is None if no reply is wanted."""

    tag: str | None
    command: c.Command


@dataclass(frozen=True, slots=True)
class Response:
    """The reply to the request that had this tag."""

    tag: str
    reply: c.Reply


class _BadValueError(Exception):
    """The grammar admits the value, but it is invalid."""


def parse(frame: Frame) -> Request | Response:
    """Parse a frame, which is one command or reply.

    Raises ProtocolError, and ChangedError if the frame does not match its check.
    """
    try:
        text = frame.text.decode("ascii")
    except UnicodeDecodeError as error:
        raise _error_at(frame.text.decode("latin-1"), error.start, "a byte above 127 outside a literal") from None
    reset = _literals.set(iter(frame.literals))
    try:
        item = _grammar().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    except _BadValueError as error:
        raise ProtocolError(f"in {_verb(text)!a}: {error}") from None
    finally:
        _literals.reset(reset)
    assert isinstance(item, Request | Response), item
    if isinstance(item.command if isinstance(item, Request) else item.reply, CHECKED):
        said, _, check = frame.text.rpartition(b" CHECK ")
        if check_of(said, frame.literals).hex().encode() != check:
            raise ChangedError(f"{_verb(text)!a} has a wrong checksum: the connection changes what it carries")
    return item


def load() -> None:
    """Load the grammar, so that the first frame is parsed as fast as all others."""
    _grammar()


@cache
def terminal(name: str) -> re.Pattern[str]:
    """Return a terminal of the grammar as a regular expression, with which formatters check values."""
    return re.compile(_grammar().get_terminal(name).pattern.to_regexp())


@cache
def _grammar() -> Lark:
    return parser_of("protocol", "protocol.lark", ["item"], _Meaning())


def _error_at(text: str, position: int | None, what: str) -> ProtocolError:
    """Return an error that quotes the command's verb and the text at `position`: bounded, printable, one line."""
    start = position or 0
    return ProtocolError(f"in {_verb(text)!a}, at character {start + 1}, {text[start : start + 24]!a}: {what}")


def _verb(text: str) -> str:
    """Return the tag and the verb, or the first two words in their place."""
    return " ".join(text[:64].split()[:2])


def _syntax_error(text: str, error: UnexpectedInput) -> ProtocolError:
    expected: set[str] = set()
    if isinstance(error, UnexpectedCharacters):
        expected = set(error.allowed or ())
    elif isinstance(error, UnexpectedToken):
        expected = set(error.expected)
    at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    words = [{"_SP": "SP", "$END": "the end"}.get(name, name) for name in sorted(expected)]
    listed = " or ".join(words[:EXPECTED_MAX]) + " …" * (len(words) > EXPECTED_MAX)
    return _error_at(text, len(text) if at_end else error.pos_in_stream, f"expected {listed}")


def _checked_number(token: str, maximum: int) -> int:
    number = int(token)
    if abs(number) > maximum:
        raise _BadValueError(f"the number {number} is above {maximum}")
    return number


def _checked_text(value: str | bytes) -> str:
    if len(value) > TEXT_MAX:
        raise _BadValueError(f"a text of {len(value)} bytes; the limit is {TEXT_MAX}")
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _BadValueError(f"a text is not UTF-8: {value[:24]!a}") from None


def _uid_set_of_literal(literal: bytes) -> UidSet:
    if len(literal) > UID_SET_MAX:
        raise _BadValueError(f"a set of UIDs of {len(literal)} bytes; the limit is {UID_SET_MAX}")
    text = literal.decode("ascii", "replace")
    if not terminal("UID_SET").fullmatch(text):
        raise _BadValueError(f"a literal is not a set of UIDs: {literal[:24]!a}")
    return _checked_uid_set(text)


def _checked_uid_set(text: str) -> UidSet:
    ranges = []
    last = -1
    for part in text.split(","):
        low_text, colon, high_text = part.partition(":")
        low = int(low_text)
        high = int(high_text) if colon else low
        if low <= last + 1 or high > UID_MAX or (colon and high <= low):
            raise _BadValueError(f"the UID range {part} is out of order, touches the one before it or is above 32 bits")
        ranges.append((low, high))
        last = high
    return UidSet(tuple(ranges))


@v_args(inline=True)
class _Meaning(Transformer[Token, object]):
    """The meaning of each terminal and rule. Stateless: all parses share it.

    A rule whose fields stand in the order of its dataclass is simply that dataclass.
    """

    def _nothing(self, _token: Token) -> None:
        return None

    def _unquoted(self, token: Token) -> str:
        return _ESCAPED.sub(r"\1", token[1:-1])

    def _next_literal(self, _token: Token) -> bytes:
        return next(_literals.get())

    def _number(self, token: Token) -> int:
        return _checked_number(token, NUMBER_MAX)

    def _number_32(self, token: Token) -> int:
        return _checked_number(token, NUMBER_32_MAX)

    def _dot(self, token: Token) -> Dot:
        origin, _, seq = token.partition(":")
        return Dot(origin, _checked_number(seq, NUMBER_MAX))

    def _range(self, token: Token) -> str:
        return token.strip('"')

    def _ranges(self, token: Token) -> UidSet:
        return _checked_uid_set(token)

    TAG = ATOM = ASTRING_ATOM = FLAG = SID = ORIGIN = str
    ID = CONTENT_HASH = DIGEST = bytes.fromhex
    STAR = NIL = _nothing
    QUOTED, LITERAL, DOT, UID_SET = _unquoted, _next_literal, _dot, _ranges
    NUMBER = DATE_MS = _number
    NUMBER_32 = UID_NUMBER = _number_32
    RANGE = _range

    def list_of(self, *members: object) -> tuple[object, ...]:
        if len(members) > LIST_MAX:
            raise _BadValueError(f"a list of {len(members)} members; the limit is {LIST_MAX}")
        return members

    def string(self, value: str | bytes) -> str:
        return _checked_text(value)

    def uid_set(self, value: UidSet | bytes | None) -> UidSet:
        return _uid_set_of_literal(value) if isinstance(value, bytes) else value or UidSet()

    def digest(self, value: bytes | None) -> bytes:
        return value or b""

    def neighbour(self, sid: str, round_trip_us: int) -> tuple[str, int]:
        return sid, round_trip_us

    def mbox(self, *fields: Any) -> c.Mbox:
        return c.Mbox(*fields[:-2], *(option is not None for option in fields[-2:]))

    def entry_header(  # noqa: PLR0917 - as many as the rule has, in its order
        self,
        dot: Dot,
        predecessors: tuple[Dot, ...],
        time: int,
        modseq: int,
        digest: bytes,
        change: int,
        changes: int,
        histories: tuple[bytes, ...] | None,
        dated: Token | None,
    ) -> c.EntryHeader:
        return c.EntryHeader(
            dot, predecessors, time, modseq, digest, change, changes, histories, dated=dated is not None
        )

    def save(  # noqa: PLR0917 - the same
        self,
        mailboxes: tuple[int, ...],
        received_ms: int,
        guid: bytes,
        flags: tuple[str, ...],
        uid: int | None,
        entry: c.EntryHeader | None,
        message: c.Text | c.Parts,
    ) -> c.Save:
        return c.Save(mailboxes, received_ms, guid, flags, message, uid, entry)

    def new_message(
        self, received_ms: int, guid: bytes, flags: tuple[str, ...], uid: int | None, message: c.Text
    ) -> c.NewMessage:
        return c.NewMessage(received_ms, guid, flags, message, uid)

    def save_all(self, mailbox: int, *messages: c.NewMessage) -> c.SaveAll:
        return c.SaveAll(mailbox, messages)

    def copy(  # noqa: PLR0917 - the same
        self,
        source: int,
        destination: int,
        source_uids: UidSet,
        guids: tuple[bytes, ...],
        received_ms: int,
        flags: tuple[str, ...],
        uid: int | None,
        content_hash: bytes | None,
        size: int | None,
        entry: c.EntryHeader | None,
        once: Token | None,
    ) -> c.Copy:
        return c.Copy(
            source, destination, source_uids, guids, received_ms, flags, uid, content_hash, size, entry,
            once=once is not None,
        )  # fmt: skip

    def subscribe(self, user: str, name: str, entry: c.EntryHeader | None) -> c.Subscribe:
        return c.Subscribe(user, name, subscribed=True, entry=entry)

    def unsubscribe(self, user: str, name: str, entry: c.EntryHeader | None) -> c.Subscribe:
        return c.Subscribe(user, name, subscribed=False, entry=entry)

    def annotate(self, user: str, mailbox_id: bytes | None, entry: c.EntryHeader | None, values: bytes) -> c.Annotate:
        return c.Annotate(user, mailbox_id or b"", values, entry)

    def master_move(self, mailbox: int, term: int, destination: str, now: Token | None) -> c.MasterMove:
        return c.MasterMove(mailbox, term, destination, now=now is not None)

    def rows(self, snapshot: int, destination: str | None, keys: bytes) -> c.Rows:
        return c.Rows(snapshot, keys, destination)

    def sync_mailbox(self, mailbox: int, anew: Token | None, destination: str | None) -> c.SyncMailbox:
        return c.SyncMailbox(mailbox, destination, anew=anew is not None)

    def log(self, context: tuple[Dot, ...], inline: Token | None) -> c.Log:
        return c.Log(context, inline=inline is not None)

    def ack(self, dot: Dot, sid: str | None) -> c.Ack:
        return c.Ack(dot.origin, dot.seq, sid)

    request, response = Request, Response
    hello, ping, links, advert = c.Hello, c.Ping, c.Links, c.LinkAdvert
    root, dropped, who = c.Root, c.Dropped, c.Who
    offer, expunge, store, merge, remote = c.Offer, c.Expunge, c.Store, c.Merge, c.Remote
    raised, renumber, create, rename, delete = c.Raise, c.Renumber, c.Create, c.Rename, c.Delete
    sync_node, sync_end, ranges = c.SyncNode, c.SyncEnd, c.Ranges
    fetch_uid, fetch_guid, fetch_hash = c.FetchUid, c.FetchGuid, c.FetchHash
    fetch_bodies, fetch_checkpoints, fetch_part = c.FetchBodies, c.FetchCheckpoints, c.FetchPart
    entries, settled, text, parts = c.Entries, c.Settled, c.Text, c.Parts
    done, master, moved, saved, stored = c.Done, c.Master, c.Moved, c.Saved, c.Stored
    mismatch, snapshot, content, refused = c.Mismatch, c.Snapshot, c.Content, c.Refused
