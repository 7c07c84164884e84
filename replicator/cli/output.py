"""How commands write: tables, documents, and numbers that people read."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

UNATTENDED_WIDTH = 200  # of a table that is not on a terminal: wide enough that no line is folded


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; into a file or pipe, lines are not folded."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else UNATTENDED_WIDTH, highlight=False)


def table(title: str, *columns: str) -> Table:
    """An empty table. Columns named `>so` are aligned right; only the one named `why` may be folded."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        made.add_column(name, justify="left" if name == column else "right", no_wrap=name != "why")
    return made


def echo_json(document: object) -> None:
    """A JSON document on standard output, indented."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def ago(since_ms: int, now_ms: int) -> str:
    """How long since, to the second: `1 day, 2:03:04`."""
    return str(timedelta(seconds=max(0, now_ms - since_ms) // 1000))


def utc(time_ms: int) -> str:
    """A time as `2025-01-31 12:00:00Z`."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def size(size_bytes: int) -> str:
    """A size to three digits: `512 B`, `1.5 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
