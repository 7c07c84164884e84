"""Quotas as servers elsewhere write them. No I/O."""

from __future__ import annotations

from replicator.runtime.sizes import MESSAGES_MAX, SIZE_MAX_BYTES, parse_size


def quota_of(value: str) -> dict[str, int | None]:
    """Return the limits of an attribute's value: a size, octets, or a rule of Dovecot's. Raises ValueError.

    Sizes are such as `500MiB`, and Dovecot's `*:storage=1G` or `*:messages=1000`; 0 and `none` mean no limit. In such
    rules, `storage` without a unit is in KiB, and `bytes` in octets.
    """
    limits: dict[str, int | None] = {}
    for word in value.strip().removeprefix("*:").split(":"):
        name, _, number = word.rpartition("=")
        if name == "messages" and number.isascii() and number.isdecimal() and int(number) <= MESSAGES_MAX:
            limits["messages"] = int(number) or None
        elif name in {"", "storage", "bytes"}:
            is_in_kib = name == "storage" and number.isascii() and number.isdecimal() and number != "0"
            limits["storage_bytes"] = _octets(f"{number}K" if is_in_kib else number)
        else:
            raise ValueError(f"expected a quota such as '1GiB', '*:storage=1G' or '*:messages=1000', not {value!r}")
    return limits


def _octets(text: str) -> int | None:
    """Return a size; None: no limit. Raises ValueError."""
    if text in {"none", "0"}:
        return None
    unit = text[-1:].upper()
    size = f"{text[:-1]}{unit}iB" if unit in "KMGT" and unit else f"{text}B" if text.isdecimal() else text
    size_bytes = parse_size(size)
    if size_bytes is None or not 1 <= size_bytes <= SIZE_MAX_BYTES:
        raise ValueError(f"expected a size such as '500MiB', '1G' or a number of octets, not {text!r}")
    return size_bytes
