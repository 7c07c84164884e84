"""The manual pages, which are made when a package is built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from replicator.cli.command_list import cli
from replicator.cli.manual import PROCEDURES, pages

MANDOC, MAN = shutil.which("mandoc"), shutil.which("man")
PAGES = pages("2026-11-27")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command and group with the name of its page."""
    root = cli.make_context("replicator", [], resilient_parsing=True)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        yield f"replicator-{name}.1", command
        if isinstance(command, click.Group):
            yield from ((f"replicator-{name}.1", each) for each in command.commands.values())


def plain(page: str) -> str:
    """Return the page without the language of man(7) and without its lines."""
    text = re.sub(r"\\f[BIR]|^\.PP$", "", page, flags=re.MULTILINE)
    return " ".join(text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\").split())


def test_there_is_a_page_for_each_command_and_nothing_else() -> None:
    assert set(PAGES) == {"replicator.1", *(page for page, _ in commands())}
    for page in PAGES.keys() - {"replicator.1"}:
        assert f".BR {page.removesuffix('.1')} (1)" in plain(PAGES["replicator.1"])


def test_overview_names_the_scripts_of_the_debian_package() -> None:
    assert f"{PROCEDURES} Debian: scripts to grow, " in plain(PAGES["replicator.1"])


def test_pages_describe_all_that_the_commands_take() -> None:
    for page, command in commands():
        text = plain(PAGES[page])
        summary = command.get_short_help_str(200).rstrip(".")
        assert summary.lower() in text.lower(), command.name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert all(name in text for name in parameter.opts), (page, parameter.opts)
                assert " ".join((parameter.help or "").split()) in text, (page, parameter.opts)
            elif isinstance(parameter, click.Argument):
                assert parameter.human_readable_name.upper() in text.upper(), (page, parameter.name)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.hidden:
                assert not any(name in text for name in parameter.opts), (page, parameter.opts)


def test_letters_of_the_language_are_shown_as_they_are() -> None:
    status = PAGES["replicator-status.1"]
    assert "\\fB\\-\\-json\\fR" in status
    assert ".nf\nNodes\n  node        the node's id\n" in status
    assert not [line for page in PAGES.values() for line in page.splitlines() if re.match(r"\.(?![A-Zn f])", line)]


def test_the_command_that_makes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replicator.cli.manual", str(tmp_path / "man"), "--day", "2026-11-27"]
    subprocess.run(command, check=True, timeout=60)
    assert {file.name: file.read_text("utf-8") for file in (tmp_path / "man").iterdir()} == PAGES


@pytest.mark.skipif(MANDOC is None, reason="mandoc is not installed: apt-get install mandoc")
@pytest.mark.parametrize("name", PAGES)
def test_mandoc_finds_no_fault(name: str, tmp_path: Path) -> None:
    assert MANDOC is not None
    (tmp_path / name).write_text(PAGES[name], "utf-8")
    done = subprocess.run([MANDOC, "-Tlint", name], cwd=tmp_path, capture_output=True, text=True, check=False)
    # It looks for the pages that a page names among those that are installed.
    faults = [line for line in done.stdout.splitlines() if "referenced manual not found" not in line]
    assert (faults, done.stderr) == ([], "")
