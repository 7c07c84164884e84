"""The log on standard error: one line for each event, for people, for programs, or for systemd's journal."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from replicator.runtime.logs.accept_errors import TRIO_LOGGER, AcceptErrors
from replicator.runtime.logs.fields import LogFields

LEVELS = ("debug", "info", "warning", "error")
PROGRAM = "replicator"
JOURNAL = "JOURNAL_STREAM"
"""The variable by which systemd names the stream that leads to its journal, as `device:inode` (systemd.exec(5))."""

PRIORITIES: Mapping[int, int] = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
"""Priorities of the levels in the journal (sd-daemon(3)); anything above has 2, critical."""

CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n",
    0x0D: "\\r",
}


class LogFormat(StrEnum):
    """The form of a line. AUTO: JOURNAL if standard error leads to systemd's journal, else TEXT."""

    AUTO = "auto"
    TEXT = "text"
    JOURNAL = "journal"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of the log. `levels`: of modules that have one of their own, by the loggers' names."""

    level: str = "info"
    levels: Mapping[str, str] = field(default_factory=dict)
    format: LogFormat = LogFormat.AUTO

    @classmethod
    def of(cls, text: str, format_: LogFormat = LogFormat.AUTO) -> LogSettings:
        """Parse `LEVEL`, or `LEVEL,MODULE=LEVEL,...`, as in `info,imap=debug`. Raises ValueError."""
        level, *further = text.split(",")
        levels = {}
        for item in further:
            module, equals, of_module = item.partition("=")
            if not equals or not all(map(str.isidentifier, module.split("."))):
                raise ValueError(f"{item!r} is not MODULE=LEVEL, such as imap=debug")
            name = module if f"{module}.".startswith(f"{PROGRAM}.") else f"{PROGRAM}.{module}"
            if not _is_module(name):
                raise ValueError(f"there is no module {module!r} in the program; the log names them, as in imap.server")
            levels[name] = _level(of_module)
        return cls(_level(level), levels, format_)


def _is_module(name: str) -> bool:
    place = Path(__file__).parents[3].joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def _level(text: str) -> str:
    if text not in LEVELS:
        raise ValueError(f"{text!r} is no level: {', '.join(LEVELS)}")
    return text


class OneLineFormatter(logging.Formatter):
    """Formats each event as one line, including tracebacks, so that data from a peer cannot forge another event."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Format the event, with its time in UTC."""
        return super().format(record).translate(CONTROL_CHARACTERS)


class JournalFormatter(OneLineFormatter):
    """Formats each event as a line for the journal, which knows the time itself, with its priority before it."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the event."""
        priority = next((PRIORITIES[level] for level in PRIORITIES if record.levelno <= level), 2)
        return f"<{priority}>{super().format(record)}"


class JsonFormatter(logging.Formatter):
    """Formats each event as a JSON object in one line.

    `time` (RFC 3339, UTC, milliseconds), `level`, `logger`, `message`; `process` if it is a door's; `fields`, the named
    values of the message; `error`, the traceback of a defect.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Format the event."""
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        line: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = self._process
        fields = [argument for argument in _arguments(record) if isinstance(argument, LogFields)]
        if fields:
            line["fields"] = {name: value for one in fields for name, value in one.values().items()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def _arguments(record: logging.LogRecord) -> tuple[object, ...]:
    return record.args if isinstance(record.args, tuple) else ()


class _ToStderr(logging.StreamHandler[TextIO]):
    def __init__(self, settings: LogSettings, process: str) -> None:
        super().__init__(sys.stderr)
        self.settings = settings
        self.setFormatter(_formatter(settings.format, process))


def settings_in_force() -> LogSettings:
    """Return how this process logs, for processes that it starts."""
    root = logging.getLogger()
    ours = (handler.settings for handler in root.handlers if isinstance(handler, _ToStderr))
    return next(ours, LogSettings(logging.getLevelName(root.getEffectiveLevel()).lower()))


def log_to_stderr(settings: LogSettings, process: str = "") -> None:
    """Log events to standard error, one line each. `process` is named in each line, if there are several."""
    handler = _ToStderr(settings, process)
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
    logging.getLogger(TRIO_LOGGER).addFilter(AcceptErrors())
    for name, level in settings.levels.items():
        logging.getLogger(name).setLevel(level.upper())


def _formatter(format_: LogFormat, process: str) -> logging.Formatter:
    within = f" [{process}]" if process else ""
    if format_ is LogFormat.JSON:
        return JsonFormatter(process)
    if format_ is LogFormat.JOURNAL or (format_ is LogFormat.AUTO and _leads_to_journal()):
        return JournalFormatter(f"%(name)s{within}: %(message)s")
    return OneLineFormatter(f"%(asctime)sZ %(levelname)s %(name)s{within}: %(message)s", "%Y-%m-%dT%H:%M:%S")


def _leads_to_journal() -> bool:
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # it is closed, or no file
        return False
    return os.environ.get(JOURNAL) == f"{found.st_dev}:{found.st_ino}"
