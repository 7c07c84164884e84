"""Layout of the demo: for a terminal of any width, and as plain text where the output is no terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks.demo.account import Check, Conflict, Folder

WIDTH = 110
"""Columns of text that goes to no terminal; also the longest line on a terminal."""


class Teller:
    """Prints the story and numbers its scenes."""

    def __init__(self, console: Console | None = None) -> None:
        self._out = console or Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
        self._out.width = min(self._out.width, WIDTH)
        self._scenes = 0

    def _print(self, *parts: RenderableType) -> None:
        """Print without blanks at the end of lines, and at once, even into a pipe."""
        with self._out.capture() as captured:
            for part in parts:
                self._out.print(part)
        text = "\n".join(line.rstrip() for line in captured.get().splitlines())
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), flush=True)

    def title(self, text: str) -> None:
        self._print(f"[bold]{escape(text)}[/]")

    def scene(self, title: str, text: str = "") -> None:
        self._scenes += 1
        self._print(f"\n[bold cyan]{self._scenes}  {escape(title)}[/]")
        self.say(text)

    def say(self, text: str) -> None:
        if text:
            self._print(Text(textwrap.indent(textwrap.fill(text, self._out.width - 3), "   ")))

    def act(self, sid: str, what: str, came: str = "") -> None:
        """Print one action at a node, and its result."""
        self._print(f"   [bold]{escape(sid)}[/]  {escape(what):<64}[green]{escape(came)}[/]")

    def facts(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = self._table(*columns)
        for row in rows:
            table.add_row(*map(escape, row))
        self._print(table)

    def folders(self, name: str, shown: Mapping[str, Folder]) -> None:
        """Print one folder as several nodes show it, side by side, one mail per line."""
        lists = [
            [f"{uid:>3} {mail.subject} {' '.join(sorted(mail.flags))}".rstrip() for uid, mail in folder.mails.items()]
            for folder in shown.values()
        ]
        self.facts([f"{name} at {who}" for who in shown], zip_longest(*lists, fillvalue=""))

    def conflicts(self, left: str, right: str, found: Iterable[Conflict]) -> None:
        self.facts(
            ("what conflicted", f"at {left}", f"at {right}", "now, at all nodes"),
            ((conflict.what, conflict.left, conflict.right, conflict.now) for conflict in found),
        )

    def checks(self, checks: Iterable[Check]) -> None:
        table = self._table("", "promise", "how it was checked")
        for check in checks:
            table.add_row(
                "[green]kept[/]" if check.kept else "[bold red]BROKEN[/]", check.promise, escape(check.detail)
            )
        self._print(table)

    def verdict(self, text: str, *, good: bool) -> None:
        self._print(f"[bold {'green' if good else 'red'}]{escape(text)}[/]")

    @staticmethod
    def _table(*columns: str) -> Table:
        table = Table(*map(escape, columns), box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=True)
        for column in table.columns:
            column.overflow = "fold"
        return table
