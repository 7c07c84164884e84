"""A limit on what a node's task may compute at once, in the time of the processor and not the simulated one.

A signal comes after each half of the limit that the process has computed. If a task is then still in the same step as
at the signal before the last, that step is too long. So a watch costs nothing at each step, and does not change what
happens in a seed that keeps the limit. To that end, trio must not hear of the signal: it would wake, and turn once more
than in another run of the seed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from trio._core import _run
from trio.lowlevel import Task

from tests.simulation.runtime.scheduler import OWNER

STEP_MAX_S = 1.0
"""More than ten times what any step of a node takes here, with the work of its threads, which is done at once."""


class StepTooLongError(AssertionError):
    """A task has held the event loop."""


@contextmanager
def steps_limited(limit_s: float = STEP_MAX_S) -> Iterator[None]:
    """Raise StepTooLongError in a task with an owner once one of its steps has taken so long, or half longer.

    To be used within trio, which sets the wake-up descriptor when it starts.
    """
    began: tuple[Task, int] | None = None
    ticks = 0

    def look(*_: object) -> None:
        nonlocal began, ticks
        task = getattr(_run.GLOBAL_RUN_CONTEXT, "task", None)
        if task is None or task.context.get(OWNER) is None:
            began = None
            return
        step = task, task._schedule_points
        ticks = ticks + 1 if step == began else 0
        began = step
        if ticks == 2:
            raise StepTooLongError(f"{task.name} has held the event loop for {limit_s} s of the processor")

    before = signal.signal(signal.SIGVTALRM, look)
    wakes = signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s / 2, limit_s / 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        signal.set_wakeup_fd(wakes)
