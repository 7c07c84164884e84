from hypothesis import example, given
from hypothesis import strategies as st

from resync.clock import COUNTER_BITS, FOLLOWED_MAX_MS, WALL_MAX_MS, HybridClock

STEPS = st.lists(st.tuples(st.sampled_from(["tick", "observe"]), st.integers(0, 2**47 - 1)), min_size=1, max_size=30)
DECADES_AHEAD_MS = 2_500_000_000_000


@given(STEPS, st.integers(0, FOLLOWED_MAX_MS << COUNTER_BITS))
@example([("tick", 1), ("observe", DECADES_AHEAD_MS), ("tick", 2)], 0)
def test_clock_never_goes_back_and_follows_believable_stamps(steps: list[tuple[str, int]], last: int) -> None:
    wall = [0]
    clock = HybridClock(lambda: wall[0])
    clock.observe(last)
    latest = last
    for action, value in steps:
        if action == "observe":
            clock.observe(value << COUNTER_BITS)
            if value <= FOLLOWED_MAX_MS:
                latest = max(latest, value << COUNTER_BITS)
            continue
        wall[0] = value
        time = clock.tick()
        assert time > latest
        assert time >> COUNTER_BITS >= min(value, WALL_MAX_MS)
        assert time >> COUNTER_BITS <= FOLLOWED_MAX_MS
        latest = time


def test_clock_follows_the_wall_clock_when_that_is_ahead() -> None:
    wall = [7]
    clock = HybridClock(lambda: wall[0])
    assert [clock.tick(), clock.tick()] == [7 << 16, (7 << 16) + 1]
    wall[0] = 3
    assert clock.tick() == (7 << 16) + 2
    wall[0] = 8
    assert clock.tick() == 8 << 16
