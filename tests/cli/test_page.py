"""docs/command-line.md, which must name every command and every option, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click

from replicator.cli.command_list import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "command-line.md").read_text("utf-8")
ELSEWHERE = (DOCS / "spark.md").read_text("utf-8")
"""Where options of `diff`, and of `check --spark`, are told."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command by its name, as in `user add`."""
    root = cli.make_context("replicator", [], resilient_parsing=True)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", each) for part, each in command.commands.items())
        elif command is not None:
            yield name, command


def options(command: click.Command) -> set[str]:
    shown = (each for each in command.params if isinstance(each, click.Option) and not each.hidden)
    return {name for each in shown for name in each.opts if name.startswith("--")}


def told() -> set[str]:
    """Return the commands of the table; `ca issue|renew` stands for two."""
    found = set()
    for line in re.findall(r"`replicator ([a-z|\\ -]+)", PAGE.partition("## Commands")[2].partition("\n## ")[0]):
        words = [word.replace("\\", "").split("|") for word in line.split() if not word.startswith("-")]
        found |= {" ".join(choice) for choice in product(*words)}
    return found


def test_each_command_is_told() -> None:
    names = {name for name, _ in commands()}
    missing = {name for name in names if not any(each == name or each.startswith(f"{name} ") for each in told())}
    assert not missing
    unknown = {each for each in told() if not any(each == name or each.startswith(f"{name} ") for name in names)}
    assert not unknown


def test_each_option_is_told() -> None:
    for name, command in commands():
        page = PAGE + ELSEWHERE if name in ("diff", "check") else PAGE
        missing = {option for option in options(command) if f"{option}`" not in page and f"{option} " not in page}
        assert not missing - {"--help"}, name


def test_no_other_option_is_told() -> None:
    known = {"--help", "--version", "--unix-socket"}.union(*(options(command) for _, command in commands()))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= known
