"""What a repair plan is: the mailboxes in which inventories differ, and what joining them gives (design section 7).

Plain values, the same for the batch that writes a plan and for those who hand it to the nodes; docs/spark.md says what
each column means. Below a directory or a prefix of objects lie `TABLE/PARTITION=SID/*.parquet`, and `plan.json`, which
is written last: without it a plan is not whole. A plan brings no rows to a node: it says which mailboxes to make equal,
and of which heads that was found. The rows are there to be looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

FORMAT: Final = 1
"""Of tables and columns. It rises with every change that a reader of the former one would misread."""
MANIFEST: Final = "plan.json"
MANIFEST_BYTES_MAX: Final = 1 << 20
NUMBER_MAX: Final = 1 << 62
PARTITIONS: Final[Mapping[str, str]] = {"mailboxes": "master", "messages": "master", "indexes": "node"}
"""By the names of tables the column that is the name of a folder and in no file: the node that is to join a mailbox's
branches, or the node whose index it is."""

Type: TypeAlias = Literal["int64", "string", "binary", "bool", "nodes", "heads", "flags"]
"""`nodes` is a list of SIDs; `heads` a list of structs (node string, origin string, seq int64), one for each node of
the plan, in the order of SIDs, with origin and seq null where the node shows nothing of the mailbox; `flags` as in
`resync.inventory`."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: Type
    nullable: bool = False


TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "mailboxes": (  # that are not equal
        Column("mailbox", "binary"),  # 16 bytes: a mailbox's id, or a folder tree's
        Column("user", "string", nullable=True),  # null: no inventory has a head of it, and so nothing can be done
        Column("uidvalidity", "int64", nullable=True),  # of the mailbox when it was created; 0: a folder tree
        Column("folder", "string", nullable=True),  # its name at some node; null: no inventory knows it, or a tree
        Column("relation", "string"),  # behind, forked or damaged; what is damaged is not to be joined
        Column("uidvalidity_differs", "bool"),
        Column("missing_on", "nodes"),
        Column("heads", "heads"),
        Column("uidnext", "int64", nullable=True),  # with highestmodseq: when joined; null: trees, and what is damaged
        Column("highestmodseq", "int64", nullable=True),
        Column("differing", "int64"),  # how many messages are not the same everywhere
    ),
    "messages": (  # that are not the same everywhere
        Column("mailbox", "binary"),
        Column("user", "string", nullable=True),
        Column("guid", "binary"),
        Column("missing_on", "nodes"),
        Column("expunged_on", "nodes"),
        Column("uid_conflict", "bool"),
        Column("flags_differ", "bool"),
        Column("damage", "bool"),
        Column("only_modseq", "bool"),
        Column("uid", "int64", nullable=True),  # when joined; null, as what follows: it is expunged
        Column("modseq", "int64", nullable=True),
        Column("flags", "flags", nullable=True),
        Column("content_hash", "binary", nullable=True),
    ),
    "indexes": (  # wrong rows of each node's index of GUIDs; what mends them is a check at that node
        Column("mailbox", "binary"),
        Column("guid", "binary"),
        Column("what", "string"),  # missing, extra or different
        Column("uid", "int64", nullable=True),  # that it should name; null: the mailbox has no such message
    ),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """An inventory that was compared: the run of the node that wrote it, and when that was."""

    origin: str
    taken_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `plan.json` says. `nodes`: by SIDs. `mailboxes`: rows of that table by master; of the others all rows."""

    cluster: str
    nodes: Mapping[str, Taken]
    mailboxes: Mapping[str, int]
    messages: int
    indexes: int = 0
    format: int = FORMAT

    def to_json(self) -> bytes:
        """The document."""
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n"


def manifest_from(document: bytes) -> Manifest:
    """What `Manifest.to_json` gave; members that are not known are passed over. Raises ValueError."""
    try:
        fields = cast("dict[str, Any]", json.loads(document))
        if (found := fields["format"]) != FORMAT:
            raise ValueError(f"it is of format {found!r}, this program reads {FORMAT}")
        nodes = {str(sid): Taken(str(one["origin"]), _number(one["taken_ms"])) for sid, one in fields["nodes"].items()}
        mailboxes = {str(sid): _number(count) for sid, count in fields["mailboxes"].items()}
        counts = _number(fields["messages"]), _number(fields.get("indexes", 0))
        return Manifest(str(fields["cluster"]), nodes, mailboxes, *counts)
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{MANIFEST} is not what a plan ends with: {error!r}") from error


def _number(value: Any) -> int:
    """A time or a count. Raises ValueError."""
    number = int(value)
    if not 0 <= number < NUMBER_MAX:
        raise ValueError(f"a time or a count in it is not from 0 to {NUMBER_MAX - 1}")
    return number
