"""Annotations that count, the same on both sides, and the keys under which they are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.node_mail.attribute_keys import CONFIGURED, OF_SERVER, AnnotationName, key_of, name_of
from replicator.dsync.rules.attributes import attributes_to_take, attributes_to_tell
from replicator.dsync.wire.items import Attribute, MailboxState
from replicator.mail.annotations import SPECIAL_USE

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


@pytest.mark.parametrize("of_account", [False, True])
@pytest.mark.parametrize("name", ["/private/comment", "/shared/vendor/example/x", "/private/vendor/vendor.other/x"])
def test_names_come_back_from_their_keys(name: str, *, of_account: bool) -> None:
    told = key_of(name, of_account=of_account)
    assert told is not None
    shared, key = told
    assert key.startswith(OF_SERVER) == of_account
    assert name_of(key, shared=shared, is_inbox=True) == AnnotationName(name, of_account)
    if of_account:
        assert name_of(key, shared=shared, is_inbox=False) is None


@pytest.mark.parametrize(
    ("name", "of_account"),
    [
        (SPECIAL_USE, False),
        (f"/private/{OF_SERVER}comment", False),
        (f"/private/{OF_SERVER}comment", True),
        ("/private/vendor/vendor.dovecot/pvt/x", False),
        ("/private/sieve/default", True),
        *((name, True) for name in CONFIGURED),
    ],
)
def test_what_is_dovecots_own_is_not_told(name: str, *, of_account: bool) -> None:
    assert key_of(name, of_account=of_account) is None
