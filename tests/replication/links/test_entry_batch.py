"""Entries in batches (ENTRIES): as good as commands, and nothing that no command could say."""

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.commands import Entries, Parts
from protocol.stream_codec import Decoder, Encoder, ProtocolError, Request
from protocol.units import KIB, MIB
from protocol.values import Dot, UidSet
from replicator.replication.links.entry_batch import (
    BATCH_BYTES,
    BATCH_ENTRIES,
    BODIES_BYTES,
    CHANGES_MAX,
    LONG_BYTES,
    batch_of,
    fits_alone,
    is_long,
    pack_batch,
    unpack_batch,
)
from replicator.replication.links.entry_codec import Arrived
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.transaction import Logged
from resync.entry import (
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    MailAdd,
    MailDel,
    Merge,
    TreeMerge,
    tree_id,
)
from resync.entry.entry import _CHECKED, _check
from tests.effort import examples, first
from tests.replication.links.drawn_entries import logged_entries, over_the_wire

BODY = StoredBody.of(b"text")
ADD = MailAdd(1, b"g" * 16, 0, ("\\Seen",), BODY.size_bytes, BODY.content_hash, copied=False)
ENTRY = Entry(
    Dot("dc1.a", 2), (Dot("dc1.a", 1),), 1, 1, "alice", b"m" * 16, 7, (ADD,), histories=(b"h" * 16,), dated=True
)


def logged(*changes: Change, bodies: tuple[StoredBody, ...] = (BODY,), seq: int = 2) -> Logged:
    entry = replace(ENTRY, dot=Dot("dc1.a", seq), changes=changes or (ADD,))
    return Logged(seq, entry, len(entry.pack()), {body.content_hash: body for body in bodies})


def over_the_wire_together(batch: list[Logged]) -> list[Arrived]:
    (item,) = Decoder().feed(Encoder().request(None, pack_batch(batch)))
    assert isinstance(item, Request)
    assert isinstance(item.command, Entries)
    return unpack_batch(item.command)


@settings(max_examples=examples(75, 300), deadline=None)
@given(st.lists(logged_entries(), min_size=1, max_size=4))
def test_batch_brings_what_commands_bring(drawn: list[Logged]) -> None:
    sized = [replace(item, entry_bytes=len(item.entry.pack())) for item in drawn]
    sent = 0
    while batch := batch_of(sized[sent:]):
        if len(batch) > 1 or fits_alone(batch[0]):
            together = over_the_wire_together(batch)
            for item, arrived in zip(batch, together, strict=True):
                (alone,) = over_the_wire(item)
                assert arrived.entry == alone.entry == item.entry
                assert repr(arrived.entry) == repr(alone.entry)
                assert arrived.entry.digest() == alone.entry.digest()
                assert arrived.entry.pack() == alone.entry.pack()
                assert {body.content_hash: body for body in alone.bodies} == {
                    body.content_hash: body for body in arrived.bodies
                }
        sent += len(batch)
    assert sent == len(drawn)


@settings(max_examples=examples(75, 300), deadline=None)
@given(st.data())
def test_batch_that_changed_on_the_way_brings_nothing_else(data: st.DataObject) -> None:
    batch = [logged(), logged(FlagAdd(UidSet.of([1, 2, 9]), ("\\Seen",)), bodies=(), seq=3)]
    packed = bytearray(pack_batch(batch).packed)
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed))) :]
    arrived, refused = unpacked(bytes(packed))
    if refused:
        assert refused.isprintable()
        assert len(refused) < 500
        return
    assert [one.entry for one in arrived] == [item.entry for item in batch]
    assert [body.message for one in arrived for body in one.bodies] == [b"text"]


def unpacked(packed: bytes) -> tuple[list[Arrived], str]:
    """Return the entries of a batch, or none and the error."""
    try:
        return unpack_batch(Entries(packed)), ""
    except ProtocolError as error:
        return [], str(error)


@settings(max_examples=examples(75, 1000), deadline=None)
@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=40), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
).map(msgpack.packb))  # fmt: skip
def test_any_other_octets_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_batch(Entries(packed))


# ---- what travels together ----


@pytest.mark.parametrize(
    "item",
    [
        logged(bodies=()),
        logged(ADD._replace(size_bytes=0), bodies=(replace(BODY, size_bytes=0),)),
        logged(bodies=(replace(BODY, parts=Parts(BODY.content_hash, 4, b"")),)),
        logged(FolderDelete(b"m" * 16)),
        logged(Merge(1, 0, (), (), ())),
        logged(TreeMerge((), (), ())),
        logged(*[MailDel(UidSet.of([1]))] * (CHANGES_MAX + 1)),
        logged(ADD, FolderDelete(b"m" * 16)),
    ],
)
def test_other_entries_travel_alone(item: Logged) -> None:
    assert batch_of([item, logged(seq=3)]) == [item]
    assert batch_of([logged(), item]) == [logged()]


def test_batches_are_bounded() -> None:
    assert batch_of([]) == []
    flags = [logged(FlagDel(UidSet.of([1]), ("a",)), bodies=(), seq=seq) for seq in range(1, 1000)]
    assert len(batch_of(flags)) == BATCH_ENTRIES
    mails = [logged(add_of(body), bodies=(body,), seq=seq) for seq, body in enumerate(random_bodies(100, 1000), 1)]
    batch = batch_of(mails)
    assert 0.8 * BATCH_BYTES < len(pack_batch(batch).packed) <= BATCH_BYTES
    assert len(over_the_wire_together(batch)) == len(batch)
    zeros = [StoredBody.of(bytes(MIB // 8 + number)) for number in range(10)]
    mails = [logged(add_of(body), bodies=(body,), seq=seq) for seq, body in enumerate(zeros, 1)]
    batch = batch_of(mails)
    assert len(batch) == 7
    assert len(over_the_wire_together(batch)) == 7


def test_large_entry_travels_alone() -> None:
    bodies = random_bodies(32, 8 * KIB)
    large = logged(*map(add_of, bodies[:30]), bodies=bodies[:30], seq=3)
    assert batch_of([logged(), large]) == [logged()]
    assert batch_of([large, logged(seq=4)]) == [large]
    assert fits_alone(large)
    assert is_long(large)
    assert not is_long(logged())
    assert len(over_the_wire_together([large])) == 1


@pytest.mark.parametrize("count", first(2, [CHANGES_MAX, 1, 2, 99]))
def test_what_fits_alone_is_taken(count: int) -> None:
    """Also at the very limit, of which lengths and headers take their part."""
    fitting = set[bool]()
    for size_bytes in range((LONG_BYTES - 400 * count) // count - 8, LONG_BYTES // count, max(1, 60 // count)):
        bodies = random_bodies(count, size_bytes)
        item = logged(*map(add_of, bodies), bodies=bodies)
        fitting.add(fits_alone(item))
        if fits_alone(item):
            assert len(unpack_batch(pack_batch([item]))) == 1
    assert fitting == {True, False}


def test_too_large_entry_travels_as_commands() -> None:
    bodies = random_bodies(32, 8 * KIB)
    large = logged(*map(add_of, bodies), bodies=bodies)
    assert not fits_alone(large)
    packed = pack_batch([large]).packed
    assert unpacked(packed) == ([], f"ENTRIES of {len(packed)} bytes; the limit is {LONG_BYTES}")


def test_large_batch_of_several_entries_is_refused() -> None:
    bodies = random_bodies(2, 20 * KIB)
    packed = pack_batch([logged(add_of(body), bodies=(body,), seq=seq) for seq, body in enumerate(bodies, 1)]).packed
    assert unpacked(packed) == ([], f"2 ENTRIES of {len(packed)} bytes; the limit is {BATCH_BYTES}")


def test_long_entry_without_bodies_is_refused() -> None:
    scattered = FlagAdd(UidSet.of(range(1, 40_000, 2)), ("\\Seen",))
    large = logged(scattered, bodies=())
    assert not fits_alone(large)
    packed = pack_batch([large]).packed
    assert BATCH_BYTES < len(packed) < LONG_BYTES
    assert f"the limit is {BATCH_BYTES}" in unpacked(packed)[1]


def random_bodies(count: int, size_bytes: int) -> tuple[StoredBody, ...]:
    return tuple(StoredBody.of(hashlib.shake_256(b"%d" % number).digest(size_bytes)) for number in range(count))


def add_of(body: StoredBody) -> MailAdd:
    return ADD._replace(size_bytes=body.size_bytes, content_hash=body.content_hash)


# ---- what a hostile peer may send ----


def packed_entry(**changes: object) -> list[Any]:
    """Return an entry of a batch, with these fields, and a right check."""
    entry = replace(ENTRY, **changes)  # type: ignore[arg-type]  # of any type
    return [*entry.dot, entry.pack(), [BODY.packed]]


def entry_with(change: Change, **changes: object) -> list[Any]:
    return [*packed_entry(changes=(change,), **changes)[:3], []]


def tree_entry(change: Change, **changes: object) -> list[Any]:
    return entry_with(change, **{"mailbox_id": tree_id("alice"), "uidvalidity": 0, **changes})


def body_of(packed: bytes, size_bytes: int, content_hash: bytes = BODY.content_hash) -> list[Any]:
    add = ADD._replace(size_bytes=size_bytes, content_hash=content_hash)
    return [*packed_entry(changes=(add,))[:3], [packed]]


def frame(*, declares: int | None, content: bytes) -> bytes:
    """Return a zstd frame that need not declare its size, or declares a false one."""
    sized = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    if declares is None:
        return sized
    return sized[:4] + bytes([0b1110_0000]) + declares.to_bytes(8, "little") + sized[6:]


BOMB = bytes(BODIES_BYTES)
COPIED = ADD._replace(copied=True)
INBOX = FolderCreate(b"m" * 16, "INBOX", 7)
UIDS = UidSet.of([1])
TWICE = UidSet(((1, 2), (2, 3)))
UNCHECKED = ENTRY._message_pack()
OTHER_FORM = msgpack.unpackb(UNCHECKED)


def resealed(entry: list[Any]) -> bytes:
    """Return fields of an entry, however packed, under a right check."""
    packed: bytes = msgpack.packb(entry)
    return _CHECKED + _check(ENTRY.dot, packed) + packed


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([], "must hold 1 to 128 entries"),
        ([()] * 129, "must hold 1 to 128 entries"),
        ({}, "must hold"),
        ([None], "wrong types"),
        ([["dc1.a", 2, UNCHECKED, [BODY.packed]]], "not packed as an entry"),
        ([["dc1.a", 3, ENTRY.pack(), [BODY.packed]]], "has altered"),
        ([["dc1", 2, ENTRY.pack(), [BODY.packed]]], "not an origin"),
        ([["dc1.a", -1, ENTRY.pack(), [BODY.packed]]], "not between"),
        ([["dc1.a", 2, resealed([*OTHER_FORM, 1]), [BODY.packed]]], "ENTRIES cannot be read"),
        ([["dc1.a", 2, resealed([*OTHER_FORM[:-1], 1]), [BODY.packed]]], "not packed as an entry"),
        ([["dc1.a", 2, resealed(OTHER_FORM[:-3]), [BODY.packed]]], "cannot be read"),
        ([packed_entry(predecessors=(Dot("x", 1),))], "not an origin"),
        ([packed_entry(predecessors=(Dot("dc1.a", 1 << 63),))], "not between"),
        ([packed_entry(predecessors=(Dot("dc1.a", seq=True),))], "wrong types"),
        ([packed_entry(time=1 << 63)], "not between"),
        ([packed_entry(time=-1)], "not between"),
        ([packed_entry(time=1.5)], "wrong types"),
        ([packed_entry(modseq=1 << 63)], "not between"),
        ([packed_entry(modseq=None)], "wrong types"),
        ([packed_entry(user=b"alice")], "wrong types"),
        ([packed_entry(user="a" * 321)], "longer than 320"),
        ([packed_entry(mailbox_id=b"m")], "not 16 bytes"),
        ([packed_entry(mailbox_id="m" * 16)], "not 16 bytes"),
        ([packed_entry(uidvalidity=0)], "does not belong to its user"),
        ([packed_entry(uidvalidity=-1)], "not between"),
        ([packed_entry(uidvalidity=1 << 32)], "not between"),
        ([packed_entry(uidvalidity=True)], "wrong types"),
        ([packed_entry(histories=(b"h",))], "not 16 bytes"),
        ([packed_entry(histories=("h" * 16,))], "not 16 bytes"),
        ([packed_entry(histories=b"")], "wrong types"),
        ([packed_entry(changes=())], "must have 1 to 100"),
        ([packed_entry(changes=(COPIED,) * (CHANGES_MAX + 1))], "must have 1 to 100"),
        ([entry_with(FolderDelete(b"m" * 16))], "cannot hold a FolderDelete"),
        ([entry_with(INBOX)], "a FolderCreate is out of place in a mailbox"),
        ([tree_entry(ADD)], "a MailAdd is out of place in a tree"),
        ([tree_entry(INBOX, mailbox_id=b"m" * 16)], "does not belong to its user"),
        ([tree_entry(INBOX._replace(mailbox_id=b"m"))], "not 16 bytes"),
        ([tree_entry(INBOX._replace(name=b"INBOX"))], "wrong types"),  # type: ignore[arg-type]
        ([tree_entry(INBOX._replace(uidvalidity=1 << 32))], "not between"),
        ([entry_with(Merge(1, 0, (), (), ()))], "cannot hold a Merge"),
        ([entry_with(COPIED._replace(uid=0))], "not between"),
        ([entry_with(COPIED._replace(uid=1 << 32))], "not between"),
        ([entry_with(COPIED._replace(uid=True))], "wrong types"),
        ([entry_with(COPIED._replace(guid=b"g"))], "not 16 bytes"),
        ([entry_with(COPIED._replace(received_ms=-(1 << 63)))], "not between"),
        ([entry_with(COPIED._replace(size_bytes=-1))], "not between"),
        ([entry_with(COPIED._replace(content_hash=b"h" * 31))], "not 32 bytes"),
        ([entry_with(COPIED._replace(flags=("a b",)))], "not a flag"),
        ([entry_with(COPIED._replace(flags=(b"a",)))], "not a flag"),  # type: ignore[arg-type]
        ([entry_with(COPIED._replace(copied=1))], "wrong types"),  # type: ignore[arg-type]
        ([entry_with(MailDel(TWICE))], "out of order"),
        ([entry_with(MailDel(UidSet(((3, 1),))))], "out of order"),
        ([entry_with(MailDel(UidSet(((0, 1),))))], "not between"),
        ([entry_with(MailDel(UidSet(((1, 1 << 32),))))], "not between"),
        ([entry_with(MailDel(UidSet(((1, 1, 1),))))], "wrong types"),  # type: ignore[arg-type]
        ([entry_with(FlagAdd(UIDS, ("",)))], "not a flag"),
        ([entry_with(FlagDel(TWICE, ("a",)))], "out of order"),
        ([entry_with(FlagDel(UIDS, "a"))], "wrong types"),  # type: ignore[arg-type]
        ([[*packed_entry()[:3], []]], "comes with 0 bodies, not 1"),
        ([[*packed_entry()[:3], [BODY.packed] * 2]], "comes with 2 bodies, not 1"),
        ([[*entry_with(COPIED)[:3], [BODY.packed]]], "comes with 1 bodies, not 0"),
        ([[*packed_entry()[:3], ["text"]]], "wrong types"),
        ([body_of(b"text", 4)], "does not match its hash or size"),
        ([body_of(BODY.packed[:-1], 4)], "does not match its hash or size"),
        ([body_of(BODY.packed + b"x", 4)], "does not match its hash or size"),
        ([body_of(StoredBody.of(b"tExt").packed, 4)], "does not match its hash"),
        ([body_of(BODY.packed, 5)], "does not match its hash"),
        ([body_of(frame(declares=None, content=b"text"), 4)], "does not match its hash"),
        ([body_of(frame(declares=4, content=BOMB), 4)], "does not match its hash or size"),
        ([body_of(frame(declares=1 << 60, content=b"text"), 1 << 60)], "more than 1048576 bytes"),
        ([body_of(frame(declares=1 << 60, content=b"text"), 4)], "does not match its hash"),
        ([body_of(StoredBody.of(b"").packed, 0, hashlib.sha256(b"").digest())], "is empty"),
        ([body_of(StoredBody.of(BOMB).packed, len(BOMB), hashlib.sha256(BOMB).digest())] * 2, "more than 1048576"),
    ],
)
def test_what_no_command_could_say_is_refused(entries: object, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        unpack_batch(Entries(msgpack.packb(entries)))


def test_table_of_refusals_changes_one_thing_at_a_time() -> None:
    assert frame(declares=4, content=b"text") != BODY.packed
    good = [
        [packed_entry()],
        [entry_with(COPIED)],
        [tree_entry(INBOX)],
        [body_of(frame(declares=4, content=b"text"), 4)],
    ]
    for entries in good:
        assert len(unpack_batch(Entries(msgpack.packb(entries)))) == 1
    assert resealed(OTHER_FORM) == ENTRY.pack()


def test_long_literal_is_not_looked_at() -> None:
    with pytest.raises(ProtocolError, match=f"the limit is {LONG_BYTES}"):
        unpack_batch(Entries(bytes(LONG_BYTES + 1)))


def test_deep_literal_is_refused() -> None:
    for octet in itertools.chain((0x91, 0x81), b"\xdd"):
        with pytest.raises(ProtocolError):
            unpack_batch(Entries(bytes([octet]) * BATCH_BYTES))
