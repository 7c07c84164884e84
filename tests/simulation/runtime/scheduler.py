"""Deterministic scheduling: an order of tasks drawn from a seed, tasks that can be frozen, and time that jumps ahead.

Trio leaves it to chance which of several runnable tasks runs first; inside `deterministic` a seed decides. A task may
belong to an `Owner`, and the tasks that it starts then belong to the same one. While its owner is frozen a task does
not run; its wake-up is kept until the owner thaws, as for a process that was sent SIGSTOP.

Inside `deterministic`, time is a plain number (`MockClock` itself would compute it from the real time), the program
waits for no file descriptor, and trio neither looks for instruments nor uses a generator when a cancel scope begins and
ends. Each of these would cost more than most of what tasks do between two jumps.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import trio
from trio._core import _run
from trio.lowlevel import Abort, Task
from trio.testing import MockClock

from tests.replication.virtual_time import NoInstruments, register


class Owner:
    """The owner of tasks, such as a node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen_s = 0.0  # up to its last thaw
        self.is_dead = False  # its tasks end, and nothing that they do counts
        self._frozen_at: float | None = None
        self._kept: list[Task] = []

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    def keep(self, task: Task) -> None:
        """Keep a task that would run now."""
        self._kept.append(task)

    def freeze(self) -> None:
        assert not self.frozen
        self._frozen_at = trio.current_time()

    def thaw(self) -> None:
        if self._frozen_at is None:
            return
        self.frozen_s += trio.current_time() - self._frozen_at
        self._frozen_at = None
        kept, self._kept = self._kept, []
        _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(kept)


OWNER: ContextVar[Owner | None] = ContextVar("OWNER", default=None)


class _RunQueue(deque[Task]):
    def append(self, task: Task, /) -> None:
        owner = task.context.get(OWNER)
        if owner is not None and owner.frozen:
            owner.keep(task)
        else:
            super().append(task)


class _Time:
    """The methods of a `MockClock` that jumps as soon as nothing is left to do; `rule` installs them."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, Task]] = []  # a heap; the number keeps the order of equal times
        self._slept = 0

    @contextmanager
    def rule(self, clock: MockClock) -> Iterator[None]:
        """Replace the clock's methods."""
        began, before = self._now, dict(vars(clock))
        methods = (self.current_time, self.deadline_to_sleep_time, self._autojump)
        vars(clock).update({method.__name__: method for method in methods})
        try:
            yield
        finally:
            for method in methods:
                del vars(clock)[method.__name__]
            vars(clock).update(before)
            clock.jump(self._now - began)

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0 if deadline <= self._now else math.inf

    def _autojump(self) -> None:
        """Jump to the next deadline. Called by trio's loop when nothing is left to do."""
        deadline: float = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        upcoming = min(deadline, self._sleepers[0][0]) if self._sleepers else deadline
        if upcoming < math.inf:
            self._now += max(0.0, upcoming - self._now)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            trio.lowlevel.reschedule(heapq.heappop(self._sleepers)[2])

    async def sleep(self, seconds: float) -> None:
        """Sleep, not abandoned on cancellation."""
        self._slept += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._slept, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(lambda _: Abort.FAILED)


class _Dice(random.Random):
    def shuffle(self, x: MutableSequence[Any]) -> None:
        if len(x) > 1:
            super().shuffle(x)


_TIME: ContextVar[_Time] = ContextVar("_TIME")


async def sleep_shielded(seconds: float) -> None:
    """Sleep as `trio.sleep` in a shielded scope, for a fraction of its cost. Only inside `deterministic`."""
    await _TIME.get().sleep(seconds)


class _Idle:
    """Trio's wait for file descriptors, of which only that of Ctrl-C exists: an occasional look is enough."""

    LOOK_EVERY = 500

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._ticks = 0
        self.process_events = manager.process_events

    def get_events(self, timeout: float) -> Sequence[Any]:
        self._ticks += 1
        if timeout == 0 and self._ticks % self.LOOK_EVERY:
            return ()
        events: Sequence[Any] = self._manager.get_events(timeout)
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@contextmanager
def deterministic(seed: str) -> Iterator[None]:
    """Make the block deterministic, inside a run of trio whose clock jumps."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    clock, manager = runner.clock, runner.io_manager
    assert isinstance(clock, MockClock)
    assert clock.autojump_threshold == 0, "time is virtual"
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r
    time = _Time(clock.current_time())
    token = _TIME.set(time)
    instruments, registering = runner.instruments, trio.CancelScope._might_change_registered_deadline
    assert not instruments.data.get("_all"), "there are instruments"
    _set(deterministic_scheduling=True, dice=_Dice(seed))
    runner.runq, runner.io_manager = _RunQueue(runner.runq), cast("Any", _Idle(manager))
    runner.instruments = cast("Any", NoInstruments())
    setattr(trio.CancelScope, registering.__name__, register)
    try:
        with time.rule(clock):
            yield
    finally:
        setattr(trio.CancelScope, registering.__name__, registering)
        runner.instruments = instruments
        runner.runq, runner.io_manager = deque(runner.runq), manager
        _set(deterministic_scheduling=before[0], dice=before[1])
        _TIME.reset(token)


def _set(*, deterministic_scheduling: bool, dice: random.Random) -> None:
    vars(_run).update(_ALLOW_DETERMINISTIC_SCHEDULING=deterministic_scheduling, _r=dice)
