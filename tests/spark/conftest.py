"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.job.settings import SETTINGS
from tests.spark.java import JAVA_INSTALLED, SKIP_REASON

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings that interpret expressions: for so few rows, compiling takes longer. The end-to-end test compiles."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not JAVA_INSTALLED:
        pytest.skip(SKIP_REASON)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    here = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        **INTERPRETED,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # most code runs a few times
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("scratch")),
    }
    for key, value in {**SETTINGS, **here}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
