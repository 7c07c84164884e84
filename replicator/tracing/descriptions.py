"""Descriptions of commands and replies: their names, mailboxes and entries, and their other values as text.

Literals, which may be mail or secrets, are the fields without a `repr`. The text has their size and a mark, which is
made of their SHA-256 by a key (BLAKE2b): who does not know the key cannot find out a short literal by guesses. Hashes
are shown by their marks, too, and so a hash and the literal that has it are seen to belong together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b, sha256
from typing import NamedTuple, TypeAlias, get_args

import msgpack

from protocol import commands as c
from protocol.values import Dot, UidSet
from replicator.tracing.words import cut, word
from resync.entry import Entry, FolderCreate, MailAdd, checked

LISTED_MAX = 16
"""Members of a list in a text."""
ID_BYTES = 16
"""Octets of an id. What has more is a hash."""
MARK_BYTES = 4

Key: TypeAlias = tuple[str, bytes, int]
"""User, id and UIDVALIDITY of a mailbox, or 0 for a folder tree."""

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")

_TOLD_APART = {"mailbox", "mailboxes", "user", "mailbox_id", "entry"}
_ALSO_TOLD_APART: Mapping[type, frozenset[str]] = {
    c.Mbox: frozenset({"name"}),
    c.Create: frozenset({"name"}),
    c.Rename: frozenset({"name"}),
    c.Subscribe: frozenset({"name"}),
    c.Copy: frozenset({"source", "destination"}),
    c.Ack: frozenset({"origin", "seq"}),
    c.Done: frozenset({"dot"}),
    c.Stored: frozenset({"dot"}),
    c.Saved: frozenset({"dots"}),
}


class Place(NamedTuple):
    """A mailbox, or a user's folder tree. `name`: as the command has it."""

    user: str
    mailbox_id: bytes
    name: str | None = None
    is_tree: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a command."""

    places: tuple[Place, ...]
    entries: tuple[str, ...]
    detail: str


def _wire_name(kind: type) -> str:
    return _CAPITAL.sub("-", kind.__name__).upper()


_NAME_OF: Mapping[type, str] = {kind: _wire_name(kind) for kind in (*get_args(c.Command), *get_args(c.Reply))}
NAMES = frozenset(_NAME_OF.values())
NEVER_TRACED = frozenset({"HELLO"})
"""Names of what is said before a link is up."""


def name_of(said: c.Command | c.Reply) -> str:
    """Return the name of a command or reply: `SAVE-ALL`, `FETCH-UID`."""
    return _NAME_OF[type(said)]


def is_named(name: str, asked: str) -> bool:
    """Return True if this is the name that is asked for, or begins with it: `FETCH` stands for `FETCH-UID`, too."""
    return name == asked or name.startswith(f"{asked}-")


def _beginnings(name: str) -> Iterator[str]:
    words = name.split("-")
    yield from ("-".join(words[:count]) for count in range(1, len(words) + 1))


CHOICES = frozenset(beginning for name in NAMES - NEVER_TRACED for beginning in _beginnings(name))
"""The names that can be asked for: `FETCH-UID`, `FETCH`."""


def places_of(command: c.Command, key_of: Callable[[int], Key | None]) -> tuple[Place, ...]:
    """Return the mailboxes that a command names, by their numbers or otherwise; for ENTRIES see `describe`."""
    match command:
        case c.Mbox(user=user, name=name, mailbox_id=mailbox_id, uidvalidity=uidvalidity):
            return (Place(user, mailbox_id, name or None, uidvalidity == 0),)
        case c.Create(user=user, name=name, mailbox_id=mailbox_id) | c.Rename(user, mailbox_id, name):
            return (Place(user, mailbox_id, name),)
        case c.Subscribe(user=user, name=name):
            return (Place(user, b"", name),)
        case c.Delete(user=user, mailbox_id=mailbox_id) | c.Annotate(user=user, mailbox_id=mailbox_id):
            return (Place(user, mailbox_id, None, not mailbox_id),)
    keys = [key for number in _numbers(command) if (key := key_of(number)) is not None]
    return tuple(Place(user, mailbox_id, None, uidvalidity == 0) for user, mailbox_id, uidvalidity in keys)


def _numbers(command: c.Command) -> tuple[int, ...]:
    match command:
        case c.Save():
            return command.mailboxes
        case c.Copy():
            return command.destination, command.source
        case (
            c.SaveAll() | c.Expunge() | c.Store() | c.Raise() | c.Renumber() | c.Merge() | c.Remote()
            | c.SyncMailbox() | c.FetchUid() | c.MasterMove()
        ):  # fmt: skip
            return (command.mailbox,)
        case _:
            return ()


def describe(said: c.Command | c.Reply, places: tuple[Place, ...], mark_key: bytes) -> Description:
    """Return what a command is about. `places` are those that it, or the request that it answers, names.

    `mark_key`: the key of marks. Marks by one key are the same for equal literals.
    """
    if isinstance(said, c.Entries):
        return _batch(said, mark_key)
    return Description(places, tuple(map(entry_name, _dots(said))), " ".join(_values(said, mark_key)))


def entry_name(dot: Dot) -> str:
    """Return the name of an entry as operators see it."""
    return f"{dot.origin} {dot.seq}"


def _dots(said: c.Command | c.Reply) -> tuple[Dot, ...]:
    match said:
        case c.Ack(origin=origin, seq=seq):
            return (Dot(origin, seq),)
        case c.Saved(dots=dots):
            return dots
        case c.Done(dot=Dot() as dot) | c.Stored(dot=Dot() as dot):
            return (dot,)
    header = getattr(said, "entry", None)
    return (header.dot,) if isinstance(header, c.EntryHeader) else ()


def _batch(batch: c.Entries, mark_key: bytes) -> Description:
    """Return what a batch of entries is about. It is not checked yet: a peer may have sent anything."""
    entries, found, names = list[str](), dict[Place, None](), dict[bytes, str]()
    changes = Counter[str]()
    bodies = octets = 0
    try:
        for item in msgpack.unpackb(batch.packed, use_list=False):
            origin, seq, packed, _ = checked(item, str, int, bytes, tuple)
            dot = Dot(origin, seq)
            entry = Entry.unpack(dot, packed)
            user, mailbox_id = checked((entry.user, entry.mailbox_id), str, bytes)
            found[Place(user, mailbox_id, None, entry.is_tree)] = None
            entries.append(entry_name(dot))
            for change in entry.changes:
                changes[type(change).__name__] += 1
                if isinstance(change, MailAdd) and not change.copied:
                    bodies, octets = bodies + 1, octets + change.size_bytes
                elif isinstance(change, FolderCreate):  # what follows may be in it, and this node not have it yet
                    names[change.mailbox_id] = str(change.name)
    except (msgpack.UnpackException, ValueError, TypeError, LookupError, AttributeError):
        return Description(tuple(found), tuple(entries), f"unreadable={_literal(batch.packed, mark_key)}")
    places = tuple(place._replace(name=names.get(place.mailbox_id)) for place in found)
    told = [f"{name}={count}" for name, count in changes.items()]
    brought = [f"bodies={bodies}/{octets}B"] if bodies else []
    return Description(places, tuple(entries), " ".join([*told, *brought]))


def _values(said: object, mark_key: bytes) -> Iterator[str]:
    """Yield those values that are not told apart, each with its name."""
    assert is_dataclass(said)
    told = _TOLD_APART | _ALSO_TOLD_APART.get(type(said), frozenset())
    for field in fields(said):
        value = getattr(said, field.name)
        if isinstance(value, c.EntryHeader):
            yield f"modseq={value.modseq}"
            if value.changes > 1:
                yield f"change={value.change + 1}/{value.changes}"
        elif field.name in told or value == field.default or (not value and not isinstance(value, int)):
            continue
        elif isinstance(value, bool):
            yield field.name if value else f"{field.name}=no"
        else:
            yield f"{field.name}={_text(value, mark_key, is_literal=not field.repr)}"


def _text(value: object, mark_key: bytes, *, is_literal: bool = False) -> str:
    match value:
        case c.Text(content_hash, octets):
            return f"{{{len(octets)} {_mark(content_hash, mark_key)}}}"
        case bytes() if is_literal:
            return _literal(value, mark_key)
        case bytes():
            return value.hex() if len(value) <= ID_BYTES else _mark(value, mark_key)
        case Dot():
            return f"[{entry_name(value)}]"
        case UidSet():
            return cut(str(value))
        case tuple():
            listed = [_text(one, mark_key) for one in value[:LISTED_MAX]]
            more = [f"and {len(value) - LISTED_MAX} more"] if len(value) > LISTED_MAX else []
            return f"({' '.join([*listed, *more])})"
        case str():
            return word(value)
        case _ if is_dataclass(value):
            return f"({' '.join(_values(value, mark_key))})"
        case _:
            return str(value)


def _literal(octets: bytes, mark_key: bytes) -> str:
    return f"{{{len(octets)} {_mark(sha256(octets).digest(), mark_key)}}}"


def _mark(content_hash: bytes, mark_key: bytes) -> str:
    return blake2b(content_hash, digest_size=MARK_BYTES, key=mark_key).hexdigest()
