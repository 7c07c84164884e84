"""Commands and replies to bytes, as `protocol.lark` has them.

Every value is checked against the grammar's own terminals and the parser's limits before it goes out: what cannot
be said is our own misuse, raises ValueError here and never reaches a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import TypeVar

from protocol import commands as c
from protocol.framing import FrameLimits
from protocol.parser import (
    LIST_MAX,
    NUMBER_32_MAX,
    NUMBER_MAX,
    TEXT_MAX,
    UID_SET_MAX,
    WIRE_LIMITS,
    Request,
    Response,
    terminal,
)
from protocol.values import UID_MAX, Dot, UidSet

T = TypeVar("T")

Field = str | bytes
"""One field of a command: `str` is its text, `bytes` travel as a literal."""

QUOTED_MAX = 1000
"""Characters; longer texts go as literals, so that lines stay readable and short."""
UID_SET_TEXT_MAX = 4096
"""Same, for sets of UIDs."""


def format_item(item: Request | Response, limits: FrameLimits = WIRE_LIMITS) -> bytes:
    """The item as one frame with its CRLF. Raises ValueError if a value cannot be said or the frame is too large."""
    if isinstance(item, Request):
        fields = _fields(item.command)
        line = "*" if item.tag is None else _match("TAG", item.tag)
    else:
        fields = ["NO"] if isinstance(item.reply, c.Refused) else ["OK"]
        fields += _fields(item.reply)
        line = _match("TAG", item.tag)
    pieces: list[bytes] = []
    for field in fields:
        if isinstance(field, str):
            line += " " + field
        else:
            pieces += (f"{line} {{{len(field)}+}}\r\n".encode("ascii"), field)
            line = ""
    pieces.append(f"{line}\r\n".encode("ascii"))
    _check_limits(pieces, limits)
    return b"".join(pieces)


def _check_limits(pieces: list[bytes], limits: FrameLimits) -> None:
    """Refuse what a reader with these limits would refuse: texts and literals alternate."""
    literals = [len(literal) for literal in pieces[1::2]]
    if sum(map(len, pieces[::2])) - len(b"\r\n") > limits.text:
        raise ValueError(f"the text of {pieces[0][:32]!r} is longer than {limits.text} bytes")
    if literals and (max(literals) > limits.literal or sum(literals) > limits.literals_total):
        raise ValueError(f"{pieces[0][:32]!r} has literals of {literals} bytes: at most {limits.literal} are taken")


# ---- values ----------------------------------------------------------------------------------------------------


def _match(name: str, text: str) -> str:
    """The text, which must be this terminal of the grammar."""
    if terminal(name).fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is not a {name} of the protocol: {terminal(name).pattern}")
    return text


def _number(number: int, maximum: int = NUMBER_MAX, minimum: int = 0) -> str:
    if not minimum <= number <= maximum:
        raise ValueError(f"{number} is not within {minimum} and {maximum}")
    return str(number)


def _number_32(number: int) -> str:
    return _number(number, NUMBER_32_MAX)


def _uid(uid: int) -> str:
    return _number(uid, UID_MAX, 1)


def _date_ms(date_ms: int) -> str:
    return _number(date_ms, NUMBER_MAX, -NUMBER_MAX)


def _id(value: bytes) -> str:
    return _match("ID", value.hex())


def _content_hash(value: bytes) -> str:
    return _match("CONTENT_HASH", value.hex())


def _range(prefix: str) -> str:
    return _match("RANGE", prefix or '""')


def _sid(sid: str) -> str:
    return _match("SID", sid)


def _atom(text: str) -> str:
    return _match("ATOM", text)


def _flag(text: str) -> str:
    return _match("FLAG", text)


def _dot(dot: Dot) -> str:
    return f"{_match('ORIGIN', dot.origin)}:{_number(dot.seq)}"


def _maybe_dot(dot: Dot | None) -> str:
    return "NIL" if dot is None else _dot(dot)


def _list(member: Callable[[T], str], members: Iterable[T]) -> str:
    texts = [member(value) for value in members]
    if len(texts) > LIST_MAX:
        raise ValueError(f"a list of {len(texts)} members: at most {LIST_MAX} are taken")
    return f"({' '.join(texts)})"


def _string(text: str) -> Field:
    """The shortest of the three forms that can hold the text. Lone surrogates have no UTF-8: UnicodeEncodeError."""
    if len(text) <= QUOTED_MAX:
        if terminal("ASTRING_ATOM").fullmatch(text):
            return text
        if text.isascii() and text.isprintable():
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
    literal = text.encode()
    if len(literal) > TEXT_MAX:
        raise ValueError(f"a text of {len(literal)} bytes, {text[:24]!a}: at most {TEXT_MAX} are taken")
    return literal


def _uid_set(uids: UidSet) -> Field:
    if not uids:
        return "NIL"
    if uids.ranges[0][0] < 1 or uids.ranges[-1][1] > UID_MAX or UidSet.of_ranges(uids.ranges) != uids:
        raise ValueError(f"{str(uids)[:80]} is not an ascending set of UIDs without overlaps")
    text = str(uids)
    if len(text) > UID_SET_MAX:
        raise ValueError(f"a set of {len(uids.ranges)} UID ranges is longer than {UID_SET_MAX} bytes: split it")
    return text if len(text) <= UID_SET_TEXT_MAX else text.encode("ascii")


def _option(word: str, field: Callable[[T], Field], value: T | None) -> list[Field]:
    """An optional field behind its word; nothing if there is none."""
    return [] if value is None else [word, field(value)]


def _literal(value: bytes) -> bytes:
    return value


def _header(entry: c.EntryHeader) -> str:
    return (
        f"({_dot(entry.dot)} {_list(_dot, entry.predecessors)} {_number(entry.time)} {_number(entry.modseq)}"
        f" {_number_32(entry.change)} {_number_32(entry.changes)})"
    )


def _entry(entry: c.EntryHeader | None) -> list[Field]:
    return _option("ENTRY", _header, entry)


def _neighbour(neighbour: tuple[str, int]) -> str:
    sid, round_trip_us = neighbour
    return f"({_sid(sid)} {_number(round_trip_us)})"


def _advert(advert: c.LinkAdvert) -> str:
    numbers = f"{_number(advert.priority)} {_number(advert.sequence)}"
    return f"({_sid(advert.sid)} {numbers} {_list(_neighbour, advert.neighbours)})"


# ---- commands, in the order of the grammar ---------------------------------------------------------------------


@singledispatch
def _fields(value: object) -> list[Field]:
    """The verb and the fields of a command; for a reply, what follows OK or NO."""
    raise ValueError(f"{type(value).__name__} is neither a command nor a reply")


@_fields.register
def _(hello: c.Hello) -> list[Field]:
    return [
        "HELLO",
        _number_32(hello.version),
        _sid(hello.sid),
        _match("ORIGIN", hello.origin),
        _string(hello.cluster),
        _list(_atom, hello.capabilities),
        _number(hello.clock_ms),
    ]


@_fields.register
def _(_ping: c.Ping) -> list[Field]:
    return ["PING"]


@_fields.register
def _(links: c.Links) -> list[Field]:
    return ["LINKS", _list(_advert, links.adverts)]


@_fields.register
def _(root: c.Root) -> list[Field]:
    return ["ROOT", _number(root.term), _sid(root.root)]


@_fields.register
def _(dropped: c.Dropped) -> list[Field]:
    return ["DROPPED", _number(dropped.term), _sid(dropped.sid), _list(_dot, dropped.context)]


@_fields.register
def _(who: c.Who) -> list[Field]:
    former = _option("FROM", _sid, who.former)
    return ["WHO", _number(who.term), _string(who.scope), _sid(who.candidate), *former]


@_fields.register
def _(move: c.MasterMove) -> list[Field]:
    now = ["NOW"] if move.now else []
    return ["MASTER-MOVE", _number_32(move.mailbox), _number(move.term), _sid(move.destination), *now]


@_fields.register
def _(mbox: c.Mbox) -> list[Field]:
    return [
        "MBOX",
        _number_32(mbox.number),
        _string(mbox.user),
        _string(mbox.name),
        _id(mbox.mailbox_id),
        _number_32(mbox.uidvalidity),
        _number_32(mbox.uidnext),
        _number(mbox.messages),
        _number(mbox.highestmodseq),
        _maybe_dot(mbox.head),
        _match("DIGEST", mbox.digest.hex()) if mbox.digest else "NIL",
        *_option("TO", _sid, mbox.destination),
    ]


@_fields.register
def _(save: c.Save) -> list[Field]:
    return [
        "SAVE",
        _list(_number_32, save.mailboxes),
        _date_ms(save.received_ms),
        _id(save.guid),
        _list(_flag, save.flags),
        *_option("UID", _uid, save.uid),
        *_entry(save.entry),
        save.message,
    ]


@_fields.register
def _(copy: c.Copy) -> list[Field]:
    return [
        "COPY",
        _number_32(copy.source),
        _number_32(copy.destination),
        _uid_set(copy.source_uids),
        _list(_id, copy.guids),
        _date_ms(copy.received_ms),
        _list(_flag, copy.flags),
        *_option("UID", _uid, copy.uid),
        *_option("HASH", _content_hash, copy.content_hash),
        *_option("SIZE", _number, copy.size),
        *_entry(copy.entry),
        *(["ONCE"] if copy.once else []),
    ]


@_fields.register
def _(expunge: c.Expunge) -> list[Field]:
    return [
        "EXPUNGE",
        _number_32(expunge.mailbox),
        _uid_set(expunge.uids),
        *_option("HEAD", _dot, expunge.head),
        *_entry(expunge.entry),
    ]


@_fields.register
def _(store: c.Store) -> list[Field]:
    return [
        "STORE",
        _number_32(store.mailbox),
        _uid_set(store.uids),
        "ADD",
        _list(_flag, store.added),
        "REMOVE",
        _list(_flag, store.removed),
        *_option("SEEN", _number, store.seen_modseq),
        *_option("UNCHANGEDSINCE", _number, store.unchanged_since),
        *_option("HEAD", _dot, store.head),
        *_entry(store.entry),
    ]


@_fields.register
def _(create: c.Create) -> list[Field]:
    return [
        "CREATE",
        _string(create.user),
        _string(create.name),
        _id(create.mailbox_id),
        _number_32(create.uidvalidity),
        *_entry(create.entry),
    ]


@_fields.register
def _(rename: c.Rename) -> list[Field]:
    return ["RENAME", _string(rename.user), _id(rename.mailbox_id), _string(rename.name), *_entry(rename.entry)]


@_fields.register
def _(delete: c.Delete) -> list[Field]:
    return ["DELETE", _string(delete.user), _id(delete.mailbox_id), *_entry(delete.entry)]


@_fields.register
def _(subscribe: c.Subscribe) -> list[Field]:
    verb = "SUBSCRIBE" if subscribe.subscribed else "UNSUBSCRIBE"
    return [verb, _string(subscribe.user), _string(subscribe.name), *_entry(subscribe.entry)]


@_fields.register
def _(merge: c.Merge) -> list[Field]:
    return ["MERGE", _number_32(merge.mailbox), *_entry(merge.entry), merge.rows]


@_fields.register
def _(sync: c.SyncNode) -> list[Field]:
    return ["SYNC", "NODE", *_option("TO", _sid, sync.destination)]


@_fields.register
def _(sync: c.SyncMailbox) -> list[Field]:
    return ["SYNC", "MAILBOX", _number_32(sync.mailbox), *_option("TO", _sid, sync.destination)]


@_fields.register
def _(ranges: c.Ranges) -> list[Field]:
    destination = _option("TO", _sid, ranges.destination)
    return ["RANGES", _number_32(ranges.snapshot), _list(_range, ranges.prefixes), *destination]


@_fields.register
def _(rows: c.Rows) -> list[Field]:
    return ["ROWS", _number_32(rows.snapshot), *_option("TO", _sid, rows.destination), rows.keys]


@_fields.register
def _(sync: c.SyncEnd) -> list[Field]:
    return ["SYNC", "END", _number_32(sync.snapshot), *_option("TO", _sid, sync.destination)]


@_fields.register
def _(fetch: c.FetchUid) -> list[Field]:
    return ["FETCH", "UID", _number_32(fetch.mailbox), _uid(fetch.uid)]


@_fields.register
def _(fetch: c.FetchGuid) -> list[Field]:
    return ["FETCH", "GUID", _id(fetch.guid)]


@_fields.register
def _(fetch: c.FetchHash) -> list[Field]:
    return ["FETCH", "HASH", _content_hash(fetch.content_hash)]


@_fields.register
def _(log: c.Log) -> list[Field]:
    return ["LOG", _list(_dot, log.context)]


@_fields.register
def _(ack: c.Ack) -> list[Field]:
    return ["ACK", _dot(Dot(ack.origin, ack.seq)), *_option("BY", _sid, ack.sid)]


# ---- replies ---------------------------------------------------------------------------------------------------


@_fields.register
def _(done: c.Done) -> list[Field]:
    return _option("ENTRY", _dot, done.dot)


@_fields.register
def _(master: c.Master) -> list[Field]:
    return ["MASTER", _sid(master.sid), *_option("OF", _string, master.covering)]


@_fields.register
def _(moved: c.Moved) -> list[Field]:
    return ["MOVED", _string(moved.scope), _maybe_dot(moved.head)]


@_fields.register
def _(saved: c.Saved) -> list[Field]:
    return ["SAVED", _list(_uid, saved.uids), _list(_dot, saved.dots), *_option("MASTER", _sid, saved.master)]


@_fields.register
def _(stored: c.Stored) -> list[Field]:
    return ["STORED", _uid_set(stored.refused), _number(stored.modseq), *_option("ENTRY", _dot, stored.dot)]


@_fields.register
def _(mismatch: c.Mismatch) -> list[Field]:
    return [
        "MISMATCH",
        _list(_atom, mismatch.fields),
        _maybe_dot(mismatch.head),
        _list(_dot, mismatch.context),
    ]


@_fields.register
def _(snapshot: c.Snapshot) -> list[Field]:
    return [
        "SNAPSHOT",
        _number_32(snapshot.number),
        _number_32(snapshot.uidnext),
        _number(snapshot.modseq),
        _number_32(snapshot.risen),
        _maybe_dot(snapshot.head),
        _list(_dot, snapshot.context),
        _match("DIGEST", snapshot.digest.hex()) if snapshot.digest else "NIL",
        _number(snapshot.size),
        _id(snapshot.total),
    ]


@_fields.register
def _(content: c.Content) -> list[Field]:
    return ["CONTENT", content.message]


@_fields.register
def _(refused: c.Refused) -> list[Field]:
    return [_atom(refused.code), _string(refused.text)]
