"""Each target with some hundred drawn inputs; `make fuzz` tries many more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples, first
from tests.fuzz.target import LONGEST_INPUT, PIECE_SIZES, Target
from tests.fuzz.targets import NAMES, load

COUNTS = {
    "wire": (40, 200),
    "batch": (75, 400),
    "imap": (75, 400),
    "session": (5, 30),
    "lmtp": (60, 500),
    "http": (5, 30),
    "config": (40, 200),
}
"""Inputs in `make test`, where each target may take a second, and in CI."""


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Draw seeds with words in them, one after the other, and cuts of any size: most commands stay right."""
    words = st.lists(st.sampled_from(target.words) | st.binary(max_size=4), max_size=3).map(b"".join)
    changed = st.builds(
        lambda seed, start, word, gap: seed[:start] + word + seed[start + gap :],
        st.sampled_from(target.seeds),
        st.integers(1, 200),
        words,
        st.sampled_from([0, 0, 1, 5, 50]),
    )
    first = st.sampled_from(range(len(PIECE_SIZES))).map(lambda size: bytes([size]))
    cut = st.builds(lambda size, rest: size + rest[1:] if target.is_cut else rest, first, changed)
    more = st.lists(words | changed.map(lambda seed: seed[1:] if target.is_cut else seed), max_size=4).map(b"".join)
    longest = 1024 if target.is_cut else LONGEST_INPUT  # reading them octet by octet takes time
    return st.builds(lambda one, others: (one + others)[:longest], cut, more)


@pytest.mark.parametrize("name", NAMES)
def test_target_keeps_its_rules(name: str) -> None:
    target = load(name)
    target.warm_up()

    @settings(max_examples=examples(*COUNTS[name]))
    @given(inputs(target))
    def try_inputs(data: bytes) -> None:
        target.run(data)

    try_inputs()


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_bounded(name: str) -> None:
    target = load(name)
    target.warm_up()
    for word in first(2, target.words):
        target.run_measured((b"\x07" + word * 2048)[:2048])


def test_work_that_is_done_once_counts_for_no_input() -> None:
    """The lexer of IMAP compiles its largest expression at the first error: 33,000 calls, for an input of any size."""
    done: list[None] = []

    def nothing() -> None:
        pass

    def cold(_data: bytes) -> None:
        for _ in range(0 if done else 200):
            nothing()
        done.append(None)

    Target("cold", cold, (), (), calls=100, calls_per_octet=0).run(b"x")
    assert len(done) == 2


def test_unbounded_work_and_memory_are_noticed() -> None:
    def nothing() -> None:
        pass

    def slow(data: bytes) -> None:
        for _ in data:
            nothing()

    target = Target("slow", slow, (b"",), (), calls=100, calls_per_octet=0, memory=1 << 10, memory_per_octet=0)
    target.run(bytes(50))
    with pytest.raises(AssertionError, match="calls for 200 octets; the bound is 100"):
        target.run(bytes(200))

    def large(_data: bytes) -> None:
        bytes(1 << 20)

    with pytest.raises(AssertionError, match="of memory for 1 octets; the bound is 1024"):
        Target("large", large, (), (), 100, 0, 1 << 10, 0).run_measured(b"x")
