from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UidSet
from replicator.mail.compact_uids import CompactUids

HIGHEST = 20
SETS = st.frozensets(st.integers(1, HIGHEST))


def compact(uids: AbstractSet[int]) -> CompactUids:
    return CompactUids.ascending(sorted(uids))


@given(st.lists(st.integers(1, HIGHEST)))
def test_uids_are_added_in_any_order(uids: Sequence[int]) -> None:
    growing = CompactUids()
    growing.update(uids)
    assert growing == compact({*uids})
    assert {uid for uid in range(HIGHEST + 2) if uid in growing} == {*uids}


@given(SETS, SETS, st.integers(0, HIGHEST + 1))
def test_sets_are_those_of_their_uids(one: AbstractSet[int], other: AbstractSet[int], highest: int) -> None:
    first, second = compact(one), compact(other)
    assert [*first] == sorted(one)
    assert (len(first), bool(first)) == (len(one), bool(one))
    assert [*first.union(second)] == sorted(one | other)
    assert [*first.without(second)] == sorted(one - other)
    assert [*first.up_to(highest)] == [uid for uid in sorted(one) if uid <= highest]
    assert first.as_uid_set() == UidSet.of(one)
    assert CompactUids(UidSet.of(one).ranges) == first
    assert first.range_count == len(UidSet.of(one).ranges)
    assert (first == second) == (one == other)


@given(SETS)
def test_a_packed_set_is_unpacked(uids: AbstractSet[int]) -> None:
    packed = compact(uids).packed()
    assert len(packed) == 8 * compact(uids).range_count
    assert CompactUids.unpacked(packed) == compact(uids)


def test_uids_are_packed_with_their_lowest_octet_first() -> None:
    assert CompactUids([(1, 2), (2**32 - 2, 2**32 - 2)]).packed().hex(" ", 4) == "01000000 feffffff 02000000 feffffff"


@pytest.mark.parametrize("packed", ["01", "01000000", "02000000 01000000", "01000000 02000000 01000000 02000000"])
def test_what_is_no_set_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match="its ranges of UIDs"):
        CompactUids.unpacked(bytes.fromhex(packed))
