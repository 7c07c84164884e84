from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.sequence_numbers import Numbering
from replicator.imap.wire.sequence_set import SequenceSet

UIDS = st.lists(st.integers(1, 60), unique=True).map(sorted)
ENDS = st.one_of(st.none(), st.integers(1, 60))
SETS = st.lists(st.tuples(ENDS, ENDS), min_size=1, max_size=4).map(lambda ranges: SequenceSet(tuple(ranges)))


def numbering_of(uids: list[int]) -> Numbering:
    numbering = Numbering()
    numbering.append(uids)
    return numbering


@given(UIDS, SETS)
def test_uid_sets_resolve_like_a_naive_reading(uids: list[int], numbers: SequenceSet) -> None:
    numbering = numbering_of(uids)
    largest = max(uids, default=0)
    meant = set()
    for a, b in numbers.ranges:
        low, high = sorted((largest if a is None else a, largest if b is None else b))
        meant |= {uid for uid in uids if low <= uid <= high}
    runs = numbering.resolve(numbers, by_uid=True)
    assert runs is not None
    assert list(numbering.pairs(runs)) == [(n, uid) for n, uid in enumerate(uids, 1) if uid in meant]


@given(UIDS, SETS)
def test_set_with_a_number_beyond_the_last_is_refused_whole(uids: list[int], numbers: SequenceSet) -> None:
    numbering = numbering_of(uids)
    runs = numbering.resolve(numbers, by_uid=False)
    ends = [len(uids) if end is None else end for ends in numbers.ranges for end in ends]
    if runs is None:
        assert max(ends) > len(uids) or not uids
        return
    for number, uid in numbering.pairs(runs):
        assert uids[number - 1] == uid
        assert min(ends) <= number <= max(ends)


def test_star_in_an_empty_mailbox_selects_no_message() -> None:
    assert Numbering().resolve(SequenceSet(((1, None),)), by_uid=False) == []
    assert Numbering().resolve(SequenceSet(((1, 1),)), by_uid=False) is None
    assert not list(Numbering().pairs(Numbering().resolve(SequenceSet(((1, None),)), by_uid=True) or []))


@given(UIDS, st.sets(st.integers(1, 60)))
def test_expunge_responses_lead_to_the_same_messages(uids: list[int], gone: set[int]) -> None:
    numbering = numbering_of(uids)
    client = list(uids)
    for number in numbering.expunge(gone):
        del client[number - 1]
    assert client == list(numbering.uids) == [uid for uid in uids if uid not in gone]


def test_recent_counts_only_announced_messages_above_the_claim() -> None:
    numbering = numbering_of([3, 5, 8])
    numbering.mark_recent(5, 8)
    assert numbering.recent_count == 2
    numbering.append([9, 10])
    numbering.mark_recent(11, 10)  # claimed by another session
    assert numbering.recent_count == 2
    numbering.append([12])
    numbering.mark_recent(11, 12)
    numbering.expunge([5])
    assert [uid for uid in numbering.uids if uid in numbering.recent] == [8, 12]
    assert numbering.recent_count == 2


@given(UIDS, st.sets(st.integers(1, 60)), st.permutations(["append", "expunge"]))
def test_uids_that_sessions_share_stay_as_they_are(uids: list[int], gone: set[int], order: list[str]) -> None:
    shared = array("I", uids)
    numbering, other = Numbering(shared), Numbering(shared)
    for change in order:
        if change == "append":
            numbering.append([70, 71])
        else:
            numbering.expunge(gone)
    other.append([80])
    assert list(numbering.uids) == [*(uid for uid in uids if uid not in gone), 70, 71]
    assert list(other.uids) == [*uids, 80]
    assert list(shared) == uids
