"""A real node with mail, small and large, as its files are once it has stopped."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicator.cli.command_list import cli
from tests.backup.node_files import LARGE, Backup, Invoke, NodeFiles, mail
from tests.end_to_end.helpers.in_process import free_ports


@pytest.fixture
def invoke() -> Invoke:
    """Run the command line in this process, whose umask commands change."""

    def run(*arguments: object) -> Result:
        before = os.umask(0o022)
        try:
            return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="replicator")
        finally:
            os.umask(before)

    return run


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node with 20 mails, two with attachments, one of them in two mails."""
    directory = tmp_path_factory.mktemp("template")
    (directory / "users.passwd").write_text("alice:{PLAIN}bench\n", "utf-8")
    (directory / "aliases").write_text("postmaster: alice\n", "utf-8")
    (directory / "dc1.toml").write_text(
        f'[node]\nid = "dc1"\n[listen]\nlmtp = "127.0.0.1:{free_ports(1)[0]}"\n[lmtp]\naliases = "aliases"\n', "utf-8"
    )
    large = mail("large", LARGE)
    same = b"Subject: the same again\r\n" + large
    NodeFiles(directory / "dc1.toml").deliver(
        *(mail(f"mail{number}") for number in range(17)), large, same, mail("x", LARGE)
    )
    return directory


@pytest.fixture
def node(template: Path, tmp_path: Path) -> NodeFiles:
    shutil.copytree(template, tmp_path / "node", ignore=shutil.ignore_patterns("*.sock"))
    return NodeFiles(tmp_path / "node" / "dc1.toml")


@pytest.fixture
def back_up(invoke: Invoke, node: NodeFiles) -> Backup:
    """Make a backup by the command, and return what it prints as JSON."""

    def run(to: Path | str, *options: object, exit_code: int = 0) -> dict[str, object]:
        done = invoke("backup", "--to", to, "--config", node.config_file, "--json", *options)
        assert done.exit_code == exit_code, done.output
        found: dict[str, object] = json.loads(done.stdout)
        return found

    return run
