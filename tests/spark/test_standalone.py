"""An audit on a Spark cluster whose workers are processes of their own, as it runs on many machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from resync import plan
from tests.spark.clusters import NODES
from tests.spark.standalone import standalone
from tests.spark.test_differential import random_clusters, written

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def test_two_workers_share_an_audit(tmp_path: Path) -> None:
    clusters = random_clusters(60)
    places = written(clusters, NODES[:2], tmp_path / "inventories")
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # so little would be the work of one
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    out = tmp_path / "audit"
    inventories = [f"--inventory={node}={place}" for node, place in places.items()]
    conf = [f"--conf={key}={value}" for key, value in settings.items()]
    with standalone(2, tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-m", "replicator", "diff", "--master", url, *inventories, *conf, "--out", out, "--json"],
            capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    relations = [one.relation(NODES[:2]) for one in clusters if {*NODES[:2]} & one.shown.keys()]
    assert found["relations"] == {name: relations.count(name) for name in found["relations"]}
    assert sum(found["relations"].values()) == len(relations)
    assert plan.manifest_from((out / plan.MANIFEST).read_bytes()).messages == found["differing"]
    assert executors(events) == {"0", "1"}


def executors(events: Path) -> set[str]:
    """Those that have ended tasks."""
    (log,) = events.iterdir()
    lines = (json.loads(line) for line in log.read_text().splitlines())
    return {line["Task Info"]["Executor ID"] for line in lines if line["Event"] == "SparkListenerTaskEnd"}
