"""A run of the tests with ignored signals, as a shell script starts one in the background."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INTERRUPTED = "tests/cli/test_command_line.py::test_interrupt_while_modules_load_aborts_quietly"
IGNORING = (
    "import os, signal, sys\n"
    "for number in {numbers}: signal.signal(number, signal.SIG_IGN)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "1"], marks=pytest.mark.long)])
def test_children_of_tests_in_the_background_obey_signals(workers: list[str]) -> None:
    ignoring = IGNORING.format(numbers=[int(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)])
    suite = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers, INTERRUPTED]
    done = subprocess.run(
        [sys.executable, "-c", ignoring, *suite], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
