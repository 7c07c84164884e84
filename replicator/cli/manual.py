"""The manual pages, made of the commands' own help: `python -m replicator.cli.manual DIRECTORY`.

There is a page `replicator(1)`, and one for each command; that of a group describes all its commands. They are in the
language of man(7).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap

import click

from replicator.cli.command_list import cli
from replicator.cli.group import SENTENCE_MAX
from replicator.cli.target import AUTHORITIES_VARIABLE, TOKEN_VARIABLE

NAME = "replicator"
DOCUMENTS = "/usr/share/doc/mail-replicator"
PROCEDURES = "/usr/share/mail-replicator/procedures"
KEEP_LINES = "\b"  # click's mark
LINE_MAX = 70  # of 80 characters; hyphens take two

EXIT_STATUS = {
    "0": "Done.",
    "1": "What was asked for failed, or found a problem.",
    "2": "The usage or the configuration is wrong.",
}
VARIABLES = {
    TOKEN_VARIABLE: "Token for the HTTP listener of a node, unless --token-file names a file with one.",
    AUTHORITIES_VARIABLE: "File with the CAs to trust at https:// addresses; default: those of the system.",
}
FILES = {
    "/etc/mail-replicator/NODE.toml": "Configuration of a node that runs as mail-replicator@NODE.service.",
    "/var/lib/mail-replicator/NODE": "Its data.",
    PROCEDURES: f"Debian: scripts to grow, move, upgrade and repair a cluster; see {DOCUMENTS}/docs/procedures.md.",
}


def pages(day: str) -> Mapping[str, str]:
    """Return all pages by file name. `day`: the date that they show."""
    root = cli.make_context(NAME, [], resilient_parsing=True)
    commands = {name: command for name in cli.list_commands(root) if (command := cli.get_command(root, name))}
    found = {f"{NAME}.1": "\n".join(_overview(root, commands, day)) + "\n"}
    for name, command in commands.items():
        context = click.Context(command, info_name=name, parent=root)
        found[f"{NAME}-{name}.1"] = "\n".join(_page(context, day)) + "\n"
    return found


def _overview(root: click.Context, commands: Mapping[str, click.Command], day: str) -> Iterator[str]:
    yield from _head(root, day)
    yield ".SH COMMANDS"
    for name, command in commands.items():
        yield f".TP\n.BR {_escaped(f'{NAME}-{name}')} (1)"
        yield _text(command.get_short_help_str(SENTENCE_MAX))
    yield from _list("ENVIRONMENT", VARIABLES)
    yield from _list("FILES", FILES)
    yield from _tail(f"The documents of mail\\-replicator, on Debian in\n{_escaped(DOCUMENTS)}")


def _page(context: click.Context, day: str) -> Iterator[str]:
    yield from _head(context, day)
    command = context.command
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            inner = click.Context(each, info_name=name, parent=context)
            yield f".SS {_escaped(_usage(inner))}"
            yield from _paragraphs(each.help)
            yield from _options(inner)
    yield from _tail(f".BR {NAME} (1)")


def _head(context: click.Context, day: str) -> Iterator[str]:
    """Yield what all pages begin with, up to the options."""
    name, command = context.command_path.replace(" ", "-"), context.command
    source = f"mail-replicator {version('mail-replicator')}"
    summary = command.get_short_help_str(SENTENCE_MAX).rstrip(".")
    yield f'.TH {_escaped(name.upper())} 1 "{day}" "{_escaped(source)}" "User Commands"'
    yield f".SH NAME\n{_text(f'{name} - {summary[0].lower()}{summary[1:]}')}"
    yield f".SH SYNOPSIS\n\\fB{_escaped(_usage(context))}\\fR"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help)
    if command.epilog:
        yield ".PP"
        yield from _paragraphs(command.epilog)
    yield ".SH OPTIONS"
    yield from _options(context)


def _tail(*also: str) -> Iterator[str]:
    yield from _list("EXIT STATUS", EXIT_STATUS)
    yield ".SH SEE ALSO"
    yield from also


def _usage(context: click.Context) -> str:
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:  # it is not hidden
            names, _, values = record[0].partition(" ") if len(parameter.opts) == 1 else (record[0], "", "")
            yield f".TP\n\\fB{_escaped(names)}\\fR" + (f" \\fI{_escaped(values)}\\fR" if values else "")
            yield _text(record[1])


def _paragraphs(help_text: str | None) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(help_text or "").strip("\n"))):
        mark, *lines = paragraph.split("\n")
        if number:
            yield ".PP"
        if mark.strip() == KEEP_LINES:
            yield ".nf\n" + "\n".join(map(_escaped, lines)) + "\n.fi"
        elif paragraph:
            yield _text(paragraph)


def _list(title: str, items: Mapping[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, text in items.items():
        yield f".TP\n\\fB{_escaped(name)}\\fR\n{_text(text)}"


def _text(text: str) -> str:
    """Return running text, in lines."""
    return "\n".join(map(_escaped, wrap(text, LINE_MAX, break_long_words=False, break_on_hyphens=False)))


def _escaped(line: str) -> str:
    """Return the line as man(7) has it: a bare hyphen may be shown as another character, which nobody can copy."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--day", help="Date that the pages show; default: today.")
def main(directory: Path, day: str | None) -> None:
    """Write all manual pages into DIRECTORY."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages(day or f"{datetime.now(UTC):%Y-%m-%d}").items():
        (directory / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
