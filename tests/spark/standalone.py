"""A Spark cluster on this machine: a master and workers, each a process of its own, on the loopback interface."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

STARTS_S = 120.0
DEPLOY = "org.apache.spark.deploy"


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
    quick = {"SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "SPARK_DAEMON_MEMORY": "256m"}
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
