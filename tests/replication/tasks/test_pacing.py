import pytest
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.tasks.pacing import ConvergenceWait


async def test_slow_node_gets_less_time_until_it_is_on_time_again(autojump_clock: MockClock) -> None:
    patience = ConvergenceWait()

    async def wait_for_dc2(after_s: float) -> tuple[float, bool]:
        """Wait for dc2, which is on time after so many seconds; return the time waited, and whether it was late."""
        began = autojump_clock.current_time()

        async def late() -> list[str]:
            return ["dc2"] if autojump_clock.current_time() < began + after_s else []

        missing = await patience.wait(["dc2"], late)
        return autojump_clock.current_time() - began, bool(missing)

    def about(seconds: float) -> object:
        return pytest.approx(seconds, abs=2 * timing.PACING_SHOW_EVERY_S)

    assert await wait_for_dc2(timing.PACING_SHOW_TIMEOUT_S / 2) == (about(timing.PACING_SHOW_TIMEOUT_S / 2), False)
    assert await wait_for_dc2(2 * timing.PACING_SHOW_TIMEOUT_S) == (about(timing.PACING_SHOW_TIMEOUT_S), True)
    assert await wait_for_dc2(timing.PACING_SHOW_TIMEOUT_S / 2) == (about(timing.PACING_SLOW_TIMEOUT_S), True)
    assert await wait_for_dc2(timing.PACING_SLOW_TIMEOUT_S / 2) == (about(timing.PACING_SLOW_TIMEOUT_S / 2), False)
    assert await wait_for_dc2(timing.PACING_SHOW_TIMEOUT_S / 2) == (about(timing.PACING_SHOW_TIMEOUT_S / 2), False)
