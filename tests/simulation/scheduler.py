"""An order of tasks that follows from a seed, and tasks that can stand still.

Trio leaves to chance which of the tasks runs first that could run at once; inside `deterministic` a seed decides. A
task belongs to an `Owner` or to nobody, and so do the tasks that it starts. While its owner is frozen a task does not
run; what woke it is kept until the owner thaws, as it is for a process that was sent SIGSTOP.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio
from trio._core import _run
from trio.lowlevel import Task


class Owner:
    """Whoever tasks belong to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen_s = 0.0  # up to its last thaw
        self.is_dead = False  # its tasks unwind, and nothing that they do matters
        self._frozen_at: float | None = None
        self._kept: list[Task] = []

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    def keep(self, task: Task) -> None:
        """The task would run now."""
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


@contextmanager
def deterministic(seed: str) -> Iterator[None]:
    """For the block, inside a run of trio."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r
    _set(deterministic_scheduling=True, dice=random.Random(seed))
    runner.runq = _RunQueue(runner.runq)
    try:
        yield
    finally:
        runner.runq = deque(runner.runq)
        _set(deterministic_scheduling=before[0], dice=before[1])


def _set(*, deterministic_scheduling: bool, dice: random.Random) -> None:
    vars(_run).update(_ALLOW_DETERMINISTIC_SCHEDULING=deterministic_scheduling, _r=dice)
