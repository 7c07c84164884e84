from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicator.cli.command_list import cli
from tests.cli.served_node import ServedNode, served_node

Invoke = Callable[..., Result]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(tmp_path / "served") as node:
        yield node


@pytest.fixture
def invoke(tmp_path: Path) -> Invoke:
    """Run the command line in this process, with `typed` as its input. What it remembers is in the test's directory."""

    def run(*arguments: object, typed: str = "") -> Result:
        environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
        words = [str(argument) for argument in arguments]
        return CliRunner(env=environment).invoke(cli, words, input=typed, prog_name="replicator")

    return run
