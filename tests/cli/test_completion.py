"""What shells make of the scripts by which they complete commands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

BASH = shutil.which("bash")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH on which `replicator` is this program."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "replicator"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m replicator "$@"\n', "utf-8")
    program.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        (["sta"], ["status"]),
        (["u"], ["undelete", "user"]),
        (["ca", "i"], ["init", "issue"]),
        (["node", "--new"], ["--new-cluster"]),
        (["node", "--log-level", "w"], ["warning"]),
        (["node", "--until"], []),  # hidden
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(path: str, typed: list[str], completions: list[str]) -> None:
    assert BASH is not None
    words = shlex.join(["replicator", *typed])
    script = (
        'eval "$(replicator completion bash)"\n'
        f"COMP_WORDS=({words}) COMP_CWORD={len(typed)}\n"
        "complete -p replicator >&2\n"
        "_replicator_completion replicator\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        [BASH, "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == completions
    assert done.stderr == "complete -o nosort -F _replicator_completion replicator\n"


@pytest.mark.parametrize(("shell", "check"), [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_shells_can_read_their_scripts(invoke: Invoke, tmp_path: Path, shell: str, check: list[str]) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert f"_REPLICATOR_COMPLETE={shell}_complete" in result.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    (tmp_path / "script").write_text(result.stdout, "utf-8")
    done = subprocess.run([program, *check, str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_unknown_shells_are_refused(invoke: Invoke) -> None:
    result = invoke("completion", "tcsh")
    assert (result.exit_code, "'tcsh' is not one of" in result.stderr) == (2, True)
