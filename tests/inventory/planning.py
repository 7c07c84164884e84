"""Repair plans for tests: written as `resync.plan` says, of rows that a test gives or of inventories of nodes.

Only heads are compared: enough for what gives plans to nodes, which brings no rows. What became of messages is not
looked at, and nothing is found to be damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from resync.inventory import MANIFEST as INVENTORY
from resync.inventory import manifest_from
from resync.plan import MANIFEST, TABLES, Manifest, Taken

Row = dict[str, Any]
Head = tuple[str, int] | None

HEADS = pa.list_(pa.struct([("node", pa.string()), ("origin", pa.string()), ("seq", pa.int64())]))
TYPES: Mapping[str, pa.DataType] = {
    "int64": pa.int64(), "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_(),
    "nodes": pa.list_(pa.string()), "heads": HEADS,
}  # fmt: skip
SCHEMA = pa.schema([pa.field(one.name, TYPES[one.type], one.nullable) for one in TABLES["mailboxes"]])


def planned(
    user: str | None, mailbox: bytes, uidvalidity: int | None, heads: Mapping[str, Head], relation: str = "forked"
) -> Row:
    """A row of `mailboxes`."""
    rows = [{"node": sid, "origin": head and head[0], "seq": head and head[1]} for sid, head in sorted(heads.items())]
    return {
        "mailbox": mailbox, "user": user, "uidvalidity": uidvalidity, "relation": relation,
        "uidvalidity_differs": False, "missing_on": [sid for sid, head in heads.items() if head is None],
        "heads": rows, "uidnext": 1, "highestmodseq": 1, "differing": 0,
    }  # fmt: skip


def write_plan(
    to: Path,
    nodes: Iterable[str],
    rows: Mapping[str, list[Row]],
    *,
    cluster: str = "mail",
    taken_ms: int = 0,
    schema: pa.Schema = SCHEMA,
) -> Path:
    """By master. Where it was written."""
    to.mkdir(exist_ok=True)
    for master, some in rows.items():
        folder = to / "mailboxes" / f"master={master}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(some, schema), folder / "part-0.zstd.parquet", row_group_size=100)
        (folder / "_SUCCESS").touch()
    taken = {sid: Taken(f"{sid}.a", taken_ms) for sid in nodes}
    manifest = Manifest(cluster, taken, {master: len(some) for master, some in rows.items()}, 0)
    (to / MANIFEST).write_bytes(manifest.to_json())
    return to


def plan_inventories(to: Path, inventories: Iterable[Path]) -> Path:
    """A plan of all mailboxes and trees of which the nodes' digests differ. Where it was written."""
    shown: dict[str, dict[bytes, Row]] = {}
    taken_ms = 0
    for inventory in inventories:
        manifest = manifest_from((inventory / INVENTORY).read_bytes())
        taken_ms = max(taken_ms, manifest.taken_ms)
        heads = pq.read_table(inventory / "heads").to_pylist()
        shown[manifest.node] = {row["mailbox"]: row for row in heads}
    rows: dict[str, list[Row]] = {}
    for mailbox, known in sorted({mailbox: row for heads in shown.values() for mailbox, row in heads.items()}.items()):
        found = {sid: heads.get(mailbox) for sid, heads in shown.items()}
        if len({row and row["digest"] for row in found.values()}) > 1:
            heads_of = {sid: (row["head_origin"], row["head_seq"]) if row else None for sid, row in found.items()}
            master = next((row["master"] for row in found.values() if row and row["master"]), min(shown))
            rows.setdefault(master, []).append(planned(known["user"], mailbox, known["uidvalidity"], heads_of))
    return write_plan(to, shown, rows, taken_ms=taken_ms)
