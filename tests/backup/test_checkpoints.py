"""A restored database that names checkpoints, in an object store that the node has written to since."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.backup.node_files import Backup, Invoke, NodeFiles, mail, send_to


def test_checkpoints_that_are_gone_since_the_backup_are_written_again(
    node: NodeFiles, back_up: Backup, invoke: Invoke, tmp_path: Path
) -> None:
    def write_checkpoints() -> None:
        done = invoke("checkpoint", "--config", node.config_file, "--json")
        assert (done.exit_code, json.loads(done.stdout)["outcome"]) == (0, "written"), done.output

    def check() -> None:
        words = [sys.executable, "-m", "replicator", "check", "--config", str(node.config_file), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, json.loads(done.stdout)["unproven"]) == (0, 0), done.stdout + done.stderr

    def in_store(kind: str) -> set[str]:
        return {path.name for path in (node.config_file.parent / "checkpoints").rglob(f"*.{kind}")}

    def round_after(token: str) -> None:
        node.ask(lambda: send_to(node.config, (mail(token),)), write_checkpoints)

    round_after("before")
    back_up(tmp_path / "backup")
    before, of_backup = node.shown(), in_store("mailbox")
    round_after("later")
    round_after("last")
    assert not of_backup & in_store("mailbox")
    done = invoke("restore", "--from", tmp_path / "backup", "--replace", "--config", node.config_file)
    assert (done.exit_code, node.shown()) == (0, before), done.output
    manifests = in_store("manifest")
    node.ask(write_checkpoints, check)
    [(position,)] = node.query("SELECT modseq FROM checkpoint WHERE uidvalidity > 0")
    [name] = in_store("mailbox")
    assert name.startswith(f"{position:019}_")
    assert not manifests & in_store("manifest")
