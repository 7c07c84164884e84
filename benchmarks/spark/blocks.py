"""Blocks of rows as whole columns, as all nodes had them before they diverged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.spark.planting import BASE_MS, NODES, Mailbox, Plan, origin
from replicator.store.inventory.arrays import schema_of

Array: TypeAlias = "pa.Array[Any]"

BLOCK_ROWS = 1 << 17
MESSAGES = schema_of("messages")
FLAG_SETS = 1 << 12


class Segment(NamedTuple):
    """Messages of a mailbox with these UIDs. `plan`: None if the mailbox is the same everywhere."""

    mailbox: Mailbox
    plan: Plan | None
    uids: range


class Block(NamedTuple):
    """Segments one after the other, as rows that are the same everywhere."""

    segments: Sequence[Segment]
    rows: pa.RecordBatch


def block_of(segments: Sequence[Segment], rng: random.Random) -> Block:
    uids = pa.array([uid for segment in segments for uid in segment.uids], pa.int64())
    befores = _of_runs(segments, [segment.mailbox.first_seq - 1 for segment in segments], pa.int64())
    seqs, count = pc.add(uids, befores), len(uids)
    origins = _of_runs(segments, [origin(segment.mailbox.master) for segment in segments], pa.string())
    columns = {
        "mailbox": _of_runs(segments, [segment.mailbox.id for segment in segments], pa.binary()),
        "uid": uids,
        "origin": origins,
        "seq": seqs,
        "change": pa.repeat(pa.scalar(0, pa.int32()), count),
        "guid": _random_bytes(16, count, rng),
        "claim_origin": origins,
        "claim_seq": seqs,
        "modseq": uids,
        "flags": _flag_sets().take(_random_numbers(FLAG_SETS, count, rng)),
        "received_ms": pc.add(pc.multiply(seqs, 1000), BASE_MS),
        "size_bytes": pc.add(_random_numbers(30_000, count, rng), 1000),
        "content_hash": _random_bytes(32, count, rng),
        "also": pa.array([[]] * count, MESSAGES.field("also").type),
        "saved_ms": pc.add(pc.multiply(seqs, 1000), BASE_MS),
    }
    return Block(segments, pa.record_batch([columns[name] for name in MESSAGES.names], schema=MESSAGES))


def _of_runs(segments: Sequence[Segment], values: Sequence[object], kind: pa.DataType) -> Array:
    """Return a value for each segment, repeated for each of its rows."""
    places = [place for place, segment in enumerate(segments) for _ in segment.uids]
    return pa.array(values, kind).take(pa.array(places, pa.int32()))


def _random_bytes(size: int, count: int, rng: random.Random) -> Array:
    values = pa.Array.from_buffers(pa.binary(size), count, [None, pa.py_buffer(rng.randbytes(size * count))])
    return pc.cast(values, pa.binary())


def _random_numbers(below: int, count: int, rng: random.Random) -> Array:
    return pc.cast(pc.floor(pc.multiply(pc.random(count, initializer=rng.getrandbits(32)), below)), pa.int64())


@cache
def _flag_sets() -> Array:
    """Return sets of flags, 70 % of which are not empty."""
    rng = random.Random(0)
    names = (("\\Seen",), ("\\Seen",), ("\\Flagged", "\\Seen"), ("$Forwarded", "\\Deleted", "\\Seen"))
    some = [rng.choice(names) if rng.random() < 0.7 else () for _ in range(FLAG_SETS)]
    sets = [
        [
            {
                "flag": name,
                "time": (BASE_MS + rng.getrandbits(30)) << 16,
                "sid": rng.choice(NODES),
                "set": name != "\\Deleted",
            }
            for name in one
        ]
        for one in some
    ]
    found: Array = pa.array(sets, MESSAGES.field("flags").type)
    return found
