import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot
from resync import bulk
from resync.bulk import Item
from resync.entry import NOWHERE, AnnotationState, FolderState, SubscriptionState
from resync.ranges import Answer, Fingerprint, Listing, Split
from resync.row import Row

NUMBER = st.integers(0, 2**63 - 1)
KEY = st.binary(min_size=16, max_size=16)
HASH = st.integers(0, 2**128 - 1)
NAME = st.text(max_size=20)
DOT = st.builds(Dot, st.text(max_size=9), NUMBER)
FLAG_STATES = st.dictionaries(NAME, st.tuples(NUMBER, NAME, st.booleans()), max_size=3)
ROW = st.builds(
    Row,
    NUMBER,
    DOT,
    NUMBER,
    KEY,
    DOT,
    NUMBER,
    FLAG_STATES,
    st.integers(-(2**60), 2**60),
    NUMBER,
    st.binary(max_size=32),
    st.lists(st.tuples(DOT, NUMBER), max_size=2).map(tuple),
    st.none() | NUMBER,
)
ITEM: st.SearchStrategy[Item] = st.one_of(
    ROW,
    st.builds(FolderState, KEY, NAME, NAME, NUMBER, st.booleans(), NUMBER, NAME),
    st.builds(SubscriptionState, NAME, NAME, st.booleans(), NUMBER, NAME),
    st.builds(AnnotationState, NAME, st.just(NOWHERE) | KEY, NAME, st.none() | st.binary(max_size=9), NUMBER, NAME),
)
ANSWER: st.SearchStrategy[Answer] = st.one_of(
    st.lists(st.builds(Fingerprint, NUMBER, HASH), min_size=16, max_size=16).map(lambda parts: Split(tuple(parts))),
    st.lists(st.tuples(KEY, HASH), max_size=9).map(lambda items: Listing(tuple(items))),
)


@given(st.lists(ITEM, max_size=9), st.lists(ANSWER, max_size=9), st.lists(KEY, max_size=9))
def test_everything_is_the_same_after_packing(items: list[Item], answers: list[Answer], keys: list[bytes]) -> None:
    again = bulk.unpack_items(bulk.pack_items(items))
    assert again == items
    assert [type(item) for item in again] == [type(item) for item in items]
    assert [bulk.hash_of(item) for item in again] == [bulk.hash_of(item) for item in items]
    assert bulk.unpack_answers(bulk.pack_answers(answers)) == answers
    assert bulk.unpack_keys(bulk.pack_keys(keys)) == keys


@given(ITEM, ITEM)
def test_different_items_have_different_hashes(one: Item, other: Item) -> None:
    assert (bulk.hash_of(one) == bulk.hash_of(other)) == (one == other and type(one) is type(other))


@pytest.mark.parametrize(
    "packed",
    [b"", b"\xc1", b"\x01", b"\x91\x01", b"\x91\x92\x01\x02", b"\x91\x92\xc3\x91\x01", b"\x91\xa1x", b"\xff" * 9],
)
def test_invalid_data_is_refused(packed: bytes) -> None:
    for unpack in (bulk.unpack_items, bulk.unpack_answers, bulk.unpack_keys):
        with pytest.raises(ValueError, match="not data of a SYNC"):
            unpack(packed)
