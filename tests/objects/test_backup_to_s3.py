"""Backups in a bucket."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

import pytest
import trio
from click.testing import CliRunner, Result

from benchmarks.clients.wire import Address
from replicator.cli.command_list import cli
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from tests.backup.node_files import LARGE, NodeFiles, mail
from tests.backup.signalled import run_signalled
from tests.end_to_end.helpers.in_process import free_ports
from tests.objects.s3_server import BUCKET, needs_rclone

pytestmark = needs_rclone


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    (tmp_path / "users.passwd").write_text("alice:{PLAIN}bench\n", "utf-8")
    text = f'[node]\nid = "dc1"\n[listen]\nlmtp = "127.0.0.1:{free_ports(1)[0]}"\n'
    (tmp_path / "dc1.toml").write_text(text, "utf-8")
    node = NodeFiles(tmp_path / "dc1.toml")
    node.deliver(mail("small"), mail("large", LARGE))
    return node


def run(node: NodeFiles, server: Address, *words: str) -> Result:
    options = ["--endpoint", f"http://{server.host}:{server.port}", "--config", str(node.config_file), "--json"]
    return CliRunner().invoke(cli, [*words, *options])


async def names_in(store: ObjectStore) -> list[str]:
    async with aclosing(store.list()) as listing:
        return sorted([found.name async for found in listing])


def test_backup_goes_to_a_bucket_and_comes_back(node: NodeFiles, server: Address) -> None:
    url, before = f"s3://{BUCKET}/{uuid4()}", node.shown()
    done = run(node, server, "backup", "--to", url)
    assert done.exit_code == 0, done.output
    store = ObjectStore(url, Environment(), f"http://{server.host}:{server.port}")
    names = trio.run(names_in, store)
    assert [name.partition("/")[0] for name in names] == ["attachments", "files", "manifest.jsonl", "node.db"]
    assert not (node.data / "node.db.backup").exists()
    refused = run(node, server, "backup", "--to", url)
    assert (refused.exit_code, "holds a backup; name a new prefix" in refused.stderr) == (1, True)
    assert trio.run(names_in, store) == names
    assert json.loads(run(node, server, "restore", "--from", url, "--check").stdout)["is_in_place"] is False
    shutil.rmtree(node.data)
    done = run(node, server, "restore", "--from", url)
    assert done.exit_code == 0, done.output
    assert (node.shown(), node.broken_attachments()) == (before, [])
    trio.run(store.put, "node.db", [b"other"])
    refused = run(node, server, "restore", "--from", url, "--replace")
    assert (refused.exit_code, "node.db: damaged" in refused.stderr) == (1, True)
    trio.run(store.delete, ["manifest.jsonl"])
    refused = run(node, server, "restore", "--from", url, "--replace")
    assert (refused.exit_code, "or an unfinished one" in refused.stderr) == (1, True)
    assert (node.shown(), node.broken_attachments()) == (before, [])


def test_failed_backup_is_removed_from_the_bucket(node: NodeFiles, server: Address) -> None:
    url = f"s3://{BUCKET}/{uuid4()}"
    store = ObjectStore(url, Environment(), f"http://{server.host}:{server.port}")
    passwords = node.config_file.with_name("users.passwd")
    passwords.unlink()
    passwords.mkdir()  # it cannot be read, which shows after the attachments
    failed = run(node, server, "backup", "--to", url)
    assert (failed.exit_code, "users.passwd: Is a directory" in failed.stderr) == (1, True), failed.output
    assert trio.run(names_in, store) == []
    passwords.rmdir()
    assert run(node, server, "backup", "--to", url).exit_code == 0
    trio.run(store.delete, ["manifest.jsonl"])
    refused = run(node, server, "backup", "--to", url)
    assert (refused.exit_code, "is not empty" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("numbers", "ignored"),
    [
        ([signal.SIGTERM], []),
        ([signal.SIGHUP], []),
        ([signal.SIGINT], []),
        ([signal.SIGTERM], [signal.SIGINT]),  # as a shell's command in the background
    ],
)
def test_backup_that_is_ended_is_removed_from_the_bucket(
    node: NodeFiles, server: Address, numbers: list[int], ignored: list[int]
) -> None:
    url, endpoint = f"s3://{BUCKET}/{uuid4()}", f"http://{server.host}:{server.port}"
    command = ["backup", "--to", url, "--endpoint", endpoint, "--config", str(node.config_file)]
    passwords = node.config_file.with_name("users.passwd")  # it is opened for the upload, by the command's event loop
    done = run_signalled(command, passwords, numbers, ignored)
    assert (done.returncode, done.stderr) == (1, f"Error: the backup to {url} was interrupted\n")
    assert trio.run(names_in, ObjectStore(url, Environment(), endpoint)) == []
    assert not (node.data / "node.db.backup").exists()
