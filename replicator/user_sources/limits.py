"""Quotas as servers elsewhere write them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.units import GIB, KIB, MIB
from replicator.runtime.sizes import MESSAGES_MAX, SIZE_MAX_BYTES, parse_size

UNITS_BYTES = {"K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
"""Units of Dovecot's, in capitals; ours are those of `parse_size`."""

NO_LIMIT = frozenset({"none", "unlimited"})


def quota_of_all(values: Iterable[str]) -> tuple[dict[str, int | None], str | None]:
    """Return the limits of the values that make sense, and what is wrong with the first of the others, if any.

    Whoever has a quota without sense still is a user.
    """
    limits: dict[str, int | None] = {}
    faults: list[str] = []
    for value in values:
        try:
            limits |= quota_of(value)
        except ValueError as error:
            faults.append(str(error))
    return limits, faults[0] if faults else None


def quota_of(value: str) -> dict[str, int | None]:
    """Return the limits of an attribute's value: a size, octets, or a rule of Dovecot's. Raises ValueError.

    Sizes are such as `500MiB`, and Dovecot's `*:storage=1G` or `*:messages=1000`; 0, `none`, `unlimited` and the rule
    `*:ignore` mean no limit. In such rules, `storage` without a unit is in KiB, and `bytes` in octets.
    """
    rule = value.strip().removeprefix("*:")
    if rule == "ignore":
        return {"storage_bytes": None, "messages": None}
    limits: dict[str, int | None] = {}
    for word in rule.split(":"):
        name, _, number = word.rpartition("=")
        is_number = number.isascii() and number.isdecimal()
        if name == "messages" and (number in NO_LIMIT or (is_number and int(number) <= MESSAGES_MAX)):
            limits["messages"] = None if number in NO_LIMIT else int(number) or None
        elif name in {"", "storage", "bytes"}:
            limits["storage_bytes"] = _octets(f"{number}K" if name == "storage" and is_number else number)
        else:
            raise ValueError(f"expected a quota such as '1GiB', '*:storage=1G' or '*:messages=1000', not {value!r}")
    return limits


def _octets(text: str) -> int | None:
    """Return a size; None: no limit. Raises ValueError."""
    if text in NO_LIMIT:
        return None
    number, unit = text[:-1], text[-1:].upper()
    if number.isascii() and number.isdecimal() and unit in UNITS_BYTES:
        size_bytes: int | None = int(number) * UNITS_BYTES[unit]
    else:
        size_bytes = parse_size(f"{text}B" if text.isdecimal() else text)
    if size_bytes is None or size_bytes > SIZE_MAX_BYTES:
        raise ValueError(f"expected a size such as '500MiB', '1G' or a number of octets, not {text!r}")
    return size_bytes or None
