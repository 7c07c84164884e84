"""Limits on what a user's mail may take, and the words of a passwd-file's line that set them for one user.

A word is `quota_storage=SIZE` or `quota_messages=NUMBER`, or has the value `none` for no limit. It stands in any field
after the hash, separated by colons or spaces from the rest; Dovecot's place for it is the eighth field of the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from replicator.runtime.sizes import MESSAGES_MAX, SIZE_MAX_BYTES, parse_size

NO_LIMIT = "none"

_WORDS = re.compile(r"(?:^|(?<=[:\s]))quota_(\w+)=([^:\s]*)")


class QuotaLimits(NamedTuple):
    """The most octets of bodies, and the most messages, that all folders of a user may have; None: no limit."""

    storage_bytes: int | None = None
    messages: int | None = None


NO_LIMITS = QuotaLimits()

OwnLimits = Mapping[str, int | None]
"""Limits that one user has instead of the configuration's, by the names of `QuotaLimits`."""


def own_limits(fields: str) -> OwnLimits:
    """Return the limits that the fields after the hash set. Raises ValueError for a word that makes no sense."""
    return dict(_limit(name, value) for name, value in _WORDS.findall(fields))


def _limit(name: str, value: str) -> tuple[str, int | None]:
    match name:
        case "storage":
            size_bytes = parse_size(value)
            if value != NO_LIMIT and not 1 <= (size_bytes or 0) <= SIZE_MAX_BYTES:
                raise ValueError(f"quota_storage: expected a size such as '500MiB' or '5GiB', or 'none', not {value!r}")
            return "storage_bytes", size_bytes
        case "messages":
            is_number = value.isascii() and value.isdecimal() and len(value) <= len(str(MESSAGES_MAX))
            if value != NO_LIMIT and not (is_number and 1 <= int(value) <= MESSAGES_MAX):
                raise ValueError(f"quota_messages: expected a number such as '100000', or 'none', not {value!r}")
            return "messages", int(value) if is_number else None
        case _:
            raise ValueError(f"quota_{name} is unknown; quota_storage and quota_messages set a user's limits")
