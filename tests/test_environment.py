"""What the system tells a node of time."""

import sys
import time

import pytest

from replicator.runtime.environment import suspended_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_the_time_for_which_a_machine_slept_is_what_one_clock_counts_beyond_the_other() -> None:
    slept_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert suspended_s() == pytest.approx(slept_s, abs=1)
