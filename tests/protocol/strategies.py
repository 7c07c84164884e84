"""Strategies that draw arbitrary commands and replies.

The strategy of each dataclass is derived from its fields: `FIELDS` has a strategy for each field name, and where the
type of the field allows None, so does the strategy.
"""

from dataclasses import fields
from types import NoneType
from typing import get_args, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from protocol import commands as c
from protocol.parser import NUMBER_32_MAX, NUMBER_MAX
from protocol.stream_codec import Request, Response
from protocol.values import UID_MAX, Dot, UidSet

ATOM_CHARACTERS = [chr(code) for code in range(0x21, 0x7F) if chr(code) not in '(){%*"\\]']
SID_CHARACTERS = "abcXYZ0189_-"


def integers(low: int, high: int) -> SearchStrategy[int]:
    return st.sampled_from([low, high]) | st.integers(low, high)


numbers = integers(0, NUMBER_MAX)
numbers_32 = integers(0, NUMBER_32_MAX)
uids = integers(1, UID_MAX)
dates = integers(-NUMBER_MAX, NUMBER_MAX)
# without lone surrogates, which UTF-8 cannot encode
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["", "NIL", 'a"b\\c', "a b", "ä/☃", "a\r\nb\0"]
)
atoms = st.text(ATOM_CHARACTERS, min_size=1, max_size=20)
flags = st.builds("{}{}".format, st.sampled_from(["", "\\"]), atoms)
literals = st.binary(max_size=300) | st.sampled_from([b"", b"\r\n", b"\0", b"\xff\xfe", b"a1 PING\r\n", b"{5+}\r\n"])
ids = st.binary(min_size=16, max_size=16)
hashes = st.binary(min_size=32, max_size=32)
sids = st.text(SID_CHARACTERS, min_size=1, max_size=12)
origins = st.builds("{}.{}".format, sids, sids)
dots = st.builds(Dot, origins, numbers)
uid_ranges = st.tuples(uids, st.integers(0, 3)).map(lambda pair: (pair[0], min(UID_MAX, sum(pair))))
uid_sets = st.lists(uid_ranges, max_size=8).map(UidSet.of_ranges)
tags = st.text([*(set(ATOM_CHARACTERS) - {"+"}), "]"], min_size=1, max_size=20)


def tuples_of(members: SearchStrategy[object]) -> SearchStrategy[tuple[object, ...]]:
    return st.lists(members, max_size=4).map(tuple)


contexts = tuples_of(dots)
neighbours = tuples_of(st.tuples(sids, numbers))
adverts = tuples_of(st.builds(c.LinkAdvert, origins, numbers_32, numbers, neighbours))
histories: SearchStrategy[tuple[bytes, ...] | None] = st.none() | st.lists(ids, max_size=2).map(tuple)
entries = st.builds(
    c.EntryHeader, dots, contexts, numbers, numbers, ids, numbers_32, numbers_32, histories, st.booleans()
)

FIELDS: dict[str, SearchStrategy[object]] = {
    "added": tuples_of(flags),
    "adverts": adverts,
    "candidate": sids,
    "capabilities": tuples_of(atoms),
    "chain_ids": literals,
    "clock_ms": numbers,
    "cluster": texts,
    "code": atoms,
    "content_hash": hashes,
    "context": contexts,
    "covering": texts,
    "destination": sids,
    "digest": st.binary(max_size=64),
    "dot": dots,
    "dots": contexts,
    "entry": entries,
    "fields": tuples_of(atoms),
    "flags": tuples_of(flags),
    "former": sids,
    "guid": ids,
    "guids": tuples_of(ids),
    "history": st.none() | ids,
    "head": dots,
    "highestmodseq": numbers,
    "inline": st.booleans(),
    "anew": st.booleans(),
    "hashes": literals,
    "keys": literals,
    "mailbox": numbers_32,
    "mailbox_id": ids,
    "mailboxes": tuples_of(numbers_32),
    "master": sids,
    "message": literals,
    "messages": numbers,
    "modseq": numbers,
    "name": texts,
    "now": st.booleans(),
    "once": st.booleans(),
    "number": numbers_32,
    "origin": origins,
    "received_ms": dates,
    "refused": uid_sets,
    "removed": tuples_of(flags),
    "root": sids,
    "prefixes": tuples_of(st.text("0123456789abcdef", max_size=32)),
    "risen": numbers_32,
    "packed": literals,
    "recipe": literals,
    "rows": literals,
    "scope": texts,
    "seq": numbers,
    "sequence": numbers,
    "sid": sids,
    "size": numbers,
    "snapshot": numbers_32,
    "start": numbers,
    "source": numbers_32,
    "source_uids": uid_sets,
    "subscribed": st.booleans(),
    "term": numbers,
    "text": texts,
    "time": numbers,
    "texts": st.booleans(),
    "to_master": st.booleans(),
    "total": ids,
    "uid": uids,
    "uidnext": numbers_32,
    "uids": uid_sets,
    "uidvalidity": numbers_32,
    "unchanged_since": numbers,
    "use": texts,
    "user": texts,
    "values": literals,
    "version": numbers_32,
    "wanted": tuples_of(uids),
}
EXCEPTIONS: dict[tuple[type, str], SearchStrategy[object]] = {
    (c.Copy, "destination"): numbers_32,
    (c.Annotate, "mailbox_id"): st.just(b"") | ids,
    (c.Raise, "uidnext"): uids,
    (c.Saved, "uids"): tuples_of(uids),
    (c.Save, "message"): st.builds(c.Text, hashes, literals) | st.builds(c.Parts, hashes, numbers, literals),
    (c.NewMessage, "message"): st.builds(c.Text, hashes, literals),
    (c.SaveAll, "messages"): st.lists(
        st.builds(c.NewMessage, dates, ids, tuples_of(flags), st.builds(c.Text, hashes, literals), st.none() | uids),
        min_size=1,
        max_size=4,
    ).map(tuple),
    (c.Offer, "message"): st.builds(c.Parts, hashes, numbers, literals),
}


def of_class(kind: type) -> SearchStrategy[object]:
    hints = get_type_hints(kind)
    values: dict[str, SearchStrategy[object]] = {}
    for member in fields(kind):
        value = EXCEPTIONS.get((kind, member.name), FIELDS[member.name])
        values[member.name] = st.none() | value if NoneType in get_args(hints[member.name]) else value
    return st.builds(kind, **values)


COMMANDS: tuple[type[c.Command], ...] = get_args(c.Command)
REPLIES: tuple[type[c.Reply], ...] = get_args(c.Reply)

commands = st.sampled_from(COMMANDS).flatmap(of_class)
replies = st.sampled_from(REPLIES).flatmap(of_class)
requests = st.builds(Request, st.none() | tags, commands)
responses = st.builds(Response, tags, replies)
items = requests | responses
