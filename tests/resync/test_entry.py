from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, Stamp, UidSet
from resync.entry import (
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    tree_id,
)

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
)


@given(ENTRY)
def test_an_entry_is_the_same_after_packing(entry: Entry) -> None:
    again = Entry.unpack(entry.dot, entry.pack())
    assert again == entry
    assert [type(change) for change in again.changes] == [type(change) for change in entry.changes]
    assert again.pack() == entry.pack()


def test_a_stamp_is_the_time_and_the_node_that_numbered() -> None:
    entry = Entry(Dot("dc1.boot", 3), (), 5 << 16, 1, "alice", bytes(16), 7, (MailDel(UidSet.of([1])),))
    assert entry.stamp == Stamp(5 << 16, "dc1")
    assert entry.stamp.ms == 5
    assert not entry.is_tree


def test_a_tree_s_id_follows_from_the_user_alone() -> None:
    assert tree_id("alice") == tree_id("alice") != tree_id("bob")
    assert len(tree_id("Ünlike")) == 16
