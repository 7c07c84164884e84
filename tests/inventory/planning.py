"""Repair plans for tests, written from given rows in the format of `resync.plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from resync.plan import MANIFEST, TABLES, PlanManifest, Taken

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
    """Return a row of the table `mailboxes`."""
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
    """Write a plan, given its rows by master. Return its directory."""
    to.mkdir(exist_ok=True)
    for master, some in rows.items():
        folder = to / "mailboxes" / f"master={master}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(some, schema), folder / "part-0.zstd.parquet", row_group_size=100)
        (folder / "_SUCCESS").touch()
    taken = {sid: Taken(f"{sid}.a", taken_ms) for sid in nodes}
    manifest = PlanManifest(cluster, taken, {master: len(some) for master, some in rows.items()}, 0)
    (to / MANIFEST).write_bytes(manifest.to_json())
    return to
