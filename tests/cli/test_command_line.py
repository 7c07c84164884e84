from __future__ import annotations

import subprocess
import sys
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
        (["cluster", "walk"], "there is no command 'walk'; the commands are: run"),
    ],
)
def test_unknown_command(invoke: Invoke, arguments: list[str], advice: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert advice in result.stderr


def test_unknown_option_before_the_command_is_reported(invoke: Invoke) -> None:
    result = invoke("--versoin")
    assert (result.exit_code, "No such option" in result.stderr) == (2, True)


def run_in_process(before: str) -> subprocess.CompletedProcess[str]:
    """Run `replicator --version` in a process of its own, after the statements of `before`."""
    code = f"import os, signal, sys\n{before}\nfrom replicator.cli import main\nmain()"
    command = [sys.executable, "-c", code, "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["click", "replicator.cli.group", "importlib.metadata"])
def test_interrupt_while_modules_load_aborts_quietly(module: str) -> None:
    done = run_in_process(
        "class Interrupts:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.modules.pop({module!r}, None)\n"
        "sys.meta_path.insert(0, Interrupts())"
    )
    assert (done.returncode, done.stdout, done.stderr.split()) == (1, "", ["Aborted!"])


def test_interrupt_at_exit_is_ignored() -> None:
    done = run_in_process("import atexit\natexit.register(os.kill, os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mail-replicator ")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1080", "http://", "http://h:0", "http://h:99999", "http://h/path"])
def test_invalid_url_is_refused(invoke: Invoke, url: str) -> None:
    result = invoke("status", "--url", url)
    assert result.exit_code == 2
    assert "--url" in result.stderr


def test_error_message_is_one_line() -> None:
    assert str(CommandError("a\nb")) == "a b"
