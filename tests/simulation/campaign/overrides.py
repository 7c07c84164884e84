"""Reductions of the plan that a seed draws, as text: `clients=1,size=2,chaos_s=3.5,faults=0+4`.

Each client and each fault has a randomness of its own: those that are left draw what they drew before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.plan import Plan


def _numbers(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split("+"))) if text else frozenset()


READ: Mapping[str, Callable[[str], Any]] = {
    "size": int,
    "clients": int,
    "readers": int,
    "users": int,
    "chaos_s": float,
    "faults": _numbers,
}


def with_overrides(plan: Plan, text: str) -> Plan:
    """Return the plan with these overrides. Raises ValueError that names the fault."""
    for item in filter(None, text.split(",")):
        name, is_set, value = item.partition("=")
        if name not in READ or not is_set:
            raise ValueError(f"{item!r} is not NAME=VALUE; names are {', '.join(READ)}")
        try:
            plan = with_override(plan, name, READ[name](value))
        except ValueError as error:
            raise ValueError(f"{item!r}: {error}") from None
    return plan


def with_override(plan: Plan, name: str, value: Any) -> Plan:
    """Return the plan with another value, and with the values that depend on it.

    Raises ValueError if that is impossible.
    """
    least = {"size": 2, "users": 1}.get(name, 0)
    if not isinstance(value, frozenset) and value < least:
        raise ValueError(f"at least {least}")
    match name:
        case "size":
            copies = min(plan.durability.copies, value)
            durability = replace(plan.durability, copies=copies)
            return replace(plan, size=value, durability=durability, priorities=plan.priorities[:value])
        case "users":
            return replace(plan, users=plan.users[:value])
        case _:
            changes: dict[str, Any] = {name: value}
            return replace(plan, **changes)


def value_of(plan: Plan, name: str) -> Any:
    """Return the value as `with_override` takes it."""
    return len(plan.users) if name == "users" else getattr(plan, name)


def overrides(drawn: Plan, plan: Plan) -> str:
    """Return the overrides that turn the drawn plan into this one."""
    changed = [(name, value_of(plan, name)) for name in READ if value_of(plan, name) != value_of(drawn, name)]
    return ",".join(f"{name}={_as_text(value)}" for name, value in changed)


def _as_text(value: Any) -> str:
    return "+".join(map(str, sorted(value))) if isinstance(value, frozenset) else str(value)
