"""A block of rows as one node shows it: single rows are exchanged, left out or added, all others stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.spark.blocks import Block, Segment
from benchmarks.spark.planting import Change, Mailbox, Side, origin
from replicator.store.inventory.arrays import schema_of

GUIDS = schema_of("guids")

Edits: TypeAlias = Mapping[int, Change | None]
"""Changed columns of rows, or None for a missing row; by UID, or by place in a block."""
Added: TypeAlias = Sequence[Change]


def messages_of(block: Block, node: str) -> pa.RecordBatch:
    """Return the messages as the node shows them."""
    return _exchanged(block.rows, *_exchanges(block, node, _of_messages))


def pointers_of(block: Block, node: str) -> pa.RecordBatch:
    """Return the node's index of the messages that it shows."""
    rows = _exchanged(block.rows.select(GUIDS.names), *_exchanges(block, node, _of_index))
    return rows.take(pc.sort_indices(rows.column("guid")))


def stray(mailbox: Mailbox) -> bytes:
    """Return a GUID that no message has."""
    return b"stray" + mailbox.number.to_bytes(11)


def _exchanges(
    block: Block, node: str, of: Callable[[Segment, Side], tuple[Edits, Added]]
) -> tuple[Edits, Mapping[int, Added]]:
    """Return the changed rows and the rows inserted before others, by place in the block."""
    edits: dict[int, Change | None] = {}
    added: dict[int, Added] = {}
    place = 0
    for segment in block.segments:
        uids = segment.uids
        if segment.plan is not None:
            side = segment.plan.sides[node]
            if side is None:
                edits.update(dict.fromkeys(range(place, place + len(uids))))
            else:
                otherwise, more = of(segment, side)
                edits.update({place + uid - uids[0]: change for uid, change in otherwise.items() if uid in uids})
                if more and segment.mailbox.messages in uids:
                    added[place + len(uids)] = more
        place += len(uids)
    return edits, added


def _of_messages(_: Segment, side: Side) -> tuple[Edits, Added]:
    return side.edits, side.added


def _of_index(segment: Segment, side: Side) -> tuple[Edits, Added]:
    mailbox = segment.mailbox
    of_none = {"mailbox": mailbox.id, "origin": origin(mailbox.master), "seq": 1, "change": 0, "guid": stray(mailbox)}
    changes: Edits = {uid: None if what == "missing" else {"seq": 0} for uid, what in side.index.items()}
    extra = {uid for uid, what in side.index.items() if what == "extra"}
    edits = {uid: change for uid, change in {**side.edits, **changes}.items() if uid not in extra}
    return edits, [*side.added, *({**of_none, "uid": uid} for uid in extra)]


def _exchanged(rows: pa.RecordBatch, edits: Edits, added: Mapping[int, Added]) -> pa.RecordBatch:
    if not edits and not added:
        return rows
    changed = [place for place, change in sorted(edits.items()) if change is not None]
    befores = rows.take(pa.array(changed, pa.int64())).to_pylist()
    instead = [{**before, **(edits[place] or {})} for place, before in zip(changed, befores, strict=True)]
    numbers = {place: rows.num_rows + number for number, place in enumerate(changed)}
    order: list[int] = []
    at = 0
    for place in sorted(edits.keys() | added.keys()):
        order += range(at, place)
        at = place
        for row in added.get(place, ()):
            order.append(rows.num_rows + len(instead))
            instead.append(dict(row))
        if place in edits:
            order += [numbers[place]] if place in numbers else []
            at += 1
    order += range(at, rows.num_rows)
    names = rows.schema.names
    columns = [pa.array([one[name] for one in instead], rows.schema.field(name).type) for name in names]
    both = pa.Table.from_batches([rows, pa.record_batch(columns, schema=rows.schema)])
    return both.take(pa.array(order, pa.int64())).combine_chunks().to_batches()[0]
