"""Which annotations count: the same on both sides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.rules.attributes import attributes_to_take, attributes_to_tell
from replicator.dsync.wire.items import Attribute, MailboxState

SINCE = MailboxState(bytes(16), 1, 1, 5)
VALUES = st.none() | st.sampled_from(["a", "b"])
SIDES = st.lists(
    st.builds(
        Attribute,
        st.booleans(),
        st.sampled_from("xy"),
        VALUES,
        changed_s=st.sampled_from([0, 0, 7]),
        modseq=st.sampled_from([0, 4, 6]),
    ),
    unique_by=lambda one: (one.shared, one.key),
)
Shown = dict[tuple[bool, str], str]


def shown(*attributes: Attribute) -> Shown:
    return {(one.shared, one.key): one.value for one in attributes if one.value is not None}


@given(SIDES, SIDES)
def test_both_sides_become_equal(own: list[Attribute], theirs: list[Attribute]) -> None:
    here = {(one.shared, one.key): one for one in own} | {
        (one.shared, one.key): one for one in attributes_to_take(own, attributes_to_tell(theirs, None), None)
    }
    there = {(one.shared, one.key): one for one in theirs} | {
        (one.shared, one.key): one for one in attributes_to_take(theirs, attributes_to_tell(own, None), None)
    }
    assert shown(*here.values()) == shown(*there.values())


def test_with_a_state_the_side_that_changed_counts() -> None:
    old, new = Attribute(False, "x", "old", changed_s=9, modseq=4), Attribute(False, "x", "new", modseq=6)  # noqa: FBT003
    assert attributes_to_take([old], [new], SINCE) == [new]
    assert attributes_to_take([new], [old], SINCE) == []
    assert attributes_to_tell([old, new], SINCE) == [new]


def test_an_annotation_that_nobody_has_is_not_removed() -> None:
    assert attributes_to_take([], [Attribute(False, "x", None, modseq=6)], SINCE) == []  # noqa: FBT003
