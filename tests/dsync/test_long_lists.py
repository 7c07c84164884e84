"""Work on long lists: where it runs, and what it finds where it takes the list in parts."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.conversation.computing import AT_ONCE, computed, computed_each
from replicator.dsync.rules.mails import copies
from replicator.dsync.rules.mails.copies import repeated
from replicator.dsync.rules.mails.placed_mails import Placed, PlacedMails

GUIDS = st.lists(st.integers(0, 30).map(lambda number: number.to_bytes(16)), max_size=60)
PLACED = st.builds(
    Placed,
    guid=st.binary(min_size=16, max_size=16),
    uid=st.integers(1, 50),
    own=st.none() | st.integers(1, 50),
    peers=st.none() | st.integers(1, 50),
)


async def test_work_on_many_things_runs_in_a_thread() -> None:
    here = threading.get_ident()
    assert await computed(threading.get_ident, range(AT_ONCE)) == here
    assert await computed(threading.get_ident, range(AT_ONCE), range(1)) != here
    items = [(at, threading.get_ident) for at in range(2 * AT_ONCE + 1)]
    each = computed_each(((at, thread()) for at, thread in items), items)
    found = [one async for one in each]
    assert [at for at, _ in found] == [at for at, _ in items]
    assert here not in {thread for _, thread in found}


@pytest.mark.parametrize("at_once", [1, 2, 7, 1 << 18])
@given(guids=GUIDS)
def test_what_occurs_repeatedly_is_found_part_by_part(at_once: int, guids: Sequence[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_TABLE_GUIDS", at_once)
        assert repeated(lambda: iter(guids), len(guids)) == {guid for guid in guids if guids.count(guid) > 1}


@given(st.lists(PLACED, max_size=20, unique_by=lambda mail: mail.uid))
def test_mails_are_placed_in_the_order_of_their_uids(mails: Sequence[Placed]) -> None:
    placed = PlacedMails()
    for mail in mails:
        placed.add(mail)
    placed.sort()
    assert [*placed] == sorted(mails, key=lambda mail: mail.uid)
    assert [placed.find(uid) for uid in range(52)] == [
        next((mail for mail in mails if mail.uid == uid), None) for uid in range(52)
    ]
