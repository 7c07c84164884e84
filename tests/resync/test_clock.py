from hypothesis import given
from hypothesis import strategies as st

from resync.clock import COUNTER_BITS, HybridClock

STEPS = st.lists(st.tuples(st.sampled_from(["tick", "observe"]), st.integers(0, 2**47 - 1)), min_size=1, max_size=30)


@given(STEPS, st.integers(0, 2**62))
def test_it_never_goes_back_and_is_after_all_that_it_has_seen(steps: list[tuple[str, int]], last: int) -> None:
    wall = [0]
    clock = HybridClock(lambda: wall[0], last)
    latest = last
    for action, value in steps:
        if action == "observe":
            clock.observe(value << COUNTER_BITS)
            latest = max(latest, value << COUNTER_BITS)
            continue
        wall[0] = value
        time = clock.tick()
        assert time > latest
        assert time >> COUNTER_BITS >= value
        latest = time


def test_it_is_the_wall_clock_when_that_is_ahead() -> None:
    wall = [7]
    clock = HybridClock(lambda: wall[0])
    assert [clock.tick(), clock.tick()] == [7 << 16, (7 << 16) + 1]
    wall[0] = 3
    assert clock.tick() == (7 << 16) + 2
    wall[0] = 8
    assert clock.tick() == 8 << 16
