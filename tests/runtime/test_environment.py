"""Clocks of the operating system; names."""

import random
import sys
import time

import pytest

from replicator.runtime.environment import Environment, suspended_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_time_of_sleep_is_the_difference_of_two_clocks() -> None:
    slept_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert suspended_s() == pytest.approx(slept_s, abs=1)


def test_names_given_at_one_time_are_neighbours() -> None:
    now_ms = 1_700_000_000_000
    environment = Environment(clock_ms=lambda: now_ms, random=random.Random(1))
    first = [environment.new_guid() for _ in range(100)]
    now_ms += 1
    then = [environment.new_guid() for _ in range(100)]
    assert max(first) < min(then)
    assert len({*first, *then}) == 200
    assert {len(name) for name in first} == {16}


def test_time_in_names_begins_anew() -> None:
    environment = Environment(clock_ms=lambda: (1 << 32) - 1, random=random.Random(1))
    later = Environment(clock_ms=lambda: 1 << 32, random=random.Random(1))
    assert later.new_guid()[:4] < environment.new_guid()[:4]
