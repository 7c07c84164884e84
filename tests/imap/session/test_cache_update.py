"""Changes that a client's cache lacks (RFC 7162 section 3.2.5)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from protocol.values import UidSet
from replicator.imap.cache_update import believed_modseq, between, known_up_to, vanished
from replicator.imap.wire.commands.command_types import MatchData

uids = st.sets(st.integers(1, 30), max_size=15)


@given(uids, uids)
def test_vanished_are_the_known_that_are_not_present(known: set[int], present: set[int]) -> None:
    gone = vanished(UidSet.of(known), sorted(present))
    assert gone == UidSet.of(known - present)


@example({11, 12}, 12, 11)
@given(uids, st.integers(0, 31), st.integers(0, 31))
def test_set_is_cut_at_both_ends(known: set[int], first: int, last: int) -> None:
    assert between(UidSet.of(known), first, last) == UidSet.of(uid for uid in known if first <= uid <= last)


@given(uids, st.sets(st.integers(1, 30)), st.sets(st.integers(31, 40)), st.sets(st.integers(1, 15)))
def test_sample_tells_up_to_where_nothing_was_missed(
    known: set[int], expunged: set[int], new: set[int], sampled: set[int]
) -> None:
    """The server finds the highest sampled message whose sequence number has not changed."""
    before, after = sorted(known), sorted((known - expunged) | new)
    numbers = [number for number in sorted(sampled) if number <= len(before)]
    pairs = [(number, before[number - 1]) for number in numbers]
    sample = MatchData(UidSet.of(numbers), UidSet.of(uid for _, uid in pairs))
    matches = [uid for number, uid in pairs if number <= len(after) and after[number - 1] == uid]
    up_to = known_up_to(sample, after)
    assert up_to == max(matches, default=0)
    assert not [uid for uid in known & expunged if uid <= up_to]


def test_huge_sample_costs_no_more_than_its_ranges() -> None:
    everything = UidSet(((1, 2**32 - 1),))
    assert known_up_to(MatchData(everything, everything), [1, 2, 4]) == 2


def test_modseq_of_another_branch_or_of_an_empty_mailbox_is_not_believed() -> None:
    assert [believed_modseq(told, 5) for told in (1, 2, 5, 6)] == [0, 2, 5, 0]
