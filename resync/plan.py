"""Format of a repair plan: mailboxes in which inventories differ, and the result of joining them (design section 7).

These are plain values, the same for the batch that writes a plan and for the programs that hand it to the nodes;
docs/spark.md explains each column. Below a directory or a prefix of objects lie `TABLE/PARTITION=SID/*.parquet`, and
`plan.json`, which is written last: a plan without it is incomplete. A plan brings no rows to a node: it names the
mailboxes to make equal, and the heads at which they were compared. The rows are there for people to inspect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

FORMAT: Final = 1
"""Version of the tables and columns. It rises with every change that a reader of the former version would misread."""
MANIFEST: Final = "plan.json"
MANIFEST_BYTES_MAX: Final = 1 << 20
NUMBER_MAX: Final = 1 << 62
PARTITIONS: Final[Mapping[str, str]] = {"mailboxes": "master", "messages": "master", "indexes": "node"}
"""Table -> the partition column, which is the name of a folder and in no file.

It holds the node that is to join a mailbox's branches, or the node whose index it is.
"""

Type: TypeAlias = Literal["int64", "string", "binary", "bool", "nodes", "heads", "flags"]
"""Type of a column.

`nodes` is a list of SIDs; `heads` a list of structs (node string, origin string, seq int64), one for each node of the
plan, in the order of SIDs, with origin and seq null where the node shows nothing of the mailbox; `flags` as in
`resync.inventory`.
"""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: Type
    nullable: bool = False


TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "mailboxes": (  # mailboxes that are not equal on all nodes
        Column("mailbox", "binary"),  # 16 bytes: a mailbox's id, or a folder tree's
        Column("user", "string", nullable=True),  # null: no inventory has a head of it, so nothing can be repaired
        Column("uidvalidity", "int64", nullable=True),  # of the mailbox when it was created; 0: a folder tree
        Column("folder", "string", nullable=True),  # its name at some node; null: no inventory knows it, or a tree
        Column("relation", "string"),  # behind, forked or damaged; damaged mailboxes must not be joined
        Column("uidvalidity_differs", "bool"),
        Column("missing_on", "nodes"),
        Column("heads", "heads"),
        Column("uidnext", "int64", nullable=True),  # with highestmodseq: after joining; null: trees, damaged mailboxes
        Column("highestmodseq", "int64", nullable=True),
        Column("differing", "int64"),  # number of messages that are not the same everywhere
    ),
    "messages": (  # messages that are not the same everywhere
        Column("mailbox", "binary"),
        Column("user", "string", nullable=True),
        Column("guid", "binary"),
        Column("missing_on", "nodes"),
        Column("expunged_on", "nodes"),
        Column("uid_conflict", "bool"),
        Column("flags_differ", "bool"),
        Column("damage", "bool"),
        Column("only_modseq", "bool"),
        Column("uid", "int64", nullable=True),  # after joining; null, like the next columns: it is expunged
        Column("modseq", "int64", nullable=True),
        Column("flags", "flags", nullable=True),
        Column("content_hash", "binary", nullable=True),
    ),
    "indexes": (  # wrong rows of each node's index of GUIDs, which a check at that node mends
        Column("mailbox", "binary"),
        Column("guid", "binary"),
        Column("what", "string"),  # missing, extra or different
        Column("uid", "int64", nullable=True),  # the right UID; null: the mailbox has no such message
    ),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """An inventory that was compared: the origin of the node that wrote it, and the time."""

    origin: str
    taken_ms: int


@dataclass(frozen=True, slots=True)
class PlanManifest:
    """The contents of `plan.json`. `nodes`: by SID.

    `mailboxes`: rows of that table by master; other tables: all rows.
    """

    cluster: str
    nodes: Mapping[str, Taken]
    mailboxes: Mapping[str, int]
    messages: int
    indexes: int = 0
    format: int = FORMAT

    def to_json(self) -> bytes:
        """Return the JSON document."""
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n"


def manifest_from(document: bytes) -> PlanManifest:
    """Parse the output of `PlanManifest.to_json`, ignoring unknown members. Raises ValueError."""
    try:
        fields = cast("dict[str, Any]", json.loads(document))
        if (found := fields["format"]) != FORMAT:
            raise ValueError(f"its format is {found!r}, but this program reads {FORMAT}")
        nodes = {str(sid): Taken(str(one["origin"]), _number(one["taken_ms"])) for sid, one in fields["nodes"].items()}
        mailboxes = {str(sid): _number(count) for sid, count in fields["mailboxes"].items()}
        counts = _number(fields["messages"]), _number(fields.get("indexes", 0))
        return PlanManifest(str(fields["cluster"]), nodes, mailboxes, *counts)
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{MANIFEST} is not the manifest of a plan: {error!r}") from error


def _number(value: Any) -> int:
    """Return a time or a count. Raises ValueError."""
    number = int(value)
    if not 0 <= number < NUMBER_MAX:
        raise ValueError(f"it has a time or a count that is not from 0 to {NUMBER_MAX - 1}")
    return number
