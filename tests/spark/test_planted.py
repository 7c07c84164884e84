"""A whole audit of generated inventories, in which differences of each kind are planted."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.spark.generator import Recipe, generate
from benchmarks.spark.planting import KINDS
from benchmarks.spark.running import audited


@pytest.mark.long
def test_audit_finds_all_planted_differences_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    planted = generate(tmp_path / "inventories", Recipe(2000, large=400, sizes=(20, 60), planted_every=3))
    assert len(planted.kinds) == len(KINDS)
    said = audited(spark, planted.places, tmp_path / "plan")
    assert said.mailboxes == planted.unequal
    assert said.messages == planted.messages
    assert said.held_against(planted) == (0, 0)
    planted.messages.popitem()
    planted.index["dc1", b"?"] = "missing"
    assert said.held_against(planted) == (1, 1)
