import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot, UidSet
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.checkpoints.entry_object import EntryReader, dot_of, entry_name, write_entry
from resync.entry import (
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
)
from resync.row import Row
from tests.protocol.strategies import dates, flags, hashes, ids, numbers, sids, texts, tuples_of, uid_sets, uids

DOT = Dot("dc1.b3", 7)
ROW = Row(4, DOT, 0, b"g" * 16, DOT, 9, {"\\Seen": (5, "dc1", True)}, 1000, 12, b"h" * 32)
MERGE = Merge(5, 1, (DOT,), (ROW,), (b"r" * 16,))
FOLDER = FolderState(b"m" * 16, "ann", "Work", 9, deleted=False, time=5, sid="dc1")
TREE = TreeMerge((DOT,), (FOLDER,), (SubscriptionState("ann", "Work", subscribed=True, time=5, sid="dc1"),))

lists_of_flags = tuples_of(flags)
changes = st.one_of(
    st.builds(MailAdd, uids, ids, dates, lists_of_flags, numbers, hashes, st.booleans()),
    st.builds(MailDel, uid_sets),
    st.builds(FlagAdd, uid_sets, lists_of_flags),
    st.builds(FlagDel, uid_sets, lists_of_flags),
    st.builds(FolderCreate, ids, texts, uids),
    st.builds(FolderRename, ids, texts),
    st.builds(FolderDelete, ids),
    st.builds(FolderSubscribe, texts, st.booleans()),
    st.builds(FolderAnnotate, ids, tuples_of(st.tuples(texts, st.none() | hashes))),
    st.sampled_from([MERGE, TREE]),
)


def packed(*some: Change) -> bytes:
    return b"".join(write_entry(Entry(DOT, (), 1, 1, "ann", b"m" * 16, 9, some)))


def read(data: bytes, max_changes: int = 100, max_bytes: int = 1 << 20) -> tuple[Change, ...]:
    reader = EntryReader("it", max_changes, max_bytes)
    for start in range(0, len(data), 50):
        reader.receive(data[start : start + 50])
    return reader.changes()


@given(st.lists(changes, max_size=5))
def test_changes_are_read_as_they_were_written(some: list[Change]) -> None:
    assert read(packed(*some)) == tuple(some)


def test_object_larger_than_its_entry_is_refused() -> None:
    three = (MailDel(UidSet.of([1])),) * 3
    assert read(packed(*three), max_changes=3) == three
    with pytest.raises(UnreadableError, match=r"it: damaged: it is larger than its entry$"):
        read(packed(*three), max_changes=2)
    with pytest.raises(UnreadableError, match="larger"):
        read(packed(MERGE), max_bytes=100)


@pytest.mark.parametrize("end", range(1, len(packed(MERGE)), 9))
def test_truncated_object_is_refused(end: int) -> None:
    with pytest.raises(UnreadableError):
        read(packed(MERGE)[:end])


@given(st.builds(Dot, st.builds("{}.{}".format, sids, sids), numbers))
def test_object_name_gives_the_dot_back(dot: Dot) -> None:
    assert dot_of(entry_name("mail", dot)) == dot


@pytest.mark.parametrize("name", ["", "7", "a/7", "mail/entries/dc1.b3/x", "mail/entries/dc1.b3/²", "mail/entries/a/"])
def test_other_object_names_give_no_dot(name: str) -> None:
    assert dot_of(name) is None
