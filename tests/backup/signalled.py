"""The command line in a process that signals itself at a chosen moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RUN = """
import os, sys
from signal import SIG_IGN, signal
from replicator.cli import main

under, numbers, ignored = sys.argv.pop(1), eval(sys.argv.pop(1)), eval(sys.argv.pop(1))
awaited = ["open", *["os.remove"] * (len(numbers) - 1)]
for number in ignored:
    signal(number, SIG_IGN)

def look(event, arguments):
    if numbers and event == awaited[0] and (event != "open" or str(arguments[0]) == under):
        awaited.pop(0)
        os.kill(os.getpid(), numbers.pop(0))

sys.addaudithook(look)
main()
"""
"""Runs the command line, and signals itself: once a file of this name is opened, and again while it cleans up."""


def run_signalled(
    command: Sequence[str], at: Path, numbers: Sequence[int], ignored: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", RUN, str(at), str([*map(int, numbers)]), str([*map(int, ignored)]), *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
