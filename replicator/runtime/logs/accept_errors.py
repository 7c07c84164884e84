"""Errors of accept(2) in the log: once a minute and in words, where trio tells each of ten tries a second."""

from __future__ import annotations

import logging
import math

TRIO_LOGGER = "trio.serve_listeners"
EVERY_S = 60.0
ADVICE = {
    "EMFILE": "; raise the process's limit of open files (LimitNOFILE= in the unit, `ulimit -n` in a shell)",
    "ENFILE": "; raise the machine's limit of open files (`sysctl fs.file-max`)",
}


class AcceptErrors(logging.Filter):
    """Passes an event of trio's each minute, in other words and without a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the event is to be told."""
        if self._told_s <= record.created < self._told_s + EVERY_S:
            return False
        self._told_s = record.created
        name, text, *_ = record.args if isinstance(record.args, tuple) else ("", record.getMessage())
        record.msg, record.args = "new connections wait: %s%s", (text, ADVICE.get(str(name), ""))
        record.exc_info = record.exc_text = None
        return True
