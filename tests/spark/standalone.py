"""A Spark cluster on this machine: a master and workers, each a process of its own, on the loopback interface.

As in a cluster of several machines, executors share only files with the command that they work for. For so little
data, compiling with C1 alone takes half the time.
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

START_TIMEOUT_S = 120.0
DEPLOY = "org.apache.spark.deploy"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DIFF_TIMEOUT_S = 900.0


def diff(places: Mapping[str, Path], to: Path, scratch: Path) -> tuple[int, dict[str, Any]]:
    """Run `replicator diff` of the nodes' inventories on two workers. Return its exit code and its summary.

    Assert that both workers ran tasks.
    """
    events = scratch / "events"
    events.mkdir(parents=True)
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # else one worker would get all of so little data
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
    """Return the executors that have ended tasks."""
    (log,) = events.iterdir()
    lines = (json.loads(line) for line in log.read_text().splitlines())
    return {line["Task Info"]["Executor ID"] for line in lines if line["Event"] == "SparkListenerTaskEnd"}


@contextmanager
def standalone(workers: int, scratch: Path) -> Iterator[str]:
    """Run a master and workers until the block ends. Yield the master's URL."""
    with ExitStack() as processes:
        ready = r"Starting Spark master at (spark://\S+)"
        master = _process("master", f"{DEPLOY}.master.Master", "--port", "0", ready=ready, scratch=scratch)
        url = processes.enter_context(master)
        for number in range(workers):
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(scratch / f"worker{number}"), url)
            ready = "Successfully registered with master"
            worker = _process(f"worker{number}", f"{DEPLOY}.worker.Worker", *options, ready=ready, scratch=scratch)
            processes.enter_context(worker)
        yield url


@contextmanager
def _process(name: str, *command: str, ready: str, scratch: Path) -> Iterator[str]:
    """Run a process until the block ends. Yield what the group of `ready` matches in its log, or else the whole match.

    A worker that ends takes its executors with it.
    """
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
            yield _wait_for(process, log, ready)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found[found.re.groups]
