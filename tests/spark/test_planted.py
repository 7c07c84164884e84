"""Differences of each kind, planted in made-up inventories, through a whole audit: all are found, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.spark.generator import Recipe, generate
from benchmarks.spark.planting import KINDS
from benchmarks.spark.running import audited


@pytest.mark.long
def test_all_that_is_planted_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    planted = generate(tmp_path / "inventories", Recipe(2000, large=400, sizes=(20, 60), planted_every=3))
    assert len(planted.kinds) == len(KINDS)
    said = audited(spark, planted.places, tmp_path / "plan")
    assert said.mailboxes == planted.unequal
    assert said.messages == planted.messages
    assert said.held_against(planted) == (0, 0)
    planted.messages.popitem()
    planted.index["dc1", b"?"] = "missing"
    assert said.held_against(planted) == (1, 1)
