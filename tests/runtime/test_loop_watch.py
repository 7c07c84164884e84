from __future__ import annotations

import gc
import logging
import time
from collections.abc import AsyncIterator

import pytest
import trio
from prometheus_client import CollectorRegistry

from replicator.runtime.metrics import LoopMetrics
from replicator.runtime.process import loop_watch
from replicator.runtime.process.loop_watch import LoopWatch, doing

STALL = "replicator_event_loop_stall_seconds"
CPU = "replicator_event_loop_stall_cpu_seconds"


class Clocks:
    """Clocks that stand still, except where a test holds the loop."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 1000.0
        self.registry = CollectorRegistry()
        self.watch = LoopWatch(LoopMetrics(self.registry), clock=lambda: self.wall_s, cpu_clock=lambda: self.cpu_s)

    def hold(self, wall_s: float, cpu_s: float | None = None) -> None:
        """Pass time, as work without an await does."""
        self.wall_s += wall_s
        self.cpu_s += wall_s if cpu_s is None else cpu_s

    def count(self, name: str, le: str | None = None) -> float | None:
        labels = {} if le is None else {"le": le}
        return self.registry.get_sample_value(f"{name}_{'count' if le is None else 'bucket'}", labels)


@pytest.fixture
async def clocks() -> AsyncIterator[Clocks]:
    """Clocks of a loop that is watched."""
    clocks = Clocks()
    with clocks.watch.watching():
        yield clocks


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


async def test_only_work_that_holds_the_loop_is_counted(clocks: Clocks) -> None:
    for held_s in (0.001, 0.3, 0.004):
        await trio.lowlevel.checkpoint()
        clocks.hold(held_s)
    await trio.lowlevel.checkpoint()
    assert clocks.count(STALL) == 1
    assert (clocks.count(STALL, "0.2"), clocks.count(STALL, "0.5")) == (0, 1)


async def test_short_steps_one_after_the_other_are_no_stall(clocks: Clocks) -> None:
    for _ in range(100):
        clocks.hold(0.004)
        await trio.lowlevel.checkpoint()
    assert clocks.count(STALL) == 0


async def test_waiting_is_no_stall(clocks: Clocks) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0.01)
        await trio.lowlevel.checkpoint()
        clocks.wall_s += 0.004
    assert clocks.count(STALL) == 0


async def test_time_of_the_processor_tells_heavy_work_from_a_slow_machine(
    clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    await trio.lowlevel.checkpoint()
    clocks.hold(3.0, cpu_s=0.012)
    await trio.lowlevel.checkpoint()
    assert (clocks.count(STALL, "2.0"), clocks.count(STALL, "5.0")) == (0, 1)
    assert (clocks.count(CPU, "0.01"), clocks.count(CPU, "0.02")) == (0, 1)
    [line] = lines(caplog)
    assert "seconds=3.000 cpu=0.012" in line


async def test_a_slow_machine_is_a_warning_only_if_the_stall_is_very_long(
    clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, loop_watch.__name__)
    for held_s, used_s in ((0.9, 0.04), (0.06, 0.0), (1.1, 0.04), (0.2, 0.06)):
        await trio.lowlevel.checkpoint()
        clocks.hold(held_s, used_s)
    await trio.lowlevel.checkpoint()
    said = [(record.levelname, record.message.partition(" seconds=")[2]) for record in caplog.records]
    assert said == [
        ("DEBUG", "0.900 cpu=0.040"),
        ("DEBUG", "0.060 cpu=0.000"),
        ("WARNING", "1.100 cpu=0.040"),
        ("WARNING", "0.200 cpu=0.060"),
    ]
    assert clocks.count(STALL) == 4


async def test_lines_for_debugging_take_no_room_from_warnings(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    for used_s in (*[0.0] * 2 * loop_watch.LINES_MAX, 0.06):
        await trio.lowlevel.checkpoint()
        clocks.hold(0.06, used_s)
    await trio.lowlevel.checkpoint()
    [line] = lines(caplog)
    assert "cpu=0.060" in line
    assert "unsaid" not in line


async def test_the_log_names_the_work(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    async def serve(door: str, who: str | None, what: str) -> None:
        doing(door, who, what)
        await trio.lowlevel.checkpoint()
        clocks.hold(0.12)

    async def nameless() -> None:
        clocks.hold(0.06)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "imap", "alice", "SEARCH")
        nursery.start_soon(serve, "http", None, "GET /metrics")
        nursery.start_soon(nameless)
    said = sorted(line.removeprefix("the event loop was held: ") for line in lines(caplog))
    assert said == [
        'http="GET /metrics" seconds=0.120 cpu=0.120',
        "imap=SEARCH who=alice seconds=0.120 cpu=0.120",
        f"task={nameless.__module__}.{nameless.__qualname__} seconds=0.060 cpu=0.060",
    ]


async def test_tasks_that_a_command_starts_are_that_command(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    async def part() -> None:
        clocks.hold(0.2)

    doing("peer", "dc2", "SyncNode")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(part)
    assert "peer=SyncNode who=dc2 " in lines(caplog)[0]


async def test_a_command_cannot_forge_another_line(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    doing("imap", None, 'X" seconds=99\r\n' + 1000 * "A")
    await trio.lowlevel.checkpoint()
    clocks.hold(0.2)
    await trio.lowlevel.checkpoint()
    [line] = lines(caplog)
    assert 'imap="X\\" seconds=99\\r\\nAAA' in line
    assert len(line) < 500


async def test_many_stalls_do_not_fill_the_log(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        await trio.lowlevel.checkpoint()
        clocks.hold(0.051)
    await trio.lowlevel.checkpoint()
    clocks.hold(loop_watch.LINES_WITHIN_S)
    await trio.lowlevel.checkpoint()
    assert clocks.count(STALL) == 101
    said = lines(caplog)
    assert len(said) == loop_watch.LINES_MAX + 1
    assert said[-1].endswith(f" unsaid={100 - loop_watch.LINES_MAX}")
    assert not any("unsaid" in line for line in said[:-1])


async def test_collections_of_garbage_are_told(clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    def slow(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            clocks.hold(0.4)

    gc.callbacks.append(slow)
    try:
        await trio.lowlevel.checkpoint()
        clocks.hold(0.1)
        gc.collect()
        await trio.lowlevel.checkpoint()
    finally:
        gc.callbacks.remove(slow)
    [line] = lines(caplog)
    assert "seconds=0.500 cpu=0.500 garbage=0.400" in line


async def test_real_clocks_see_real_work(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    with LoopWatch(LoopMetrics(registry)).watching():
        await trio.lowlevel.checkpoint()
        began = time.thread_time()
        while time.thread_time() - began < 0.06:
            pass
        await trio.lowlevel.checkpoint()
    assert "test_real_clocks_see_real_work" in lines(caplog)[0]
    counted, shorter = (registry.get_sample_value(*of) for of in ((f"{CPU}_count",), (f"{CPU}_bucket", {"le": "0.05"})))
    assert counted is not None
    assert shorter is not None
    assert counted - shorter == 1  # on a busy machine, other steps may last for more than the 5 ms that count
