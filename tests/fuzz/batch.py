"""Input of a peer in ENTRIES: batches of packed entries, and entries whose checks are right whatever they hold."""

from __future__ import annotations

import msgpack

from protocol.commands import Entries
from protocol.stream_codec import ProtocolError
from protocol.units import MIB
from protocol.values import Dot, UidSet
from replicator.replication.links.entry_batch import BODIES_BYTES, pack_batch, unpack_batch
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.transaction import Logged
from resync.entry import Change, Entry, FlagAdd, FlagDel, MailAdd, MailDel
from resync.entry.entry import _CHECK_END, _CHECKED, _check
from tests.fuzz.target import Target
from tests.fuzz.wire import assert_is_clear

DOT = Dot("dc1.a", 2)
BODY = StoredBody.of(b"Subject: Lunch\r\n\r\nAt noon? Ann\r\n")


def check(data: bytes) -> None:
    """Unpack the octets as a batch, and as an entry under a right check. What comes is packed again as it came."""
    unpack(Entries(data[1:]))
    sealed = _CHECKED + _check(DOT, data[1:]) + data[1:]
    for bodies in ([], [BODY.packed]):
        unpack(Entries(msgpack.packb([(*DOT, sealed, bodies)])))


def unpack(batch: Entries) -> None:
    try:
        arrived = unpack_batch(batch)
    except ProtocolError as error:
        assert_is_clear(error)
        return
    assert sum(body.size_bytes for one in arrived for body in one.bodies) <= BODIES_BYTES
    again = pack_batch(
        Logged(1, one.entry, 0, {body.content_hash: body for body in one.bodies}) for one in arrived
    )  # fmt: skip
    assert [one.entry for one in unpack_batch(again)] == [one.entry for one in arrived]
    for one in arrived:
        assert [StoredBody.of(text_of(body)).content_hash for body in one.bodies] == [
            body.content_hash for body in one.bodies
        ]


def text_of(body: StoredBody) -> bytes:
    message = body.message
    assert isinstance(message, bytes)
    assert len(message) == body.size_bytes
    return message


def entry(change: Change) -> Entry:
    return Entry(DOT, (Dot("dc1.a", 1),), 1 << 40, 7, "ann", b"m" * 16, 9, (change,), (b"h" * 16,), dated=True)


ADD = MailAdd(1, b"g" * 16, -5, ("\\Seen",), BODY.size_bytes, BODY.content_hash, copied=False)
CHANGES: tuple[Change, ...] = (
    ADD,
    ADD._replace(copied=True),
    MailDel(UidSet(((1, 3), (9, 9)))),
    FlagAdd(UidSet.of([1]), ("a",)),
    FlagDel(UidSet.of([1]), ("$b", "c")),
)
ENTRIES = tuple(map(entry, CHANGES))
BATCH = pack_batch(Logged(1, one, 0, {BODY.content_hash: BODY}) for one in ENTRIES)

VALUES: tuple[object, ...] = (None, True, 0, -1, 1 << 63, 1.5, "", b"", "\\Seen", b"h" * 16, [], {})

TARGET = Target(
    "batch",
    check,
    seeds=(b"\0" + BATCH.packed, *(b"\0" + one.pack()[_CHECK_END:] for one in ENTRIES)),
    words=(
        *map(msgpack.packb, VALUES),
        *(msgpack.packb(name) for name in ("MAIL_ADD", "MERGE", "FOLDER_MERGE", "FOLDER_ANNOTATE", "x")),
        *(b"\x91", b"\xdd\xff\xff\xff\xff", b"\xc1", b"\xc7\x0c\xff", b"\x28\xb5\x2f\xfd", BODY.packed),
    ),
    memory=4 * MIB,
    is_cut=False,
)
