"""Entries and errors on the wire and back."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.commands import (
    Annotate,
    Copy,
    EntryCommand,
    EntryHeader,
    Mbox,
    RefusalCode,
    Refused,
    Save,
    Saved,
    Store,
)
from protocol.stream_codec import Decoder, Encoder, ProtocolError, Request
from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidNameError,
    MailError,
    MessageTooLargeError,
    UnavailableError,
)
from replicator.mail.annotations import AT_ONCE_MAX, BYTES_AT_ONCE_MAX, NAME_MAX
from replicator.replication.links.entry_codec import (
    ANNOTATE_BYTES_MAX,
    Arrived,
    EntryAssembler,
    entry_commands,
    error_of,
    refusal,
    values_of,
)
from replicator.replication.writes.seen_changes import AT_ONCE
from replicator.store.db.entry_validation import are_annotations
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged
from resync.entry import (
    NOWHERE,
    Entry,
    MailAdd,
    MailDel,
    pack_values,
)
from tests.effort import examples
from tests.replication.links.drawn_entries import logged_entries, over_the_wire
from tests.replication.stranger import text_of

T = TypeVar("T")

NOT_COVERED = {"_digest", "_packed"}
"""Fields of an entry that are a node's own."""


@settings(max_examples=examples(75, 150), deadline=None)
@given(logged_entries())
def test_every_entry_arrives_as_it_was_sent(logged: Logged) -> None:
    (arrived,) = over_the_wire(logged)
    assert arrived.entry == logged.entry
    assert {body.content_hash: body for body in arrived.bodies} == logged.bodies
    assert arrived.memory_bytes == sum(body.memory_bytes for body in arrived.bodies)


@settings(max_examples=examples(75, 150), deadline=None)
@given(logged_entries(), st.data())
def test_entries_that_changed_on_the_way_are_refused(logged: Logged, data: st.DataObject) -> None:
    sent = bytearray(b"".join(wire_bytes(logged)))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] = data.draw(st.integers(0, 255) | st.sampled_from(b"0123456789abcdef"))
    for arrived in decoded_entries(bytes(sent)):
        assert arrived.entry.digest() == logged.entry.digest()
        assert {body.content_hash: body for body in arrived.bodies} == logged.bodies


@settings(max_examples=100)
@given(logged_entries(), st.data())
def test_digest_covers_all_fields_but_copied(logged: Logged, data: st.DataObject) -> None:
    entry, other = logged.entry, data.draw(logged_entries()).entry
    name = data.draw(st.sampled_from([one.name for one in fields(entry) if one.name not in NOT_COVERED]))
    changed = replace(entry, **{name: getattr(other, name)})
    assert (changed.digest() == entry.digest()) == (uncopied(changed) == uncopied(entry))
    assert uncopied(entry).digest() == entry.digest()


def uncopied(entry: Entry) -> Entry:
    changes = (one._replace(copied=False) if isinstance(one, MailAdd) else one for one in entry.changes)
    return replace(entry, changes=tuple(changes))


def wire_bytes(logged: Logged) -> Iterator[bytes]:
    """Encode an entry's commands, after the MBOX that a mailbox needs."""
    entry, encoder = logged.entry, Encoder()
    if not entry.is_tree:
        yield encoder.request(None, Mbox(7, entry.user, "", entry.mailbox_id, entry.uidvalidity))
    yield from (encoder.request(None, command) for command in entry_commands(logged, lambda _: 7))


def decoded_entries(data: bytes) -> list[Arrived]:
    """Decode the entries before the first error."""
    numbered: dict[int, MailboxKey] = {}

    def key_of(number: int) -> MailboxKey:
        if number not in numbered:
            raise ProtocolError(f"no mailbox has the number {number}")
        return numbered[number]

    assembler, found = EntryAssembler(key_of), list[Arrived]()
    with suppress(ProtocolError):
        for item in Decoder().feed(data):
            match item:
                case Request(_, Mbox() as mbox):
                    numbered[mbox.number] = MailboxKey.of(mbox)
                case Request(_, command) if isinstance(command, EntryCommand):
                    found += filter(None, [assembler.add(command)])
    return found


def test_body_with_wrong_hash_is_refused() -> None:
    body, wrong = text_of(b"pay 100"), text_of(b"pay 900")
    header = EntryHeader(Dot("dc1.a", 1), (), 1, 1, bytes(16))
    assembler = EntryAssembler({7: MailboxKey("alice", b"m" * 16, 7)}.__getitem__)
    save = Save((7,), 0, b"g" * 16, (), replace(body, octets=wrong.octets), 1, header)
    with pytest.raises(ProtocolError, match="does not match its hash"):
        assembler.add(save)


def test_message_without_its_body_is_sent_as_a_copy() -> None:
    add = MailAdd(1, b"g" * 16, 0, ("\\Seen",), 4, b"h" * 32, copied=False)
    entry = Entry(Dot("dc1.a", 1), (), 1, 1, "alice", b"m" * 16, 7, (add,))
    (arrived,) = over_the_wire(Logged(1, entry, 0, {}))
    assert arrived.entry.changes == (add._replace(copied=True),)
    assert arrived.bodies == []


def test_assembler_accepts_consecutive_entries() -> None:
    assembler = EntryAssembler({7: MailboxKey("alice", b"m" * 16, 7)}.__getitem__)
    entries = [
        Entry(
            Dot("dc1.a", seq), (), 1, seq, "alice", b"m" * 16, 7, (MailDel(UidSet.of([seq])), MailDel(UidSet.of([9])))
        )
        for seq in (1, 2)
    ]
    arrived = [
        assembler.add(command) for entry in entries for command in entry_commands(Logged(1, entry, 0, {}), lambda _: 7)
    ]
    assert [whole.entry for whole in arrived if whole is not None] == entries


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FolderNotFoundError, RefusalCode.NOT_FOUND),
        (FolderExistsError, RefusalCode.EXISTS),
        (InvalidNameError, RefusalCode.INVALID),
        (UnavailableError, RefusalCode.UNAVAILABLE),
        (DurabilityError, RefusalCode.DURABILITY),
        (DiskFullError, RefusalCode.DISK_FULL),
        (ContentUnavailableError, RefusalCode.NO_CONTENT),
    ],
)
def test_errors_arrive_as_they_were_raised(error: type[MailError], code: str) -> None:
    refused = refusal(error("the reason"))
    assert refused == Refused(code, "the reason")
    assert type(error_of(refused)) is error
    assert str(error_of(refused)) == "the reason"


def test_other_errors_arrive_as_unavailable() -> None:
    assert refusal(MessageTooLargeError("too large")).code == RefusalCode.UNAVAILABLE
    assert type(error_of(Refused("NEW-CODE", "text"))) is UnavailableError


@pytest.mark.parametrize("packed", [b"", b"\x01", b"\x91\x92\xa1a\xa1b", b"\x90" + bytes(ANNOTATE_BYTES_MAX)])
def test_values_of_annotations_that_make_no_sense_or_are_too_many_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        values_of(Annotate("ann", NOWHERE, packed))


def test_largest_annotations_that_a_node_takes_fit_on_the_wire() -> None:
    size_bytes = BYTES_AT_ONCE_MAX // AT_ONCE_MAX - NAME_MAX
    values = tuple((f"/private/{number:0247}", bytes(size_bytes)) for number in range(AT_ONCE_MAX))
    assert are_annotations(values)
    assert not are_annotations((*values, ("/private/more", b"")))
    (item,) = Decoder().feed(Encoder().request("t", Annotate("ann", NOWHERE, pack_values(values))))
    assert isinstance(item, Request)
    assert isinstance(item.command, Annotate)
    assert values_of(item.command) == values


def test_largest_changes_fit_on_the_wire() -> None:
    every_second = UidSet.of(range(UID_MAX - 2 * AT_ONCE, UID_MAX, 2))
    assert len(every_second.ranges) >= AT_ONCE
    copied = UidSet.of(range(UID_MAX - 2 * AT_ONCE, UID_MAX - 2, 2))
    dot = Dot("a-node-with-a-long-name.18bcfe56800405e", 10**12)
    for command in (
        Store(1, every_second, ("\\Seen",), ()),
        Copy(1, 2, copied, (b"g" * 16,) * len(copied), 0, ()),
        Save((1,), 0, b"g" * 16, (), text_of(b"x" * (1 << 20))),
        Mbox(1, "u" * 1000, "n" * 1000, b"m" * 16, 1),
    ):
        (item,) = Decoder().feed(Encoder().request("t", command))
        assert item == Request("t", command)
    Encoder().response("t", Saved(tuple(copied), (dot,)))
