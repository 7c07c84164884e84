"""GUIDs by UID, beside a dict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.mail.guids_by_uid import GuidsByUid

UIDS = st.integers(1, 12) | st.just(2**32 - 1)


@given(st.lists(st.tuples(UIDS, st.binary(min_size=16, max_size=16))))
def test_they_are_those_of_a_dict(guids: Sequence[tuple[int, bytes]]) -> None:
    ascending = sorted(guids, key=lambda one: one[0])
    found, expected = GuidsByUid(iter(ascending)), dict(ascending)
    assert found == expected
    assert [*found.items()] == [*expected.items()]
    assert len(found) == len(expected)
    for uid in range(14):
        assert (uid in found) == (uid in expected)
        assert found.get(uid) == expected.get(uid)


def test_a_uid_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        GuidsByUid([(1, bytes(16)), (3, bytes(16))])[2]
