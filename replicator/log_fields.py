"""Events of the log as `name=value` pairs, for people and for programs that watch the log.

A value that a stranger chose cannot look like another pair: whatever is not one plain word is a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

VALUE_MAX = 320
"""Longer than any address that works; what is longer is a stranger's attempt to fill the disk."""

PLAIN = re.compile(r'[^\s"\\\x00-\x20\x7f-\x9f]+')


class LogFields:
    """Formats when the event is really written. None: the pair is left out."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join(f"{name}={_printed(str(value))}" for name, value in self._fields.items() if value is not None)


def _printed(value: str) -> str:
    value = value[:VALUE_MAX]
    return value if PLAIN.fullmatch(value) and value.isprintable() else json.dumps(value)
