"""Search for a smaller plan that breaks the same promise as a large one, with little beyond what the failure needs.

The search is greedy: it leaves out as much as possible, the large pieces first, as long as the plan still fails in the
same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.simulation.campaign.overrides import value_of, with_override
from tests.simulation.plan import Plan

TRIES = 40
LEAST_CHAOS_S = 0.5

_BRACKETED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_NUMBERED = re.compile(r"[\w.:$-]*\d[\w.:$-]*")


def kind_of(error: BaseException) -> str:
    """Return a failure's message without what differs between two stories: numbers, names with numbers, lists.

    If several failures came together, the first one counts.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = next(iter(str(error).splitlines()), "")
    count = 1
    while count:
        said, count = _BRACKETED.subn("…", said)
    return f"{type(error).__name__}: {_NUMBERED.sub('#', said)}"


def shrink(plan: Plan, drawn: int, fails: Callable[[Plan], int | None], tries: int = TRIES) -> Plan:
    """Return the smallest plan found. `drawn`: the number of faults that the given plan, which fails, has had.

    `fails`: returns the number of faults that a plan has had if it breaks the same promise, else None. It is called
    `tries` times at most, and for the same plans each time.
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
    """Return the plan of the same story that names only the faults for which there was time."""
    numbers = frozenset(range(drawn))
    return with_override(plan, "faults", numbers if plan.faults is None else plan.faults & numbers)


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield the plans to try next, the largest steps first."""
    for size in _smaller_values(plan.size, 2):
        yield with_override(plan, "size", size)
    if plan.chaos_s >= 2 * LEAST_CHAOS_S:
        yield with_override(plan, "chaos_s", round(plan.chaos_s / 2, 3))
    for readers in _smaller_values(plan.readers, 0):
        yield with_override(plan, "readers", readers)
    for clients in _smaller_values(plan.clients, 1):
        yield with_override(plan, "clients", clients)
    for faults in _fewer_faults(sorted(plan.faults or ())):
        yield with_override(plan, "faults", faults)
    for users in _smaller_values(value_of(plan, "users"), 1):
        yield with_override(plan, "users", users)


def _smaller_values(value: int, least: int) -> list[int]:
    """Return the least value, half as many, and one less."""
    return sorted({least, (value + least) // 2, value - 1} & set(range(least, value)))


def _fewer_faults(numbers: list[int]) -> Iterator[frozenset[int]]:
    """Yield the empty set; then the set without one half, the other one, each quarter and so on, late faults first."""
    size = len(numbers)
    while size:
        for start in reversed(range(0, len(numbers), size)):
            yield frozenset(numbers[:start] + numbers[start + size :])
        size //= 2
