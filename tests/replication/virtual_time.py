"""A clock whose virtual time costs a fraction of what trio's own costs: nodes that idle for minutes cost little else.

Time is a plain number (`MockClock` computes it from the real time). Trio neither looks for instruments nor uses a
generator when a cancel scope begins and ends, and asks for file descriptors only if a task waits for one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import trio
from trio._core import _run
from trio.testing import MockClock


@contextmanager
def virtual_clock() -> Iterator[MockClock]:
    """Return a clock for one run of trio inside the block. It jumps as soon as nothing is left to do."""
    clock, registering = MockClock(autojump_threshold=0), trio.CancelScope._might_change_registered_deadline
    time = _Time()
    methods = (time.start_clock, time.current_time, time.deadline_to_sleep_time, time.jump, time._autojump)
    vars(clock).update({method.__name__: method for method in methods})
    setattr(trio.CancelScope, registering.__name__, register)
    try:
        yield clock
    finally:
        setattr(trio.CancelScope, registering.__name__, registering)


class _Time:
    """The methods of the clock."""

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Take out of the run what it can do without. Called by trio when the run begins."""
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        runner.clock_autojump_threshold = 0
        runner.io_manager = cast("Any", _Descriptors(runner.io_manager, runner.entry_queue))
        assert not runner.instruments.data.get("_all"), "there are instruments"
        runner.instruments = cast("Any", NoInstruments())

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0 if deadline <= self._now else math.inf

    def jump(self, seconds: float) -> None:
        assert seconds >= 0
        self._now += seconds

    def _autojump(self) -> None:
        """Jump to the next deadline. Called by trio's loop when nothing is left to do."""
        deadline: float = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        if deadline < math.inf:
            self._now = max(self._now, deadline)


class _Descriptors:
    """Trio's wait for file descriptors. Ctrl-C needs an occasional look, threads and tasks that wait need all."""

    LOOK_EVERY = 500

    def __init__(self, manager: Any, entries: Any) -> None:
        self._manager = manager
        self._entries = entries
        self._looks = 0
        self.process_events = manager.process_events

    def get_events(self, timeout: float) -> Sequence[Any]:
        self._looks += 1
        may_skip = len(self._manager._registered) <= 1 and not self._entries.queue  # trio's own descriptor is the one
        if may_skip and timeout == 0 and self._looks % self.LOOK_EVERY:
            return ()
        events: Sequence[Any] = self._manager.get_events(timeout)
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class NoInstruments(dict[str, object]):
    """An empty set of instruments, in a dictionary that is faster to query than trio's."""

    def call(self, *_: object) -> None:
        raise AssertionError("there are no instruments")


class _Registering:
    """Replacement for the result of `CancelScope._might_change_registered_deadline`, without a generator."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        scope = self._scope
        old = scope._registered_deadline
        new = math.inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = _run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != math.inf:
                deadlines.remove(old, scope)
            if new != math.inf:
                deadlines.add(new, scope)


def register(scope: trio.CancelScope) -> _Registering:
    return _Registering(scope)
