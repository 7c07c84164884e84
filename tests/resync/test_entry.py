from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, Stamp, UidSet
from resync.entry import (
    NOWHERE,
    AnnotationState,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    SubscriptionState,
    TreeMerge,
    anchor,
    pack_change,
    pack_values,
    row_from,
    tree_id,
    unpack_change,
    unpack_values,
)
from resync.row import Placement, Row, fingerprint

NUMBER = st.integers(0, 2**63 - 1)
ID = st.binary(min_size=16, max_size=16)
NAME = st.text(max_size=20)
FLAGS = st.lists(st.sampled_from(["\\Seen", "$Later", "Ünlike"]), max_size=3).map(tuple)
UIDS = st.sets(st.integers(1, UID_MAX), max_size=9).map(UidSet.of)
DOT = st.builds(Dot, st.text(max_size=9), NUMBER)
CHANGE: st.SearchStrategy[Change] = st.one_of(
    st.builds(MailAdd, st.integers(1, UID_MAX), ID, NUMBER, FLAGS, NUMBER, st.binary(max_size=32), st.booleans()),
    st.builds(MailDel, UIDS),
    st.builds(FlagAdd, UIDS, FLAGS),
    st.builds(FlagDel, UIDS, FLAGS),
    st.builds(FolderCreate, ID, NAME, st.integers(1, UID_MAX)),
    st.builds(FolderRename, ID, NAME),
    st.builds(FolderDelete, ID),
    st.builds(FolderSubscribe, NAME, st.booleans()),
    st.builds(FolderAnnotate, ID, st.lists(st.tuples(NAME, st.none() | st.binary(max_size=9)), max_size=3).map(tuple)),
)
ENTRY = st.builds(
    Entry,
    DOT,
    st.lists(DOT, max_size=2).map(tuple),
    NUMBER,
    NUMBER,
    NAME,
    ID,
    st.integers(0, UID_MAX),
    st.lists(CHANGE, max_size=4).map(tuple),
    st.none() | st.lists(ID, max_size=2).map(tuple),
    st.booleans(),
)


@given(ENTRY)
def test_entry_is_the_same_after_packing(entry: Entry) -> None:
    again = Entry.unpack(entry.dot, entry.pack())
    assert again == entry
    assert [type(change) for change in again.changes] == [type(change) for change in entry.changes]
    assert again.pack() == entry.pack()


@given(ENTRY, st.data())
def test_altered_byte_of_a_packed_entry_is_found(entry: Entry, data: st.DataObject) -> None:
    packed = bytearray(entry.pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises((ValueError, TypeError)):
        Entry.unpack(entry.dot, bytes(packed))
    assert not entry.is_packed_as(bytes(packed))


def test_packed_entry_under_the_name_of_another_is_found() -> None:
    entry = Entry(Dot("dc1.boot", 3), (), 5 << 16, 1, "alice", bytes(16), 7, (MailDel(UidSet.of([1])),))
    for dot in (Dot("dc1.boot", 4), Dot("dc2.boot", 3)):
        with pytest.raises(ValueError, match="altered"):
            Entry.unpack(dot, entry.pack())


@given(ENTRY)
def test_entry_that_was_packed_without_a_check_can_be_read(entry: Entry) -> None:
    without = entry.pack()[17:]
    assert Entry.unpack(entry.dot, without) == entry
    assert entry.is_packed_as(without)


def test_stamp_has_the_time_and_the_sid_of_its_entry() -> None:
    entry = Entry(Dot("dc1.boot", 3), (), 5 << 16, 1, "alice", bytes(16), 7, (MailDel(UidSet.of([1])),))
    assert entry.stamp == Stamp(5 << 16, "dc1")
    assert entry.stamp.ms == 5
    assert not entry.is_tree


def test_save_date_is_the_time_of_the_stamp() -> None:
    entry = Entry(Dot("dc1.boot", 3), (), (5 << 16) + 9, 1, "alice", bytes(16), 7, (ADD,), (), dated=True)
    assert entry.saved_ms == 5
    assert replace(entry, dated=False).saved_ms is None


@pytest.mark.parametrize("histories", [None, (bytes(16),)])
def test_entry_without_save_dates_is_packed_as_before_there_were_any(histories: tuple[bytes, ...] | None) -> None:
    entry = Entry(Dot("dc1.boot", 3), (Dot("dc1.boot", 2),), 5, 1, "alice", bytes(16), 7, (ADD,), histories)
    fields = msgpack.unpackb(entry.pack()[17:])
    assert fields[7:] == ([] if histories is None else [[bytes(16)]])
    assert replace(entry, dated=True).digest() != entry.digest()


def test_tree_id_follows_from_the_user_alone() -> None:
    assert tree_id("alice") == tree_id("alice") != tree_id("bob")
    assert len(tree_id("Ünlike")) == 16


def test_merge_is_the_same_after_packing_and_invalid_ones_are_refused() -> None:
    row = Row(3, Dot("dc1.x", 1), 0, b"g" * 16, Dot("dc2.y", 9), 7, {"\\Seen": (5, "dc1", True)}, 0, 4, b"h" * 32)
    merge = Merge(9, 3, (Dot("dc1.x", 4), Dot("dc2.y", 9)), (row,), (b"r" * 16,))
    folder = FolderState(b"m" * 16, "alice", "Work", 7, deleted=True, time=5, sid="dc1")
    dated = merge._replace(rows=(row._replace(saved_ms=5), row._replace(also=((Dot("dc2.y", 3), 0),), saved_ms=0)))
    tree = TreeMerge((Dot("dc1.x", 4),), (folder,), (SubscriptionState("alice", "Work", True, 5, "dc1"),))  # noqa: FBT003
    note = AnnotationState("alice", b"m" * 16, "/private/comment", b"\xff", 5, "dc1")
    annotated = tree._replace(annotations=(note, note._replace(mailbox_id=NOWHERE, value=None)))
    for change in (merge, dated, tree, annotated):
        assert unpack_change(pack_change(change)) == change
    invalid_merges: list[Merge | TreeMerge] = [
        merge._replace(uidnext="9"),  # type: ignore[arg-type]
        merge._replace(rows=(row._replace(uid="3"),)),  # type: ignore[arg-type]
        merge._replace(rows=(row._replace(flags={"\\Seen": (5, "dc1", 1)}),)),  # type: ignore[dict-item]
        merge._replace(rows=(row._replace(saved_ms="5"),)),  # type: ignore[arg-type]
        merge._replace(removed=("r",)),  # type: ignore[arg-type]
        tree._replace(folders=(folder._replace(deleted=1),)),  # type: ignore[arg-type]
        tree._replace(annotations=(note._replace(value="text"),)),  # type: ignore[arg-type]
        tree._replace(annotations=(note._replace(mailbox_id=None),)),  # type: ignore[arg-type]
    ]
    for invalid in invalid_merges:
        with pytest.raises(ValueError, match="not a change"):
            unpack_change(pack_change(invalid))
    for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\xa8MAIL_DEL", pack_change(merge)[:-1]):
        with pytest.raises(ValueError, match="not a change"):
            unpack_change(garbage)


def test_merge_without_annotations_is_packed_as_before_there_were_any() -> None:
    tree = TreeMerge((Dot("dc1.x", 4),), (), ())
    assert msgpack.unpackb(pack_change(tree)) == ["FOLDER_MERGE", [["dc1.x", 4]], [], []]


def test_values_of_annotations_are_the_same_after_packing_and_invalid_ones_are_refused() -> None:
    values = (("/private/comment", b"\x00\xff"), ("/shared/comment", None))
    assert unpack_values(pack_values(values)) == values
    for invalid in (b"", b"\xc1", b"\x01", b"\x91\x01", b"\x91\x92\xa1a\xa1b", b"\x91\x92\x01\xc0"):
        with pytest.raises(ValueError, match="not values of annotations"):
            unpack_values(invalid)


@pytest.mark.parametrize(
    ("also", "saved_ms", "length"),
    [((), None, 10), (((Dot("dc2.y", 3), 0),), None, 11), ((), 5, 12), (((Dot("dc2.y", 3), 0),), 5, 12)],
)
def test_row_is_packed_and_hashed_without_what_it_lacks(
    also: tuple[Placement, ...], saved_ms: int | None, length: int
) -> None:
    """So rows that earlier versions have stored keep their digests."""
    row = Row(3, Dot("dc1.x", 1), 0, b"g" * 16, Dot("dc1.x", 1), 7, {}, 0, 4, b"h" * 32, also, saved_ms)
    assert row.packed() == tuple(row)[:length]
    assert row.fingerprint() == fingerprint((*row[:6], [], *row[7:length]))


@pytest.mark.parametrize("more", [[()], [(), None], [(), 5, 5], [((("dc2.y", 3), 0),), None]])
def test_row_that_is_not_packed_in_its_shortest_form_is_refused(more: list[object]) -> None:
    row = Row(3, Dot("dc1.x", 1), 0, b"g" * 16, Dot("dc1.x", 1), 7, {}, 0, 4, b"h" * 32)
    assert row_from((*row.packed(), (), 5)) == row._replace(saved_ms=5)
    with pytest.raises((TypeError, ValueError)):
        row_from((*row.packed(), *more))


ADD = MailAdd(1, bytes(16), 0, (), 4, bytes(32), copied=False)
FIRST = Entry(Dot("dc1.a", 1), (), 1, 1, "alice", bytes(16), 7, (ADD,), ())
NEXT = Entry(Dot("dc1.a", 2), (FIRST.dot,), 2, 2, "alice", bytes(16), 7, (MailDel(UidSet.of([1])),), (FIRST.history,))
OF_BEFORE = replace(FIRST, histories=None)


@pytest.mark.parametrize(
    "altered",
    [
        replace(FIRST, time=2),
        replace(FIRST, dot=Dot("dc2.a", 1)),
        replace(FIRST, changes=(ADD._replace(content_hash=b"h" * 32),)),
        replace(FIRST, changes=(ADD._replace(flags=("\\Seen",)),)),
        OF_BEFORE,
    ],
)
def test_history_covers_everything_below(altered: Entry) -> None:
    assert altered.history != FIRST.history
    assert replace(NEXT, histories=(altered.history,)).history != NEXT.history
    assert NEXT.stands_on(FIRST.dot, FIRST.history)
    assert not NEXT.stands_on(FIRST.dot, altered.history)
    assert not NEXT.stands_on(NEXT.dot, FIRST.history)


def test_history_of_an_entry_of_an_earlier_version_follows_from_its_name() -> None:
    assert OF_BEFORE.history == anchor(FIRST.dot) == replace(OF_BEFORE, time=5).history
    assert anchor(FIRST.dot) != anchor(NEXT.dot)
    below = replace(NEXT, histories=None)
    assert below.stands_on(FIRST.dot, anchor(FIRST.dot))
    assert not below.stands_on(FIRST.dot, FIRST.history), "leaving out the histories must not pass for one that fits"
    assert replace(NEXT, histories=(OF_BEFORE.history,)).stands_on(FIRST.dot, OF_BEFORE.history)


def test_merge_stands_on_each_of_its_histories() -> None:
    other = replace(FIRST, dot=Dot("dc2.a", 1))
    merge = replace(NEXT, predecessors=(FIRST.dot, other.dot), histories=(FIRST.history, other.history))
    assert merge.stands_on(FIRST.dot, FIRST.history)
    assert merge.stands_on(other.dot, other.history)
    assert not merge.stands_on(FIRST.dot, other.history)
    of_one = replace(NEXT, predecessors=(FIRST.dot, FIRST.dot), histories=(FIRST.history, other.history))
    assert of_one.stands_on(FIRST.dot, FIRST.history)
    assert of_one.stands_on(FIRST.dot, other.history)
