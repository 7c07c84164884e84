"""What is told of every command and reply: its name on the wire, and nothing of its literals."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from typing import TypeVar, cast

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import commands as c
from protocol.formatter import format_item
from protocol.parser import Request
from protocol.values import Dot, UidSet
from replicator.tracing.descriptions import NAMES, Place, describe, is_named, name_of
from resync.entry import Entry, FlagAdd, FolderCreate, MailAdd, tree_id
from tests.effort import examples
from tests.protocol import strategies
from tests.tracing.fixed_links import INBOX_ID, OTHER_ID

SECRET = b"the text of a mail"
KEY = b"k" * 16

T = TypeVar("T")


def with_secret(value: T) -> T:
    """Return the value with the secret in place of each literal."""
    if isinstance(value, tuple) and type(value) is tuple:
        return type(value)(map(with_secret, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {
        field.name: SECRET if isinstance(one, bytes) and not field.repr else with_secret(one)
        for field in fields(value)
        if (one := getattr(value, field.name)) is not None and not isinstance(one, c.EntryHeader)
    }
    return replace(value, **changed)


@pytest.mark.parametrize("kind", [*strategies.COMMANDS, *strategies.REPLIES], ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10, 100))
@given(data=st.data())
def test_literals_are_told_by_size_and_mark_only(kind: type, data: st.DataObject) -> None:
    said = cast("c.Command | c.Reply", with_secret(data.draw(strategies.of_class(kind))))
    detail = describe(said, (), KEY).detail
    assert "the text" not in detail
    assert SECRET.hex()[:20] not in detail
    assert ("{18 " in detail) == any(SECRET in octets for octets in literals_of(said))


def literals_of(value: object) -> list[bytes]:
    if isinstance(value, tuple):
        return [octets for one in value for octets in literals_of(one)]
    if not is_dataclass(value):
        return []
    own = [one for field in fields(value) if isinstance(one := getattr(value, field.name), bytes) and not field.repr]
    return own + [octets for field in fields(value) for octets in literals_of(getattr(value, field.name))]


@pytest.mark.parametrize("kind", strategies.COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10, 100))
@given(data=st.data())
def test_names_of_commands_are_those_of_the_wire(kind: type, data: st.DataObject) -> None:
    command = cast("c.Command", data.draw(strategies.of_class(kind)))
    line = format_item(Request("a", command)).decode("latin-1")
    assert line.removeprefix("a ").removeprefix("UN").replace(" ", "-").startswith(name_of(command))
    assert name_of(command) in NAMES


def test_name_stands_for_those_that_begin_with_it() -> None:
    assert {name for name in NAMES if is_named(name, "FETCH")} == {
        "FETCH-BODIES", "FETCH-CHECKPOINTS", "FETCH-GUID", "FETCH-HASH", "FETCH-PART", "FETCH-UID",
    }  # fmt: skip
    assert not is_named("SAVED", "SAVE")


def test_entry_that_a_command_brings() -> None:
    header = c.EntryHeader(Dot("dc1.a", 17), (), 1, 42, b"d" * 16, change=1, changes=3)
    told = describe(c.Store(3, UidSet.of([4, 5]), ("\\Seen",), (), entry=header), (Place("ann", INBOX_ID),), KEY)
    assert told.entries == ("dc1.a 17",)
    assert told.detail == "uids=4:5 added=(\\Seen) modseq=42 change=2/3"


def batch(*entries: Entry) -> c.Entries:
    return c.Entries(msgpack.packb([(*entry.dot, entry.pack(), [b"body"]) for entry in entries]))


def entry(seq: int, user: str, mailbox_id: bytes) -> Entry:
    add = MailAdd(1, b"g" * 16, 0, (), 1234, b"h" * 32, copied=False)
    changes = (add, FlagAdd(UidSet.of([1]), ("\\Seen",)))
    return Entry(Dot("dc1.a", seq), (), 1, 1, user, mailbox_id, 7, changes)


def test_equal_literals_have_equal_marks_by_one_key_only() -> None:
    def mark(said: c.Command | c.Reply, key: bytes) -> str:
        found = re.search(r"[0-9a-f]{8}", describe(said, (), key).detail)
        assert found is not None
        return found[0]

    for said in (c.Content(SECRET), c.Annotate("ann", b"", SECRET), c.FetchHash(sha256(SECRET).digest())):
        assert mark(said, KEY) == mark(c.Content(SECRET), KEY)
        assert mark(said, KEY) != mark(said, b"l" * 16)
        assert sha256(SECRET).hexdigest()[:8] not in describe(said, (), KEY).detail
    assert mark(c.Content(SECRET), KEY) != mark(c.Content(SECRET + b"!"), KEY)


def test_batch_is_told_by_its_entries() -> None:
    told = describe(batch(entry(4, "ann", INBOX_ID), entry(5, "bob", OTHER_ID), entry(6, "ann", INBOX_ID)), (), KEY)
    assert told.places == (Place("ann", INBOX_ID), Place("bob", OTHER_ID))
    assert told.entries == ("dc1.a 4", "dc1.a 5", "dc1.a 6")
    assert told.detail == "MailAdd=3 FlagAdd=3 bodies=3/3702B"


def test_folder_that_a_batch_makes_has_its_name_there() -> None:
    create = FolderCreate(INBOX_ID, "INBOX", 7)
    tree = Entry(Dot("dc1.a", 3), (), 1, 1, "ann", tree_id("ann"), 0, (create,))
    told = describe(batch(tree, entry(4, "ann", INBOX_ID)), (), KEY)
    assert told.places == (Place("ann", tree_id("ann"), None, is_tree=True), Place("ann", INBOX_ID, "INBOX"))


@given(strategies.literals | st.binary(max_size=200).map(lambda octets: msgpack.packb([("dc1.a", 1, octets, [])])))
def test_batch_that_makes_no_sense_is_told_by_its_size(packed: bytes) -> None:
    told = describe(c.Entries(packed), (), KEY)
    assert told.entries == ()
    assert told.detail.startswith(f"unreadable={{{len(packed)} ") or not told.detail  # a batch of nothing


@pytest.mark.parametrize(
    "item",
    [
        ("dc1.a", float("inf"), b"", []),
        (1, 1, b"", []),
        ("dc1.a", 1, msgpack.packb(([], 1, 1, ["ann"], b"i" * 16, 7, [])), []),
        ("dc1.a", 1, msgpack.packb(([], 1, 1, "ann", 1 << 60, 7, [])), []),
        ("dc1.a", 1, b"\x80" * 10_000, []),
    ],
)
def test_batch_with_values_of_other_kinds_is_no_defect(item: object) -> None:
    told = describe(c.Entries(msgpack.packb([item])), (), KEY)
    assert (told.places, told.detail[:12]) == ((), "unreadable={")
