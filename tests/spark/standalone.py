"""A Spark cluster on this machine: a master and workers, each a process of its own, on the loopback interface.

As on many machines, executors share nothing with the command that they work for but the files. Compiling less
thoroughly (C1) halves what so little data costs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

STARTS_S = 120.0
DEPLOY = "org.apache.spark.deploy"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DIFF_TIMEOUT_S = 300.0


def diff(places: Mapping[str, Path], to: Path, scratch: Path) -> tuple[int, dict[str, Any]]:
    """`replicator diff` of inventories, by nodes, on two workers, both of which work. Exit code and summary."""
    events = scratch / "events"
    events.mkdir(parents=True)
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
    inventories = [f"--inventory={node}={place}" for node, place in places.items()]
    conf = [f"--conf={key}={value}" for key, value in settings.items()]
    with standalone(2, scratch) as url:
        done = subprocess.run(
            [sys.executable, "-m", "replicator", "diff", "--master", url, *inventories, *conf, "--out", to, "--json"],
            capture_output=True, text=True, timeout=DIFF_TIMEOUT_S, check=False,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
    assert done.stderr == ""
    assert _executors(events) == {"0", "1"}
    return done.returncode, json.loads(done.stdout)


def _executors(events: Path) -> set[str]:
    """Those that have ended tasks."""
    (log,) = events.iterdir()
    lines = (json.loads(line) for line in log.read_text().splitlines())
    return {line["Task Info"]["Executor ID"] for line in lines if line["Event"] == "SparkListenerTaskEnd"}


@contextmanager
def standalone(workers: int, scratch: Path) -> Iterator[str]:
    """The master's URL. All ends with the block."""
    with ExitStack() as processes:
        says = r"Starting Spark master at (spark://\S+)"
        master = _process("master", f"{DEPLOY}.master.Master", "--port", "0", says=says, scratch=scratch)
        url = processes.enter_context(master)
        for number in range(workers):
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(scratch / f"worker{number}"), url)
            says = "Successfully registered with master"
            worker = _process(f"worker{number}", f"{DEPLOY}.worker.Worker", *options, says=says, scratch=scratch)
            processes.enter_context(worker)
        yield url


@contextmanager
def _process(name: str, *command: str, says: str, scratch: Path) -> Iterator[str]:
    """What its log has said, as far as the pattern `says` has a group. Workers end their executors with themselves."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    quick = {"SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_DAEMON_MEMORY": "256m"}
    environment = {**os.environ, **quick, "SPARK_LOCAL_IP": "127.0.0.1"}
    log = scratch / f"{name}.log"
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, command[0], *where, *command[1:]], stdout=out, stderr=out, env=environment, cwd=scratch
        )
        try:
            yield _said(process, log, says)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _said(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    deadline = time.monotonic() + STARTS_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found[found.re.groups]
