"""The baseline for Spark: the rules of `resync` in a loop over mailboxes, on one core, reading with pyarrow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq

from benchmarks.spark.generator import Planted
from protocol.values import Dot
from resync.differing import Side, kinds
from resync.merge import merge_all
from resync.row import Row
from resync.state import MailboxState

BATCH_ROWS = 1 << 14
Record: TypeAlias = dict[str, Any]


def compare_all(planted: Planted) -> float:
    """Return the seconds until relations, merges and kinds of all differences are known; the index is left out."""
    began = time.perf_counter()
    heads = {node: {one["mailbox"]: one for one in _records(place, "heads")} for node, place in planted.places.items()}
    shown = {node: _Shown(place) for node, place in planted.places.items()}
    unequal = 0
    for mailbox in sorted({key for of in heads.values() for key, one in of.items() if one["uidvalidity"]}):
        states = {node: _state(heads[node].get(mailbox), shown[node].take(mailbox)) for node in planted.places}
        first, *others = states.values()
        if any(state != first for state in others):
            unequal += 1
            merge_all(list(states.values()))
            for one, other in combinations(states.values(), 2):
                kinds(_side(one), _side(other))
    if unequal != len(planted.unequal):
        raise AssertionError(f"{unequal} mailboxes are not equal, and {len(planted.unequal)} were planted")
    return time.perf_counter() - began


class _Shown:
    """A node's messages, mailbox by mailbox, in the order of the inventory."""

    def __init__(self, place: str) -> None:
        self._groups = groupby(_records(place, "messages"), key=lambda one: one["mailbox"])
        self._next = next(self._groups, None)

    def take(self, mailbox: bytes) -> dict[int, Row]:
        """Return the messages of this mailbox if it is the next one."""
        if self._next is None or self._next[0] != mailbox:
            return {}
        rows = {one["uid"]: _row(one) for one in self._next[1]}
        self._next = next(self._groups, None)
        return rows


def _records(place: str, table: str) -> Iterator[Record]:
    for path in sorted(Path(place, table).iterdir()):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                yield from batch.to_pylist()


def _row(one: Mapping[str, Any]) -> Row:
    flags = {flag["flag"]: (flag["time"], flag["sid"], flag["set"]) for flag in one["flags"]}
    return Row(
        one["uid"], Dot(one["origin"], one["seq"]), one["change"], one["guid"],
        Dot(one["claim_origin"], one["claim_seq"]), one["modseq"], flags, one["received_ms"], one["size_bytes"],
        one["content_hash"], tuple((Dot(other["origin"], other["seq"]), other["change"]) for other in one["also"]),
        one["saved_ms"],
    )  # fmt: skip


def _state(head: Record | None, rows: dict[int, Row]) -> MailboxState:
    if head is None:
        return MailboxState()
    return MailboxState(head["uidnext"], head["highestmodseq"], dict(head["context"]), rows, head["risen"])


def _side(state: MailboxState) -> Side:
    by_guid = {row.guid: row for row in state.rows.values()}
    return Side(None, state.uidnext, state.modseq, state.context, by_guid, state.risen)
