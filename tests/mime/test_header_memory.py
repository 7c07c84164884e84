"""Memory for a header of very many fields, measured as the peak of a process of its own."""

from __future__ import annotations

import subprocess
import sys

MOST_BYTES = 64 << 20
PROGRAM = """
import resource
from replicator.mime.header import Header
raw = b"a:\\n" * 1_000_000 + b"no field\\n"
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert Header.at(raw, 0, len(raw)).fields_end == 3_000_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_a_million_fields_take_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert int(done.stdout) < MOST_BYTES
