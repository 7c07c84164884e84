import pytest
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.tasks.pacing import ConvergenceWait


async def test_a_slow_node_has_less_time_until_it_is_in_time_again(autojump_clock: MockClock) -> None:
    patience = ConvergenceWait()

    async def took(after_s: float) -> tuple[float, bool]:
        """Of waiting for dc2, which is there after a while; whether it was missed."""
        began = autojump_clock.current_time()

        async def late() -> list[str]:
            return ["dc2"] if autojump_clock.current_time() < began + after_s else []

        missing = await patience.wait(["dc2"], late)
        return autojump_clock.current_time() - began, bool(missing)

    def about(seconds: float) -> object:
        return pytest.approx(seconds, abs=2 * timing.PACING_SHOW_EVERY_S)

    assert await took(timing.PACING_SHOW_TIMEOUT_S / 2) == (about(timing.PACING_SHOW_TIMEOUT_S / 2), False)
    assert await took(2 * timing.PACING_SHOW_TIMEOUT_S) == (about(timing.PACING_SHOW_TIMEOUT_S), True)
    assert await took(timing.PACING_SHOW_TIMEOUT_S / 2) == (about(timing.PACING_SLOW_TIMEOUT_S), True)
    assert await took(timing.PACING_SLOW_TIMEOUT_S / 2) == (about(timing.PACING_SLOW_TIMEOUT_S / 2), False)
    assert await took(timing.PACING_SHOW_TIMEOUT_S / 2) == (about(timing.PACING_SHOW_TIMEOUT_S / 2), False)
