"""Inventories of any number of rows, written as a node writes them, with known differences between them.

Rows are made a block of whole columns at a time, the same for all nodes; where a node shows something else, single rows
of the block are exchanged (`planting`). So memory does not grow with the number of rows. Two things differ from real
inventories: the digests are hashes of a head's numbers and so are equal exactly where those are; and the index of GUIDs
is in the order of GUIDs only within a block.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.spark.blocks import BLOCK_ROWS, Block, Segment, block_of
from benchmarks.spark.exchanging import stray
from benchmarks.spark.nodes import writing
from benchmarks.spark.planting import KINDS, NODES, Mailbox, Message, Plan, forked

SIZES = (20, 2000)
PLANTED_EVERY = 50


@dataclass(frozen=True)
class Recipe:
    """Description of inventories. `rows`: messages per node, roughly, in mailboxes of log-uniform size between `sizes`.

    One mailbox in `planted_every` is not the same everywhere. `large`: messages of one additional mailbox, which is
    forked.
    """

    rows: int
    large: int = 0
    sizes: tuple[int, int] = SIZES
    planted_every: int = PLANTED_EVERY
    seed: int = 1


class Relation(NamedTuple):
    """The result that a comparison should have for a mailbox."""

    relation: str
    uidvalidity_differs: bool
    missing_on: tuple[str, ...]


@dataclass
class Planted:
    """The `places` of the inventories by SID, and the complete list of differences in them.

    `unequal`: mailboxes by id; `messages` by GUID; `index`: the fault, by node and GUID. `mailboxes`, `rows`: the total
    numbers, the latter in the base with which all nodes began.
    """

    places: dict[str, str] = field(default_factory=dict)
    unequal: dict[bytes, Relation] = field(default_factory=dict)
    messages: dict[bytes, Message] = field(default_factory=dict)
    index: dict[tuple[str, bytes], str] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    mailboxes: int = 0
    rows: int = 0
    size_bytes: int = 0


def generate(directory: Path, recipe: Recipe) -> Planted:
    """Write inventories of NODES below the directory."""
    planted = Planted({node: str(directory / node) for node in NODES})
    with ExitStack() as stack:
        nodes = [stack.enter_context(writing(node, directory / node)) for node in NODES]
        for number, segments in enumerate(_blocks(recipe)):
            block = block_of(segments, random.Random(f"{recipe.seed}.{number}"))
            _expect(block, planted)
            for node in nodes:
                node.write(block)
    planted.size_bytes = sum(node.size_bytes for node in nodes)
    return planted


def _mailboxes(recipe: Recipe) -> Iterator[tuple[Mailbox, Plan | None]]:
    """Yield the mailboxes, the large one in the middle. Sequence numbers leave room for the planted entries."""
    rng = random.Random(recipe.seed)
    low, high = recipe.sizes
    rows, seq, number, large = 0, 1, 0, recipe.large
    while rows < recipe.rows:
        is_large = large > 0 and rows >= recipe.rows // 2
        size = large if is_large else round(low * (high / low) ** rng.random())
        mailbox = Mailbox(number, size, seq)
        if is_large:
            large = 0
            yield mailbox, forked(mailbox)
        else:
            rows += size
            yield mailbox, _plan(mailbox, recipe.planted_every)
        seq, number = seq + 2 * size + 16, number + 1


def _plan(mailbox: Mailbox, every: int) -> Plan | None:
    """Return a plan of the next kind in turn, or None."""
    turn, rest = divmod(mailbox.number, every)
    return None if rest else KINDS[turn % len(KINDS)](mailbox)


def _blocks(recipe: Recipe) -> Iterator[list[Segment]]:
    segments: list[Segment] = []
    room = BLOCK_ROWS
    for mailbox, plan in _mailboxes(recipe):
        first = 1
        while first <= mailbox.messages:
            count = min(room, mailbox.messages + 1 - first)
            segments.append(Segment(mailbox, plan, range(first, first + count)))
            first, room = first + count, room - count
            if not room:
                yield segments
                segments, room = [], BLOCK_ROWS
    if segments:
        yield segments


def _expect(block: Block, planted: Planted) -> None:
    guids = block.rows.column("guid")
    place = 0
    for segment in block.segments:
        before = place - segment.uids[0]
        if 1 in segment.uids:
            _expect_mailbox(segment.mailbox, segment.plan, planted)
        for uid, message in (segment.plan.messages if segment.plan else {}).items():
            if uid in segment.uids:
                planted.messages[guids[before + uid].as_py()] = message
        for node, side in (segment.plan.sides if segment.plan else {}).items():
            for uid, what in (side.index if side else {}).items():
                if uid in segment.uids:
                    guid = stray(segment.mailbox) if what == "extra" else guids[before + uid].as_py()
                    planted.index[node, guid] = what
        place += len(segment.uids)
    planted.rows += place


def _expect_mailbox(mailbox: Mailbox, plan: Plan | None, planted: Planted) -> None:
    planted.mailboxes += 1
    if plan is None:
        return
    planted.kinds[plan.kind] += 1
    planted.messages.update(plan.added)
    if plan.relation != "equal":
        missing_on = tuple(node for node in NODES if plan.sides[node] is None)
        planted.unequal[mailbox.id] = Relation(plan.relation, plan.uidvalidity_differs, missing_on)
