"""Output of commands: tables, JSON documents, and numbers for people."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table

FOLDS = "…"
UNATTENDED_WIDTH = 120  # characters of output that does not go to a terminal, unless COLUMNS says otherwise
_SURROGATE = re.compile("[\ud800-\udfff]")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal or COLUMNS; UNATTENDED_WIDTH for a file or pipe."""
    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if known else UNATTENDED_WIDTH, highlight=False)


def table(title: str, *columns: str) -> Table:
    """Return an empty table. A column named `>name` is right-aligned; one named `name…` may wrap."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        name = column.strip(">" + FOLDS)
        made.add_column(name, justify=justify, no_wrap=name == column.strip(">"), overflow="fold", min_width=len(name))
    return made


def echo(out: Console, *parts: RenderableType) -> None:
    """Print the parts one after the other, without trailing spaces."""
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=True)


def begin_screen() -> None:
    """Clear the terminal and print the time: what follows takes the place of what was shown before."""
    click.clear()
    click.echo(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}")


def own_name() -> str:
    """Return the name by which to call this program from the current directory."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{sys.executable} -m replicator"
    found = shutil.which(program.name)
    if found is not None and Path(found).resolve() == program.resolve():
        return program.name
    return str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def printable(text: str) -> str:
    """Return the text without characters that a terminal would obey, or that change the order of others."""
    return "".join(char if char.isprintable() else "?" for char in text)


def plain(text: str) -> str:
    """Return the text so that neither rich nor a terminal takes any of it for a command."""
    return escape(printable(text))


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines that may quote what others have chosen, such as names of folders."""
    for line in lines:
        click.echo(printable(line))


def echo_json(document: object) -> None:
    """Print an indented JSON document. Octets that are no UTF-8, as in file names, are escaped as surrogates."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    click.echo(_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 mail`, `2 mails`."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def listed(items: Iterable[object]) -> str:
    """Return things in a sentence: `a, b and c`."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def ago(since_ms: int, now_ms: int) -> str:
    """Return the time since `since_ms` in the two largest units: `1d 2h`, `5m 3s`."""
    minutes, seconds = divmod(max(0, now_ms - since_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def size(size_bytes: int) -> str:
    """Return a size to three digits: `512 B`, `1.5 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
