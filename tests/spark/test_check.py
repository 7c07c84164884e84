"""A check at a node and a check of its inventory on Spark, which count the same damage."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.store.inventory.conversation import Order
from replicator.store.inventory.targets import Directory
from replicator.store.inventory.writing import InventoryWriter
from tests.inventory.reading_back import dc7
from tests.replication.cluster import cluster
from tests.replication.tasks.planted_damage import DAMAGES, fill
from tests.replication.tasks.running import check_at
from tests.spark.commands import QUICK, replicator
from tests.spark.java import needs_java

NAMES = (
    "pointer deleted",
    "pointer bent",
    "placement bent",
    "pointer added",
    "pointers gone",
    "messages counted wrongly",
)


@pytest.mark.long
@needs_java
async def test_spark_check_of_inventories_finds_what_a_node_check_finds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    planted = [one for one in DAMAGES if one.name in NAMES]
    found: dict[str, Mapping[str, int]] = {"sound": {}}
    async with cluster(tmp_path / "nodes", autojump_clock, 2) as nodes:
        await fill(nodes)
        node = nodes["dc2"]
        await node.store.read(partial(write_inventory, sid="sound", to=tmp_path / "sound"))
        for number, one in enumerate(planted):
            node.damage(*one.statements)
            sid = f"node{number}"
            await node.store.read(partial(write_inventory, sid=sid, to=tmp_path / sid))
            found[sid] = (await check_at(node, repair=True)).damage
    given = [f"--inventory={sid}={tmp_path / sid}" for sid in found]
    done = replicator("check", "--spark", *given, *QUICK)
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line.split() for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0] in found]
    counts = {sid: list(map(int, rest)) for sid, *rest in lines}
    assert {sid: (sum(wrong), chain) for sid, (_, _, *wrong, chain, _) in counts.items()} == {
        sid: (damage.get("by_guid", 0), damage.get("chain", 0)) for sid, damage in found.items()
    }
    kinds = zip(*(wrong for _, _, *wrong, _, _ in counts.values()), strict=True)
    assert all(any(kind) for kind in kinds), "missing, extra and different"
    assert {kind for damage in found.values() for kind in damage} == {"by_guid", "chain"}


def write_inventory(connection: sqlite3.Connection, sid: str, to: Path) -> None:
    target = Directory(to)
    target.prepare(overwrite=False)
    order = Order("node.db", str(to), None, str(to), overwrite=False, cluster="mail", node=sid, origin=f"{sid}.a")
    InventoryWriter(connection, target, lambda _: None, dc7).write(order)
