"""The same damage, found by a check at the node and by one of its inventory: both count the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from trio.testing import MockClock

from replicator.store.inventory.conversation import Order
from replicator.store.inventory.targets import Directory
from replicator.store.inventory.writing import Inventory
from spark import counting, inventories
from tests.inventory.reading_back import dc7
from tests.replication.cluster import cluster
from tests.replication.test_checking import DAMAGES, fill, run

NAMES = (
    "pointer deleted",
    "pointer bent",
    "placement bent",
    "pointer added",
    "pointers gone",
    "messages counted wrongly",
)


async def test_inventories_show_the_damage_that_a_check_finds(
    spark: SparkSession, tmp_path: Path, autojump_clock: MockClock
) -> None:
    planted = [one for one in DAMAGES if one.name in NAMES]
    found: dict[str, Mapping[str, int]] = {}
    async with cluster(tmp_path / "nodes", autojump_clock, 2) as nodes:
        await fill(nodes)
        node = nodes["dc2"]
        for number, one in enumerate(planted):
            node.damage(*one.statements)
            sid = f"node{number}"
            await node.store.read(partial(write, sid=sid, to=tmp_path / sid))
            found[sid] = (await run(node, repair=True)).damage
    read = inventories.read(spark, {sid: str(tmp_path / sid) for sid in found})
    counted = {one.node: one for one in counting.indexes(read)}
    assert {sid: one.damage for sid, one in counted.items()} == found
    assert {kind for one in counted.values() for kind in one.index} == {"missing", "extra", "different"}
    assert {kind for damage in found.values() for kind in damage} == {"by_guid", "chain"}


def write(connection: sqlite3.Connection, sid: str, to: Path) -> None:
    target = Directory(to)
    target.prepare(overwrite=False)
    order = Order("node.db", str(to), None, str(to), overwrite=False, cluster="mail", node=sid, origin=f"{sid}.a")
    Inventory(connection, target, lambda _: None, dc7).write(order)
