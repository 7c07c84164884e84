"""The command line as a process, with a Spark that starts quickly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from tests.spark.conftest import INTERPRETED

SETTINGS = {**INTERPRETED, "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
QUICK = [f"--conf={key}={value}" for key, value in SETTINGS.items()]


def replicator(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replicator", *arguments], capture_output=True, text=True, timeout=900, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
