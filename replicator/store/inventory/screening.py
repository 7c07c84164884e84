"""Row-by-row search for the rows of a batch that the node cannot have written, and for the reasons.

It is used only if a batch as a whole cannot be converted to columns, since it takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from replicator.store.db.rows.message_rows import DamagedRowError, placements_from
from replicator.store.inventory.flags import states_of
from replicator.store.inventory.tables import Values
from resync.entry import ID_BYTES
from resync.inventory import TABLES, Column

HASH_BYTES = 32  # SHA-256
LENGTHS = {"mailbox": ID_BYTES, "guid": ID_BYTES, "content_hash": HASH_BYTES, "digest": ID_BYTES}
"""Byte lengths of the values in binary columns, unless any length will do."""
INT_MAX = {"int32": (1 << 31) - 1, "int64": (1 << 63) - 1}
KEYS = {
    "heads": ("mailbox",),
    "messages": ("mailbox", "uid"),
    "guids": ("guid", "mailbox"),
    "folders": ("mailbox",),
    "subscriptions": ("user", "name"),
    "annotations": ("user", "folder", "name"),
}
KEY_CHARS = 200  # of a value as shown to the operator


def wrong_columns(columns: Sequence[Column], row: Values, same: AbstractSet[str] = frozenset()) -> list[str]:
    """Return the names of columns whose values make no sense. NULL is allowed in the columns in `same`."""
    return [
        column.name
        for column, value in zip(columns, row, strict=True)
        if not (_makes_sense(column, value) or (value is None and (column.nullable or column.name in same)))
    ]


def key_of(table: str, row: Values) -> str:
    """Return the key by which an operator finds the row, such as `mailbox 0a0b…, uid 7`."""
    names = [column.name for column in TABLES[table]]
    return ", ".join(f"{name} {_shown(row[names.index(name)])}" for name in KEYS[table])


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else ascii(value)
    return text if len(text) <= KEY_CHARS else f"{text[:KEY_CHARS]}..."


def _makes_sense(column: Column, value: object) -> bool:
    match column.type:
        case "int32" | "int64":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT_MAX[column.type]
        case "bool":
            return isinstance(value, int) and value in {0, 1}
        case "string":
            return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)
        case "binary":
            return isinstance(value, bytes) and len(value) == LENGTHS.get(column.name, len(value))
        case "flags":
            return isinstance(value, bytes) and _are_flags(value)
        case "placements":
            return value is None or _are_placements(value)
        case "context":
            return isinstance(value, dict) and all(
                isinstance(origin, str)
                and isinstance(seq, int)
                and not isinstance(seq, bool)
                and abs(seq) <= INT_MAX["int64"]
                for origin, seq in value.items()
            )


def _are_placements(blob: object) -> bool:
    try:
        found = placements_from(blob)
    except DamagedRowError:
        return False
    return all(abs(dot.seq) <= INT_MAX["int64"] and abs(change) <= INT_MAX["int32"] for dot, change in found)


def _are_flags(blob: bytes) -> bool:
    try:
        states_of(blob)
    except (ValueError, TypeError, AttributeError):
        return False
    return True
