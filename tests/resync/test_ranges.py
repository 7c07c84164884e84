import random
from collections import deque
from collections.abc import Mapping
from hashlib import sha256

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resync import ranges
from resync.ranges import LISTED_MAX, Answer, Comparison, Difference, Fingerprint, Fingerprints, Listing, Split
from resync.row import add

Items = Mapping[bytes, int]

HASHES = st.integers(0, 2**128 - 1)
SCATTERED = st.binary(min_size=16, max_size=16)
CLUSTERED = st.integers(0, 2**12).map(lambda number: number.to_bytes(16))  # these keys begin with 29 equal digits
SETS = st.dictionaries(st.one_of(SCATTERED, CLUSTERED), HASHES, max_size=150)


def find_difference(ours: Items, theirs: Items) -> tuple[Difference, int]:
    """Return the difference, and about how many bytes were sent to find it."""
    asked, answering = Fingerprints(ours.items()), Fingerprints(theirs.items())
    comparison, moved = Comparison(asked, answering.of("")), 0
    while not comparison.is_done:
        questions = comparison.questions()
        assert questions
        for question in questions:
            answer = answering.answer(question)
            moved += len(question) + weight(answer)
            comparison.take(question, answer)
    return comparison.difference(), moved


def weight(answer: Answer) -> int:
    pairs = answer.parts if isinstance(answer, Split) else answer.items
    return len(msgpack.packb([[first, value.to_bytes(16)] for first, value in pairs]))


def expected_difference(ours: Items, theirs: Items) -> Difference:
    return Difference(
        tuple(sorted(key for key in ours if key not in theirs)),
        tuple(sorted(key for key in theirs if key not in ours)),
        tuple(sorted(key for key in ours if key in theirs and ours[key] != theirs[key])),
    )


@given(SETS, SETS, SETS)
@example({}, {}, {b"\0" * 16: 0, b"\xff" * 16: 2**128 - 1})
def test_comparison_finds_the_difference(common: Items, one: Items, other: Items) -> None:
    ours, theirs = {**common, **one}, {**common, **other}
    assert find_difference(ours, theirs)[0] == expected_difference(ours, theirs)


@given(SETS, st.text("0123456789abcdef", max_size=32))
def test_fingerprint_covers_the_keys_with_its_prefix(items: Items, prefix: str) -> None:
    inside = {key: value for key, value in items.items() if key.hex().startswith(prefix)}
    compared = Fingerprints(items.items())
    assert compared.of(prefix) == (len(inside), add(0, *inside.values()))
    assert list(compared.items(prefix)) == sorted(inside.items())


def many(count: int) -> dict[bytes, int]:
    dice = random.Random(count)
    return {dice.randbytes(16): dice.getrandbits(128) for _ in range(count)}


def test_equal_sets_need_no_question() -> None:
    assert find_difference(many(10_000), many(10_000)) == (((), (), ()), 0)


@pytest.mark.long
def test_traffic_grows_with_the_difference_and_not_with_the_set() -> None:
    ours = many(100_000)
    changed = random.Random(0).sample(sorted(ours), 20)
    theirs = {**ours, **{key: ours[key] ^ 1 for key in changed[:10]}}
    for key in changed[10:]:
        del theirs[key]
    difference, moved = find_difference(ours, theirs)
    assert difference == (tuple(sorted(changed[10:])), (), tuple(sorted(changed[:10])))
    assert moved < 40 << 10
    _, moved_for_all = find_difference({}, ours)
    assert moved_for_all < 50 * len(ours)


def test_contradictory_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Fingerprints(many(100).items())
    split = theirs.answer("")
    assert isinstance(split, Split)
    wrong: list[Answer] = [
        Split(split.parts[:15]),
        Split((*split.parts[1:], Fingerprint(0, 0))),
        Split((*split.parts, Fingerprint(0, 0))),
        Listing(tuple(theirs.items(""))[1:]),
        Listing((*theirs.items(""), (b"x" * 16, 0))),
        Listing(tuple(reversed(list(theirs.items(""))))),
        Listing(((b"short", 0),)),
    ]
    for answer in wrong:
        comparison = Comparison(Fingerprints([]), theirs.of(""))
        with pytest.raises(ValueError, match="do not add up"):
            comparison.take("", answer)
        with pytest.raises(ValueError, match="not asked for"):
            comparison.take("", split)
    comparison = Comparison(Fingerprints([]), Fingerprint(LISTED_MAX, 0))
    monkeypatch.setattr(ranges, "ITEMS_MAX", 99)
    with pytest.raises(ValueError, match="at most 99 can be compared"):
        Comparison(Fingerprints([]), theirs.of(""))
    for prefix in ("g", "A", "0" * 33):
        with pytest.raises(ValueError, match="not a range"):
            theirs.answer(prefix)
    for items in ([(b"k" * 16, 1), (b"k" * 16, 2)], [(b"k", 1)]):
        with pytest.raises(ValueError, match="keys of a set"):
            Fingerprints(items)


def test_what_is_lacking_is_known_before_the_comparison_is_done() -> None:
    """So that a node which lacks very much need not hear of all."""
    theirs = Fingerprints((sha256(bytes([number])).digest()[:16], number) for number in range(200))
    comparison = Comparison(Fingerprints(()), theirs.of(""))
    waiting = deque(comparison.questions())
    while comparison.lacking <= 20:
        comparison.take(waiting[0], theirs.answer(waiting.popleft()))
        waiting.extend(comparison.questions())
    assert not comparison.is_done
    assert 20 < comparison.lacking < 200
