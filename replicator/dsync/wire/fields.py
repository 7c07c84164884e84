"""Values of one record, by name: taken apart with their limits, and put together."""

from __future__ import annotations

import re
from collections.abc import Mapping

from replicator.dsync.errors import DsyncError

UID_MAX = 2**32 - 2
NUMBER_MAX = 2**63 - 1
NUMBER_DIGITS = 20
GUID_MAX = 255
"""Characters of a mail's GUID: Dovecot's own are 32, or the name of a file in a Maildir."""

_HEX = re.compile("[0-9a-f]{1,16}")
_ID = re.compile("[0-9a-f]{32}")

Values = Mapping[str, str | None]


class Fields:
    """Values of a record of the peer's, by name. Names that it has not announced are absent."""

    def __init__(self, letter: str, values: Values) -> None:
        self._letter = letter
        self._values = values

    def find(self, name: str) -> str | None:
        """Return a value, or None."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """Return a value that must be there. Raises DsyncError."""
        value = self.find(name)
        if value is None:
            raise DsyncError(f"the peer sent a record {self._letter} without {name}")
        return value

    def number(self, name: str, default: int | None = None, most: int = NUMBER_MAX) -> int:
        """Return a decimal number. Raises DsyncError."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        value = value if value is not None else self.text(name)
        if not _is_number(value) or (number := int(value)) > most:
            raise self._wrong(name, value)
        return number

    def hexadecimal(self, name: str) -> int:
        """Return a hexadecimal number; absent is 0. Raises DsyncError."""
        value = self.find(name)
        if value is None:
            return 0
        if _HEX.fullmatch(value) is None:
            raise self._wrong(name, value)
        return int(value, 16)

    def box_id(self, name: str) -> bytes:
        """Return the id of a mailbox. Raises DsyncError."""
        value = self.text(name)
        if _ID.fullmatch(value) is None:
            raise self._wrong(name, value)
        return bytes.fromhex(value)

    def is_set(self, name: str) -> bool:
        """Return True if the value is there."""
        return self.find(name) is not None

    def guid(self, name: str) -> str:
        """Return a mail's GUID; empty if it is unknown. Raises DsyncError."""
        value = self.find(name) or ""
        if len(value) > GUID_MAX or not value.isprintable():
            raise self._wrong(name, value)
        return value

    def _wrong(self, name: str, value: str) -> DsyncError:
        return DsyncError(f"the peer sent {value[:80]!r} as {name} in a record {self._letter}")


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= NUMBER_DIGITS


def present(is_set: bool) -> str | None:  # noqa: FBT001
    """Return the value of a boolean: it is there, or it is not."""
    return "" if is_set else None


def decimal(number: int | None) -> str | None:
    """Return the value of a number, if there is one."""
    return None if number is None else str(number)


def times_of(text: str) -> Mapping[bytes, int]:
    """Return times by ids of 16 bytes. Raises DsyncError."""
    words = text.split(" ") if text else []
    ids, times = words[::2], words[1::2]
    if len(ids) != len(times) or not all(map(_ID.fullmatch, ids)) or not all(map(_is_number, times)):
        raise DsyncError("the peer sent a list of deletions that is none")
    return {bytes.fromhex(one): int(time) for one, time in zip(ids, times, strict=True)}


def times_text(times: Mapping[bytes, int]) -> str | None:
    """Return the value of times, if there are any."""
    return " ".join(f"{one.hex()} {time}" for one, time in times.items()) or None
