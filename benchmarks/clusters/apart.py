"""Run a load in a process of its own, so that it neither waits for the measuring process nor delays it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict

from benchmarks.clients.load import Load, LoadResult
from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Node

GRACE_S = 60.0
"""Seconds for mails that are under way when the load's time is over."""


def run_apart(load: Load, nodes: Iterable[Node]) -> LoadResult:
    """Run the load. Raises MeasurementError with the last lines of the nodes' logs if a mail is refused."""
    command = [sys.executable, "-m", "benchmarks.clients.load", json.dumps(asdict(load))]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=load.seconds + GRACE_S)
    except subprocess.CalledProcessError as error:
        logs = "\n".join(f"{node.sid}: {node.log_tail()}" for node in nodes)
        raise MeasurementError(f"no load: {error.stderr.decode()[-500:]}\n{logs}") from error
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"a load is not done {GRACE_S:.0f} s after its end") from error
    return LoadResult(**json.loads(done.stdout))
