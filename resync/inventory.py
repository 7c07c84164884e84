"""Format of an inventory: a node's whole state at one moment, as tables in files, for batches to compare (design 7).

These are plain values, the same for the node that writes an inventory and for the programs that read it;
docs/inventory.md explains each column. Below a directory or a prefix of objects lie `TABLE/part-00000.parquet`,
`part-00001.parquet` and so on, and `inventory.json`, which is written last: an inventory without it is incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

FORMAT: Final = 4
"""Version of the tables and columns. It rises with every change that a reader of the former version would misread."""
FORMAT_KEY: Final = "mail-replicator.inventory.format"
"""Key in the metadata of each Parquet file, whose value is FORMAT as decimal digits."""
MANIFEST: Final = "inventory.json"
MANIFEST_BYTES_MAX: Final = 64 << 20
COMPRESSION: Final = "zstd"
GROUP_ROWS: Final = 128 << 10
"""Rows of a row group at most."""
FILE_ROWS: Final = 1 << 20
"""Rows of a file at most."""

Type: TypeAlias = Literal["int32", "int64", "string", "binary", "bool", "context", "flags", "placements"]
"""Type of a column.

`context` is a map of origins to sequence numbers (string to int64), in the order of the origins; `flags` a list of
structs (flag string, time int64, sid string, set bool) in the order of the flags' UTF-8; `placements` a list of structs
(origin string, seq int64, change int32) by age. Nothing in them is null.
"""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: Type
    nullable: bool = False


TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "heads": (  # by mailbox
        Column("mailbox", "binary"),  # 16 bytes: a mailbox's id, or a folder tree's
        Column("user", "string"),
        Column("uidvalidity", "int64"),  # of the mailbox when it was created; 0: a folder tree
        Column("risen", "int64"),  # amount that merges have added to the folder's UIDVALIDITY
        Column("uidnext", "int64"),
        Column("highestmodseq", "int64"),
        Column("head_origin", "string", nullable=True),  # with head_seq: the newest entry that is applied
        Column("head_seq", "int64", nullable=True),
        Column("context", "context"),
        Column("messages", "int64"),
        Column("digest", "binary"),  # 16 bytes, as the node itself reports it to other nodes
        Column("master", "string", nullable=True),  # the mailbox's master, as far as this node knows
    ),
    "messages": (  # by (mailbox, uid)
        Column("mailbox", "binary"),
        Column("uid", "int64"),
        Column("origin", "string"),  # with seq and change: the placement
        Column("seq", "int64"),
        Column("change", "int32"),
        Column("guid", "binary"),  # 16 bytes
        Column("claim_origin", "string"),
        Column("claim_seq", "int64"),
        Column("modseq", "int64"),
        Column("flags", "flags"),
        Column("received_ms", "int64"),
        Column("size_bytes", "int64"),
        Column("content_hash", "binary"),  # SHA-256 of the body
        Column("also", "placements"),  # other placements that merges have made one message with this one
        Column("saved_ms", "int64", nullable=True),  # null: placed by an earlier version
    ),
    "guids": (  # by (guid, mailbox): the index that the node keeps beside `messages`
        Column("guid", "binary"),
        Column("mailbox", "binary"),
        Column("uid", "int64"),
        Column("origin", "string"),
        Column("seq", "int64"),
        Column("change", "int32"),
    ),
    "folders": (  # by mailbox
        Column("mailbox", "binary"),
        Column("user", "string"),
        Column("name", "string"),
        Column("uidvalidity", "int64"),
        Column("deleted", "bool"),
        Column("time", "int64"),  # with sid: the stamp of the last change
        Column("sid", "string"),
    ),
    "subscriptions": (  # by (user, name)
        Column("user", "string"),
        Column("name", "string"),
        Column("subscribed", "bool"),
        Column("time", "int64"),
        Column("sid", "string"),
    ),
    "annotations": (  # by (user, folder, name)
        Column("user", "string"),
        Column("folder", "binary"),  # the mailbox's id; empty: the user's account
        Column("name", "string"),
        Column("value", "binary", nullable=True),  # null: removed
        Column("time", "int64"),
        Column("sid", "string"),
    ),
}


def part_name(table: str, number: int) -> str:
    """Return a file's name below the inventory's, `heads/part-00000.parquet`. `number` counts from 0."""
    return f"{table}/part-{number:05}.parquet"


@dataclass(frozen=True, slots=True)
class InventoryManifest:
    """The contents of `inventory.json`. `context`: that of the node's log as a whole, when the snapshot was taken.

    `rows`: the number of rows of each table; a table without rows has one file without rows. `unreadable`: the number
    of rows of a table that are damaged at the node and left out; tables without such rows are not listed.
    """

    cluster: str
    node: str
    origin: str
    taken_ms: int
    context: Mapping[str, int]
    rows: Mapping[str, int]
    unreadable: Mapping[str, int] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> bytes:
        """Return the JSON document."""
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n"


def manifest_from(document: bytes) -> InventoryManifest:
    """Parse the output of `InventoryManifest.to_json`, ignoring unknown members and tables. Raises ValueError."""
    try:
        fields = cast("dict[str, Any]", json.loads(document))
        if (found := fields["format"]) != FORMAT:
            raise ValueError(f"its format is {found!r}, but this program reads {FORMAT}")
        manifest = InventoryManifest(
            cluster=_text(fields["cluster"]),
            node=_text(fields["node"]),
            origin=_text(fields["origin"]),
            taken_ms=_number(fields["taken_ms"]),
            context=_numbers(fields["context"]),
            rows=_numbers(fields["rows"]),
            unreadable=_numbers(fields.get("unreadable", {})),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{MANIFEST} is not the manifest of an inventory: {error!r}") from error
    if missing := TABLES.keys() - manifest.rows.keys():
        raise ValueError(f"{MANIFEST} does not count the rows of {', '.join(sorted(missing))}")
    return manifest


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _numbers(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a map")
    return {_text(key): _number(number) for key, number in value.items()}
