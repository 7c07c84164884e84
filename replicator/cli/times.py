"""Times as operators write and read them."""

from __future__ import annotations

import re
from datetime import datetime

import click

from replicator.config.values import duration

_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def parse_duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Parse the value of an option, such as `10m`, to seconds; a callback of click. Raises click.BadParameter."""
    try:
        return None if text is None else duration(0.0)(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_since(text: str, now_s: float, option: str = "--since") -> int:
    """Parse an age, or a local date and time, to milliseconds since the epoch. Raises click.BadParameter."""
    try:
        is_date = _DATE.match(text) is not None
        seconds = datetime.fromisoformat(text).timestamp() if is_date else now_s - duration(0.0)(text)
    except (ValueError, OverflowError, OSError) as error:
        what = "is not a time: give an age (3d, 12h), or a date (2026-11-20, 2026-11-20T10:00)"
        raise click.BadParameter(f"{text!r} {what}", param_hint=option) from error
    return max(0, int(seconds * 1000))


def local(time_ms: int, to: str = "seconds") -> str:
    """Return local date and time, to the second or `minutes`; `?` for a date that no calendar has."""
    try:
        return datetime.fromtimestamp(time_ms // 1000).astimezone().replace(tzinfo=None).isoformat(" ", to)
    except (ValueError, OverflowError, OSError):  # a clock was wrong, or a client has set an impossible date
        return "?"


def time_of_day(time_ms: int) -> str:
    """Return the local time of day to the millisecond; `?` for a date that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(time_ms // 1000).astimezone():%H:%M:%S}.{time_ms % 1000:03}"
    except (ValueError, OverflowError, OSError):
        return "?"
