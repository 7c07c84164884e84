"""The log on standard error: one line for each event."""

from __future__ import annotations

import logging
import sys
import time

CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n",
    0x0D: "\\r",
}


class OneLineFormatter(logging.Formatter):
    """Formats each event as one line, including tracebacks, so that data from a peer cannot forge another event."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Format the event, with its time in UTC."""
        return super().format(record).translate(CONTROL_CHARACTERS)


def log_to_stderr(level: str, process: str = "") -> None:
    """Log events of this level and above, one line each. `process` is named in each line, if there are several."""
    handler = logging.StreamHandler(sys.stderr)
    within = f" [{process}]" if process else ""
    line = f"%(asctime)sZ %(levelname)s %(name)s{within}: %(message)s"
    handler.setFormatter(OneLineFormatter(line, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
