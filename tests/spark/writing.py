"""Inventories of states, written as a node writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from protocol.values import Dot
from replicator.store.db.chain import Chain
from resync.inventory import COMPRESSION, MANIFEST, TABLES, InventoryManifest, part_name
from resync.row import Row
from resync.state import MailboxState
from tests.spark.clusters import Cluster

Record = Mapping[str, object]

_FLAG = pa.struct([("flag", pa.string()), ("time", pa.int64()), ("sid", pa.string()), ("set", pa.bool_())])
_PLACEMENT = pa.struct([("origin", pa.string()), ("seq", pa.int64()), ("change", pa.int32())])
_TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "context": pa.map_(pa.string(), pa.int64()),
    "flags": pa.list_(_FLAG),
    "placements": pa.list_(_PLACEMENT),
}


def write(to: Path, node: str, tables: Mapping[str, Sequence[Record]], cluster: str = "test") -> None:
    for table in TABLES:
        (to / table).mkdir(parents=True, exist_ok=True)
        records = tables.get(table, ())
        arrays = [pa.array([one[c.name] for one in records], _TYPES[c.type]) for c in TABLES[table]]
        schema = pa.schema([pa.field(c.name, _TYPES[c.type], c.nullable) for c in TABLES[table]])
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), to / part_name(table, 0), compression=COMPRESSION)
    counts = {table: len(tables.get(table, ())) for table in TABLES}
    (to / MANIFEST).write_bytes(InventoryManifest(cluster, node, f"{node}.x", 0, {}, counts).to_json())


def write_clusters(clusters: Sequence[Cluster], nodes: Iterable[str], to: Path) -> dict[str, str]:
    """Write one inventory for each node, with all mailboxes. Return the places, by node."""
    found = {}
    for node in nodes:
        heads, shown = [], []
        for one in clusters:
            if at := one.shown.get(node):
                master = one.masters.get(node)
                heads.append(
                    head_record(
                        one.mailbox,
                        at.state,
                        at.head,
                        stated_count=at.stated_count,
                        stated_sum=at.stated_sum,
                        master=master,
                    )
                )
                shown += [message_record(one.mailbox, row) for _, row in sorted(at.state.rows.items())]
        write(to / node, node, {"heads": heads, "messages": shown, "guids": pointers(shown)})
        found[node] = str(to / node)
    return found


def head_record(
    mailbox: bytes, state: MailboxState, head: Dot | None, *, stated_count: int, stated_sum: int, master: str | None
) -> Record:
    """Return a head that states this count of rows and this sum of their fingerprints."""
    chain = Chain(mailbox, "alice", 7, state.uidnext, state.modseq, head, dict(state.context), stated_count)
    chain.risen, chain.fingerprint = state.risen, stated_sum
    return {
        "mailbox": mailbox, "user": "alice", "uidvalidity": 7, "risen": state.risen,
        "uidnext": state.uidnext, "highestmodseq": state.modseq, "head_origin": head and head.origin,
        "head_seq": head and head.seq, "context": sorted(state.context.items()), "messages": stated_count,
        "digest": chain.digest(), "master": master,
    }  # fmt: skip


def message_record(mailbox: bytes, row: Row) -> Record:
    flags = [{"flag": f, "time": t, "sid": s, "set": v} for f, (t, s, v) in sorted(row.flags.items())]
    return {
        "mailbox": mailbox, "uid": row.uid, "origin": row.dot.origin, "seq": row.dot.seq, "change": row.change,
        "guid": row.guid, "claim_origin": row.claim.origin, "claim_seq": row.claim.seq, "modseq": row.modseq,
        "flags": flags, "received_ms": row.received_ms, "size_bytes": row.size_bytes,
        "content_hash": row.content_hash,
        "also": [{"origin": dot.origin, "seq": dot.seq, "change": change} for dot, change in row.also],
        "saved_ms": row.saved_ms,
    }  # fmt: skip


def pointers(messages: Iterable[Record]) -> list[Record]:
    """Return the correct index of GUIDs for these messages."""
    return [{column.name: one[column.name] for column in TABLES["guids"]} for one in messages]


def row_of(one: Mapping[str, Any]) -> Row:
    """Return the row of which `message_record` made this row of a DataFrame."""
    flags = {flag["flag"]: (flag["time"], flag["sid"], flag["set"]) for flag in one["flags"]}
    dot, claim = Dot(one["origin"], one["seq"]), Dot(one["claim_origin"], one["claim_seq"])
    return Row(
        one["uid"], dot, one["change"], bytes(one["guid"]), claim, one["modseq"], flags,
        one["received_ms"], one["size_bytes"], bytes(one["content_hash"]),
        tuple((Dot(other["origin"], other["seq"]), other["change"]) for other in one["also"]),
        one["saved_ms"],
    )  # fmt: skip
