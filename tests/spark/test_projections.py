"""Comparison of each node's index of GUIDs with its messages."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from resync.inventory import TABLES
from spark.comparison import projections
from spark.reading import inventories
from tests.spark.clusters import random_cluster
from tests.spark.writing import Record, message_record, pointers, write

NODES = ("a", "b")


def shown_by(node: str, mailboxes: int) -> list[Record]:
    some = [random_cluster(random.Random(number), number.to_bytes(16)) for number in range(mailboxes)]
    return [
        message_record(one.mailbox, row)
        for one in some
        if node in one.shown
        for _, row in sorted(one.shown[node].state.rows.items())
    ]


@pytest.mark.long
def test_wrong_rows_of_the_index_are_found_by_kind(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(7)
    expected: dict[tuple[str, bytes, bytes], tuple[str, object]] = {}
    for node in NODES:
        messages = shown_by(node, 60)
        index: list[Record] = []
        for one in pointers(messages):
            key = node, _bytes(one, "mailbox"), _bytes(one, "guid")
            match rng.randrange(12):
                case 0:
                    expected[key] = "missing", one["uid"]
                case 1:
                    name = rng.choice(("uid", "origin", "seq", "change"))
                    index.append({**one, name: "z.x" if name == "origin" else _int(one, name) + 1})
                    expected[key] = "different", one["uid"]
                case 2:
                    index += [one, {**one, "guid": rng.randbytes(16)}]
                    expected[node, key[1], _bytes(index[-1], "guid")] = "extra", None
                case _:
                    index.append(one)
        write(tmp_path / node, node, {"messages": messages, "guids": index})
    read = inventories.read(spark, {node: str(tmp_path / node) for node in NODES})
    damaged = projections.damaged(read.tables["messages"], read.tables["guids"]).localCheckpoint()
    found = {
        (one["node"], bytes(one["mailbox"]), bytes(one["guid"])): (one["what"], one["uid"]) for one in damaged.collect()
    }
    assert found == expected
    assert {what for what, _ in found.values()} == {"missing", "different", "extra"}
    counts = Counter((node, what) for (node, _, _), (what, _) in expected.items())
    assert {(one["node"], one["what"]): one["count"] for one in projections.counted(damaged).collect()} == counts


@pytest.mark.long
def test_correct_index_has_no_damage(spark: SparkSession, tmp_path: Path) -> None:
    messages = shown_by("a", 40)
    write(
        tmp_path / "a",
        "a",
        {"messages": messages, "guids": sorted(pointers(messages), key=lambda one: _bytes(one, "guid"))},
    )
    read = inventories.read(spark, {"a": str(tmp_path / "a")})
    assert projections.damaged(read.tables["messages"], read.tables["guids"]).count() == 0


def test_the_index_has_the_columns_that_are_compared() -> None:
    assert {column.name for column in TABLES["guids"]} == {"mailbox", "guid", "uid", "origin", "seq", "change"}


def _bytes(record: Record, name: str) -> bytes:
    value = record[name]
    assert isinstance(value, bytes)
    return value


def _int(record: Record, name: str) -> int:
    value = record[name]
    assert isinstance(value, int)
    return value
