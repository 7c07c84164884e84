"""Further processes of this program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import replicator


def command_of(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this program in a process of its own."""
    return sys.executable, "-P", "-m", module


def environment() -> dict[str, str]:
    """Return the environment of such a process: this one's own, with the same program on the path."""
    root = str(Path(replicator.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
