"""Watch of the event loop: which work held it, for how long, and how much of that was the processor's time.

Whatever a task does between two awaits is a step, and while it lasts nothing else of the node goes on: no other client
is served and no PING is answered. Steps that take long are counted, and the longest ones are logged with the work that
its task said it does (`doing`).

Two clocks tell apart what an operator would do about it. Wall time is what clients feel. The processor's time of the
loop's thread is what the node itself used: if it is much less, then the machine was swapping, was suspended or was
busy with other processes. Such a step is a warning only if it is very long.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import trio

from replicator.runtime.logs.fields import LogFields
from replicator.runtime.metrics import LoopMetrics

COUNTED_S = 0.005  # shorter steps are ordinary work: a step takes 0.1 ms on average
LOGGED_S = 0.05  # a client notices that its neighbour's command delays its own
WARNED_WALL_S = 1.0  # of wall time, whatever used the processor: a PING and its answer are late, too
LINES_MAX = 10  # warnings in each `LINES_WITHIN_S`: whoever can cause stalls must not be able to fill the disk
LINES_WITHIN_S = 60.0

log = logging.getLogger(__name__)


class Work(NamedTuple):
    """The work of a task: `what` names a command or a route, `who` the client, its user or the peer, if known."""

    door: str
    who: str | None
    what: str


_work: ContextVar[Work | None] = ContextVar("work", default=None)


def doing(door: str, who: str | None, what: str) -> None:
    """Say what this task does from now on, and the tasks that it starts meanwhile, in case that holds the loop."""
    _work.set(Work(door, who, what))


class LoopWatch(trio.abc.Instrument):
    """Watch of one event loop, within `watching`. It costs about 2 µs a step, mostly for reading the clocks.

    `clock` and `cpu_clock` return seconds: of wall time, and of the processor's time that this thread has used.
    """

    def __init__(
        self,
        metrics: LoopMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._began = clock()
        self._cpu_began = cpu_clock()
        self._collecting_since: float | None = None
        self._collected_s = 0.0  # in all collections of garbage so far, in whichever thread
        self._collected_before = 0.0
        self._lines_since = -LINES_WITHIN_S
        self._lines = 0
        self._unsaid = 0

    async def run(self) -> None:
        """Watch the current event loop until cancelled."""
        with self.watching():
            await trio.sleep_forever()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the current event loop within the block."""
        trio.lowlevel.add_instrument(self)
        gc.callbacks.append(self._note_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._note_collection)
            trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - trio's signature
        """Note when the step begins."""
        self._collected_before = self._collected_s
        self._cpu_began = self._cpu_clock()
        self._began = self._clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step if it took long."""
        took_s = self._clock() - self._began
        if took_s < COUNTED_S:
            return
        cpu_s = self._cpu_clock() - self._cpu_began
        self._metrics.held(took_s, cpu_s)
        if took_s >= LOGGED_S:
            self._log(task, took_s, cpu_s)

    def _log(self, task: trio.lowlevel.Task, took_s: float, cpu_s: float) -> None:
        is_warning = cpu_s >= LOGGED_S or took_s >= WARNED_WALL_S
        if is_warning and not self._may_warn():
            return
        collected_s = self._collected_s - self._collected_before
        work = task.context.get(_work) or Work("task", None, task.name)
        fields = {
            work.door: work.what,
            "who": work.who,
            "seconds": f"{took_s:.3f}",
            "cpu": f"{cpu_s:.3f}",
            "garbage": f"{collected_s:.3f}" if collected_s else None,
            "unsaid": (is_warning and self._unsaid) or None,
        }
        if is_warning:
            self._unsaid = 0
        log.log(logging.WARNING if is_warning else logging.DEBUG, "the event loop was held: %s", LogFields(fields))

    def _may_warn(self) -> bool:
        now = self._clock()
        if now - self._lines_since >= LINES_WITHIN_S:
            self._lines_since, self._lines = now, 0
        if self._lines == LINES_MAX:
            self._unsaid += 1
            return False
        self._lines += 1
        return True

    def _note_collection(self, phase: str, _info: Mapping[str, int]) -> None:
        if phase == "start":
            self._collecting_since = self._clock()
        elif self._collecting_since is not None:
            self._collected_s += self._clock() - self._collecting_since
            self._collecting_since = None
