"""Sets of UIDs as ranges say the same as sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UidSet

SETS = st.sets(st.integers(1, 20))


@given(SETS, SETS)
def test_unions_and_differences(one: set[int], other: set[int]) -> None:
    assert UidSet.of(one).union(UidSet.of(other)) == UidSet.of(one | other)
    assert UidSet.of(one).without(UidSet.of(other)) == UidSet.of(one - other)


@given(SETS, st.integers(0, 21))
def test_parts_up_to_a_uid(uids: set[int], highest: int) -> None:
    assert UidSet.of(uids).up_to(highest) == UidSet.of(uid for uid in uids if uid <= highest)


@given(SETS)
def test_uids_that_ascend_need_no_list(uids: set[int]) -> None:
    assert UidSet.ascending(iter(sorted(uids))) == UidSet.of(uids)
    assert [*UidSet.of(uids)] == sorted(uids)
