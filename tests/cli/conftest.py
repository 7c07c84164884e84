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
def invoke() -> Invoke:
    """Run the command line in this process, with `typed` as its input."""

    def run(*arguments: object, typed: str = "") -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=typed, prog_name="replicator")

    return run
