"""Log events as `name=value` pairs, for people and for programs that watch the log.

A value chosen by a client cannot pass for another pair: anything but one plain word is written as a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

VALUE_MAX = 320
"""Characters of a value: longer than any valid address; a longer value is an attempt to fill the disk."""

PLAIN = re.compile(r'[^\s"\\\x00-\x20\x7f-\x9f]+')


class LogFields:
    """Named values of a log event, formatted only when the event is written. A value of None leaves the pair out."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join(f"{name}={_printed(value)}" for name, value in self._texts())

    def values(self) -> dict[str, str | int | float]:
        """Return the values by their names: numbers as they are, everything else as text."""
        kept = {name: value for name, value in self._fields.items() if isinstance(value, int | float)}
        return {name: kept.get(name, text) for name, text in self._texts()}

    def _texts(self) -> Iterator[tuple[str, str]]:
        return ((name, str(value)[:VALUE_MAX]) for name, value in self._fields.items() if value is not None)


def _printed(value: str) -> str:
    return value if PLAIN.fullmatch(value) and value.isprintable() else json.dumps(value)
