from __future__ import annotations

from importlib.metadata import version

import pytest

from replicator.cli.target import CommandError
from tests.cli.conftest import Invoke


def test_version(invoke: Invoke) -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"mail-replicator {version('mail-replicator')}\n")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["statsu"], "there is no command 'statsu'; did you mean 'status'?"),
        (["user", "lsit"], "there is no command 'lsit'; did you mean 'list'?"),
        (["cluster", "walk"], "there is no command 'walk'; there are: run"),
    ],
)
def test_unknown_command(invoke: Invoke, arguments: list[str], advice: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert advice in result.stderr


def test_unknown_option_of_the_whole_is_said_to_be_one(invoke: Invoke) -> None:
    result = invoke("--versoin")
    assert (result.exit_code, "No such option" in result.stderr) == (2, True)


def test_failure_is_one_line_whatever_it_quotes() -> None:
    assert str(CommandError("a\nb")) == "a b"
