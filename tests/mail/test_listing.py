from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UID_MAX
from replicator.mail.listing import ListedMessage, Listing

MESSAGES = st.builds(
    ListedMessage,
    uid=st.integers(1, UID_MAX),
    guid=st.binary(min_size=16, max_size=16),
    modseq=st.integers(0, 2**63 - 1),
    flags=st.frozensets(st.sampled_from(["\\Seen", "\\Flagged", "work"])),
    received_ms=st.integers(-(2**40), 2**40),
    saved_ms=st.none() | st.integers(-(2**40), 2**40),
)
LISTS = st.lists(MESSAGES, max_size=20, unique_by=lambda message: message.uid).map(sorted)


@given(LISTS, st.integers(0, 20), st.integers(0, 20), st.integers(0, 5))
def test_listing_is_a_sequence_of_what_it_was_made_of(
    messages: Sequence[ListedMessage], start: int, stop: int, inner: int
) -> None:
    listing, some = Listing.of(messages), messages[start:stop]
    assert [*listing] == messages
    assert [listing[at] for at in range(len(messages))] == messages
    part = listing[start:stop]
    assert [*part] == some
    assert len(part) == len(some)
    assert [*part[inner:]] == some[inner:]
    assert [*part.uids()] == [message.uid for message in some]
    assert set(listing.flag_sets) == {message.flags for message in messages}
    for message in messages:
        assert listing.find(message.uid) == message
        assert part.first_above(message.uid) == sum(one.uid <= message.uid for one in some)
        assert part.first_above(message.uid - 1) == sum(one.uid < message.uid for one in some)
        assert part.find(message.uid) == (message if message in some else None)


@given(LISTS, st.integers(0, 20), st.integers(0, 20), st.binary(min_size=1, max_size=16), st.data())
def test_listing_finds_beginnings_of_guids_alone(
    messages: Sequence[ListedMessage], start: int, stop: int, begin: bytes, data: st.DataObject
) -> None:
    part, guids = Listing.of(messages)[start:stop], [message.guid for message in messages[start:stop]]
    assert part.has_guid(begin) == any(guid.startswith(begin) for guid in guids)
    for guid in guids:
        assert part.has_guid(guid[: data.draw(st.integers(1, 16))])
        inner = guid[1 : data.draw(st.integers(2, 16))]
        assert part.has_guid(inner) == any(one.startswith(inner) for one in guids)


def test_listing_has_no_message_beyond_its_end() -> None:
    listing = Listing.of([ListedMessage(7, bytes(16), 1, frozenset(), 0, None)])
    assert listing[-1].uid == 7
    assert listing.find(6) is listing.find(8) is None
    for at in (1, -2):
        with pytest.raises(IndexError):
            listing[at]
    with pytest.raises(ValueError, match="between its ends"):
        listing[::2]
