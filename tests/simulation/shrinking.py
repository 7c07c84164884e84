"""A smaller plan that breaks the same promise as a large one: what a failure needs, and little else.

Greedy: what can be left out is left out, the large pieces first, as long as the plan still fails in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.simulation.overrides import value_of, with_override
from tests.simulation.plan import Plan

TRIES = 40
LEAST_CHAOS_S = 0.5

_BRACKETED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_NUMBERED = re.compile(r"[\w.:$-]*\d[\w.:$-]*")


def kind_of(error: BaseException) -> str:
    """What a failure says, without what differs between two stories: numbers, names with numbers, lists.

    Of several failures that came together, the first.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = next(iter(str(error).splitlines()), "")
    count = 1
    while count:
        said, count = _BRACKETED.subn("…", said)
    return f"{type(error).__name__}: {_NUMBERED.sub('#', said)}"


def shrunk(plan: Plan, drawn: int, fails: Callable[[Plan], int | None], tries: int = TRIES) -> Plan:
    """The smallest plan found. `drawn`: how many faults the plan has had, which fails.

    `fails`: how many faults a plan has had that breaks the same promise; None: it does not. Called `tries` times at
    most, and for the same plans each time.
    """
    plan = _without_undrawn(plan, drawn)
    tried = {repr(plan)}
    candidates = _smaller(plan)
    while len(tried) <= tries and (candidate := next(candidates, None)) is not None:
        if repr(candidate) not in tried:
            tried.add(repr(candidate))
            if (had := fails(candidate)) is not None:
                plan = _without_undrawn(candidate, had)
                candidates = _smaller(plan)
    return plan


def _without_undrawn(plan: Plan, drawn: int) -> Plan:
    """The same story: faults that its time was too short for need no name."""
    numbers = frozenset(range(drawn))
    return with_override(plan, "faults", numbers if plan.faults is None else plan.faults & numbers)


def _smaller(plan: Plan) -> Iterator[Plan]:
    """What to try next, the largest steps first."""
    for size in _less(plan.size, 2):
        yield with_override(plan, "size", size)
    if plan.chaos_s >= 2 * LEAST_CHAOS_S:
        yield with_override(plan, "chaos_s", round(plan.chaos_s / 2, 3))
    for readers in _less(plan.readers, 0):
        yield with_override(plan, "readers", readers)
    for clients in _less(plan.clients, 1):
        yield with_override(plan, "clients", clients)
    for faults in _fewer(sorted(plan.faults or ())):
        yield with_override(plan, "faults", faults)
    for users in _less(value_of(plan, "users"), 1):
        yield with_override(plan, "users", users)


def _less(value: int, least: int) -> list[int]:
    """The least, half as many, one less."""
    return sorted({least, (value + least) // 2, value - 1} & set(range(least, value)))


def _fewer(numbers: list[int]) -> Iterator[frozenset[int]]:
    """None; then without one half, the other one, each quarter and so on: the late ones go first."""
    size = len(numbers)
    while size:
        for start in reversed(range(0, len(numbers), size)):
            yield frozenset(numbers[:start] + numbers[start + size :])
        size //= 2
