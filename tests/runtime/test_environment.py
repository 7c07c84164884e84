"""Clocks of the operating system."""

import sys
import time

import pytest

from replicator.runtime.environment import suspended_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_time_of_sleep_is_the_difference_of_two_clocks() -> None:
    slept_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert suspended_s() == pytest.approx(slept_s, abs=1)
