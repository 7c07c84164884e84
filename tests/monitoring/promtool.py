"""Prometheus's own tool, which checks metrics, rules and what the rules do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def promtool(*arguments: str | Path, given: str = "") -> None:
    """Run promtool, with this at its standard input. Fails if promtool finds anything."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert not done.stderr, done.stderr
