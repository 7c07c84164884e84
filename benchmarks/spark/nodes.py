"""One node's inventory, written block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from benchmarks.spark.blocks import Block
from benchmarks.spark.exchanging import messages_of, pointers_of
from benchmarks.spark.planting import BASE_MS, MAILBOXES_OF_USER, Mailbox, Plan, Side, origin, seq_of
from replicator.store.inventory.arrays import schema_of
from replicator.store.inventory.parquet import TableWriter, table_writer
from replicator.store.inventory.targets import Directory
from resync.inventory import MANIFEST, TABLES, InventoryManifest

CLUSTER = "made-up"
UIDVALIDITY = 1_700_000_000


@contextmanager
def writing(node: str, place: Path) -> Iterator[Node]:
    """Yield a node to write to. After the block the inventory is complete."""
    target = Directory(place)
    target.prepare(overwrite=False)
    with ExitStack() as tables:
        writers = {table: tables.enter_context(table_writer(table, schema_of(table), target)) for table in TABLES}
        written = Node(node, writers)
        yield written
    rows = {table: writer.rows for table, writer in writers.items()}
    manifest = InventoryManifest(CLUSTER, node, origin(node), BASE_MS, written.context, rows)
    with target.writing(MANIFEST) as file:
        file.write(manifest.to_json())
    written.size_bytes = target.size_bytes


class Node:
    """Writer of one node's inventory. `context`: of everything that the node has seen."""

    def __init__(self, sid: str, writers: Mapping[str, TableWriter]) -> None:
        self.context: dict[str, int] = {}
        self.size_bytes = 0
        self._sid, self._writers = sid, writers

    def write(self, block: Block) -> None:
        self._writers["messages"].write(messages_of(block, self._sid))
        self._writers["guids"].write(pointers_of(block, self._sid))
        begun = [segment for segment in block.segments if 1 in segment.uids]
        users = [one.mailbox for one in begun if one.mailbox.number % MAILBOXES_OF_USER == 0]
        heads = [head for one in begun if (head := self._head(one.mailbox, one.plan))]
        self._records("heads", [*heads, *map(_tree, users)])
        self._records("folders", [_folder(one.mailbox) for one in begun])
        self._records("subscriptions", map(_subscription, users))
        self._records("annotations", ())

    def _records(self, table: str, records: Iterable[Mapping[str, object]]) -> None:
        rows = [dict(record) for record in records]
        self._writers[table].write(pa.RecordBatch.from_pylist(rows, schema=schema_of(table)))

    def _head(self, mailbox: Mailbox, plan: Plan | None) -> Mapping[str, object] | None:
        side = Side() if plan is None else plan.sides[self._sid]
        if side is None:
            return None
        seqs = {mailbox.master: 0, **side.entries}
        context = {origin(node): seq_of(mailbox, node, entry) for node, entry in seqs.items()}
        context[origin(mailbox.master)] -= side.unseen
        last = max(seqs, key=lambda node: (node == mailbox.far, side.entries.get(node, 0)))
        for name, seq in context.items():
            self.context[name] = max(seq, self.context.get(name, 0))
        uidnext = mailbox.messages - side.unseen + len(side.added) + 1
        modseq = mailbox.messages - side.unseen + sum(side.entries.values())
        state = (*sorted(context.items()), side.risen, uidnext, modseq)
        return {
            "mailbox": mailbox.id, "user": mailbox.user, "uidvalidity": UIDVALIDITY, "risen": side.risen,
            "uidnext": uidnext, "highestmodseq": modseq, "head_origin": origin(last), "head_seq": context[origin(last)],
            "context": sorted(context.items()), "messages": side.told + side.shown(mailbox), "master": mailbox.master,
            "digest": blake2b(mailbox.id + repr(state).encode(), digest_size=16).digest(),
        }  # fmt: skip


def _tree(first: Mailbox) -> Mapping[str, object]:
    """Return the head of the tree of the user whose first mailbox this is."""
    name = origin(first.master)
    return {
        "mailbox": b"tree" + first.number.to_bytes(12), "user": first.user, "uidvalidity": 0, "risen": 0, "uidnext": 1,
        "highestmodseq": 1, "head_origin": name, "head_seq": first.first_seq, "context": [(name, first.first_seq)],
        "messages": 0, "master": first.master, "digest": blake2b(first.user.encode(), digest_size=16).digest(),
    }  # fmt: skip


def _folder(mailbox: Mailbox) -> Mapping[str, object]:
    return {
        "mailbox": mailbox.id, "user": mailbox.user, "name": f"Folder {mailbox.number}", "uidvalidity": UIDVALIDITY,
        "deleted": False, "time": BASE_MS << 16, "sid": mailbox.master,
    }  # fmt: skip


def _subscription(first: Mailbox) -> Mapping[str, object]:
    return {
        "user": first.user, "name": f"Folder {first.number}", "subscribed": True, "time": BASE_MS << 16,
        "sid": first.master,
    }  # fmt: skip
