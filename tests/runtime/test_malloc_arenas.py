"""Areas of memory from which the C library serves threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from replicator.runtime.process.malloc_arenas import ARENAS_MAX

PROGRAM = """
import sys, threading
from replicator.runtime.process.malloc_arenas import share_arenas
if sys.argv[1] == "shared":
    share_arenas()
together = threading.Barrier(8)
def take():
    together.wait()
    kept = [bytes(4000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
maps = [line.split() for line in open("/proc/self/maps")]
starts = [int(words[0].partition("-")[0], 16) for words in maps if words[1] == "rw-p" and len(words) == 5]
print(sum(start % (64 << 20) == 0 for start in starts))
"""
"""Prints how many arenas there are besides the first one: each begins at a multiple of 64 MiB."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_threads_share_a_few_arenas() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}

    def arenas(how: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    assert arenas("shared") < ARENAS_MAX < arenas("each")
