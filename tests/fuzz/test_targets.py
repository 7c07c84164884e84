"""Each target with some hundred drawn inputs; `make fuzz` tries many more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples, first
from tests.fuzz.target import LONGEST_INPUT, Target
from tests.fuzz.targets import NAMES, load

COUNTS = {"wire": (100, 400), "imap": (150, 800), "lmtp": (300, 1000), "http": (8, 60), "config": (80, 400)}
"""Inputs in `make test`, where each target may take two seconds, and in CI."""


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Draw sequences of the target's words, pieces of its seeds, and other octets."""
    pieces = st.builds(
        lambda seed, low, high: seed[low:high], st.sampled_from(target.seeds), *[st.integers(0, 200)] * 2
    )
    drawn = st.sampled_from(target.words) | pieces | st.sampled_from(target.seeds) | st.binary(max_size=4)
    sizes = st.binary(min_size=1, max_size=1)
    return st.builds(lambda size, rest: (size + b"".join(rest))[:LONGEST_INPUT], sizes, st.lists(drawn, max_size=30))


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
    for word in first(5, target.words):
        target.run_measured((b"\x3f" + word * LONGEST_INPUT)[:LONGEST_INPUT])


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
