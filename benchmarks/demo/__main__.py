"""`python -m benchmarks.demo`: exit code 0 if every promise was kept, 1 if not."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Cluster
from benchmarks.demo.clients import USER, ActionError
from benchmarks.demo.story import Story
from benchmarks.demo.telling import Teller

LIMIT_S = 120
"""Seconds after which a demo is taken for hung."""


def main() -> None:
    signal.signal(signal.SIGALRM, _hung)
    signal.signal(signal.SIGTERM, _ended)
    signal.alarm(LIMIT_S)
    teller = Teller()
    began = time.perf_counter()
    teller.title("mail-replicator: what happens to mail when the links between data centres break")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="demo-") as directory,
            Cluster(Path(directory) / "nodes", [USER], "", {}, proxied=True) as cluster,
        ):
            kept = Story(cluster, teller).play()
    except (MeasurementError, ActionError, OSError) as error:
        sys.exit(f"demo: it could not be played to its end: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: ended by Ctrl-C")
    seconds = time.perf_counter() - began
    teller.verdict(f"{'Every promise was kept' if kept else 'A promise was BROKEN'}, in {seconds:.0f} s.", good=kept)
    sys.exit(0 if kept else 1)


def _hung(_number: int, _frame: FrameType | None) -> None:
    raise MeasurementError(f"not done after {LIMIT_S} s")


def _ended(_number: int, _frame: FrameType | None) -> None:
    sys.exit("demo: ended by SIGTERM")


if __name__ == "__main__":
    main()
