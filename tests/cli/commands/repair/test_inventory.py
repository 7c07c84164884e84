from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.clusters.cluster import Cluster
from replicator.cli.api.client import INVENTORY, NodeClient, SentMessage
from replicator.cli.target import parse_url
from replicator.replication.tasks import inventory
from replicator.replication.tasks.inventory import COMMAND, InventoryTask
from replicator.runtime.process.own_program import environment
from replicator.store.db import schema
from replicator.store.inventory.conversation import line_of
from resync.inventory import MANIFEST
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.inventory import expected
from tests.inventory.reading_back import ORDER, read_back
from tests.store.damaging import damage


@pytest.fixture
def filled(served: ServedNode) -> ServedNode:
    """A node with two messages in alice's INBOX."""
    with NodeClient(parse_url(served.url)) as client:
        for text in (b"one", b"two"):
            client.save("alice", "INBOX", SentMessage(text, frozenset({"\\Seen"})))
    return served


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An endpoint that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def writers(parent: int | None = None) -> list[psutil.Process]:
    """Return the processes that write inventories for a node."""
    return [child for child in psutil.Process(parent).children() if _writes(child)]


def _writes(process: psutil.Process) -> bool:
    try:
        return "replicator.store.inventory" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False  # the process has ended meanwhile


def awaited_writer(parent: int | None = None) -> psutil.Process:
    """Wait for the process that writes an inventory, and return it."""
    for _ in range(10_000):
        if found := writers(parent):
            return found[0]
    raise AssertionError("there is none")


def test_inventory_holds_what_the_node_shows(filled: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    to = tmp_path / "to"
    result = invoke("inventory", "--to", to, "--url", filled.url)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = "2 heads, 1 folders, 2 messages, 2 guids"
    assert result.stdout.startswith(f"{to}: {rows}; 7 files, ")
    tables, manifest = read_back(files_of(to))
    connection = schema.open_reader(tmp_path / "served" / "node.db")
    wanted = expected.tables(connection)
    connection.close()
    for head in wanted["heads"]:
        head["master"] = "dc1"
    assert tables == wanted
    assert (manifest.cluster, manifest.node, manifest.origin.partition(".")[0]) == ("mail", "dc1", "dc1")
    assert manifest.rows == {"heads": 2, "folders": 1, "subscriptions": 0, "annotations": 0, "messages": 2, "guids": 2}
    again = invoke("inventory", "--to", to, "--url", filled.url)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "holds a complete inventory; name another place, or remove that inventory" in again.stderr
    assert not writers()


@pytest.mark.long
def test_damaged_row_is_reported_and_left_out(filled: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    damage(tmp_path / "served" / "node.db", "UPDATE by_uid SET flags = 'x' WHERE uid = 2")
    result = invoke("inventory", "--to", tmp_path / "to", "--url", filled.url)
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())
    assert ("messages mailbox " in shown, "uid 2 has invalid values in flags" in shown) == (True, True), shown
    assert "1 messages, 2 guids" in shown
    assert "`replicator check --repair`" in result.stderr
    tables, manifest = read_back(files_of(tmp_path / "to"))
    assert ([row["uid"] for row in tables["messages"]], manifest.unreadable) == ([1], {"messages": 1})
    report = json.loads(invoke("inventory", "--json", "--to", tmp_path / "b", "--url", filled.url).stdout)
    assert (report["state"], report["damage"], report["rows"]["messages"]) == ("done", {"messages": 1}, 1)
    [one] = report["unreadable"]
    assert (one["table"], one["what"]) == ("messages", "has invalid values in flags")


@pytest.mark.long
def test_killed_writing_process_is_reported_and_can_be_started_again(
    filled: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killing(_job: InventoryTask, _name: object) -> None:
        for process in writers():
            process.kill()
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                pass  # so that the node's answer meets a broken pipe

    with monkeypatch.context() as patch:
        patch.setattr(InventoryTask, "_master_of", killing)
        result = invoke("inventory", "--to", tmp_path / "to", "--url", filled.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "inventory failed: the process that writes the inventory was killed by SIGKILL" in result.stderr
    assert f"the incomplete inventory stays in {tmp_path / 'to'}: start again with `--overwrite`" in result.stderr
    assert list((tmp_path / "to").iterdir()) == []  # the node begins no file before it knows the masters
    (tmp_path / "to" / "heads").mkdir()
    (tmp_path / "to" / "heads" / "part-00007.parquet").touch()
    refused = invoke("inventory", "--to", tmp_path / "to", "--url", filled.url)
    assert (refused.exit_code, "start again with `--overwrite`" in refused.stderr) == (1, True)
    assert invoke("inventory", "--overwrite", "--to", tmp_path / "to", "--url", filled.url).exit_code == 0
    assert len(read_back(files_of(tmp_path / "to"))[0]["messages"]) == 2


def test_writing_process_that_cannot_start_is_reported(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing program stands for other refusals of the operating system, such as a lack of memory."""
    monkeypatch.setattr(inventory, "COMMAND", (str(tmp_path / "missing"),))
    result = invoke("inventory", "--to", tmp_path / "to", "--url", served.url)
    assert (result.exit_code, result.stdout) == (1, "")
    why = "inventory failed: cannot start the process that writes the inventory: [Errno 2] No such file or directory"
    assert result.stderr.startswith(f"Error: {why}"), result.stderr


def test_interrupt_ends_the_writing_process(
    filled: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, silent_server: str
) -> None:
    begun: list[psutil.Process] = []

    def interrupted(_client: NodeClient, _task: object) -> None:
        begun.append(awaited_writer())
        begun[0].suspend()  # otherwise it would end by itself when the node closes its input
        raise KeyboardInterrupt

    monkeypatch.setattr(inventory, "REMOVAL_S", 0)
    monkeypatch.setattr(NodeClient, "follow", interrupted)
    result = invoke("inventory", "--to", "s3://b/p", "--endpoint", silent_server, "--url", filled.url)
    assert (result.exit_code, result.stderr) == (1, "Error: inventory cancelled\n")
    assert not begun[0].is_running()


@pytest.mark.long
def test_writing_process_ends_when_its_node_is_killed(tmp_path: Path, silent_server: str) -> None:
    with Cluster(tmp_path, ["alice"], size=1, copies=1) as cluster:
        [node] = cluster.nodes
        pid = node.pid
        node.ask("POST", "/api/v1/inventory", {"to": "s3://b/p", "endpoint": silent_server})
        process = awaited_writer(pid)
        os.kill(pid, signal.SIGKILL)  # only the node, not the writing process
        process.wait(timeout=20)
        node.kill()
        node.start()
        pid = node.pid
        node.ask("POST", "/api/v1/inventory", {"to": str(tmp_path / "to")})
        while node.get("/api/v1/inventory?wait=true")["state"] == "running":
            pass
        assert (tmp_path / "to" / MANIFEST).exists()
        node.ask("POST", "/api/v1/inventory", {"to": "s3://b/p", "endpoint": silent_server})
        process = awaited_writer(pid)
        os.kill(pid, signal.SIGTERM)
        process.wait(timeout=20)


def test_writing_process_ends_when_its_input_closes(silent_server: str, tmp_path: Path) -> None:
    """The process is half-way, waiting for the server, when its input closes."""
    order = replace(ORDER, to="s3://b/p", endpoint=silent_server, scratch=str(tmp_path))
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, env=environment()) as process:
        assert process.stdin is not None
        process.stdin.write(line_of(order))
        process.stdin.close()
        try:
            assert process.wait(timeout=20) == 1
        finally:
            process.kill()


@pytest.mark.long
def test_target_of_an_inventory_is_checked(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for to, why in (
        ("relative", "not an absolute path"),
        ("http://x/y", "neither a directory nor s3://"),
        ("", "absolute"),
    ):
        result = invoke("inventory", "--url", served.url, "--to", to)
        assert (result.exit_code, why in result.stderr) == (2, True), result.stderr
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "dc1.toml"
    config.write_text(
        f'[node]\nid = "dc1"\n[listen]\nhttp = "127.0.0.1:{served.port}"\n[users]\npasswd_file = "passwd"\n'
    )
    (tmp_path / "passwd").touch()
    assert invoke("inventory", "--config", config, "--to", "here").exit_code == 0
    assert (tmp_path / "here" / MANIFEST).exists()
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    refused = invoke("inventory", "--url", served.url, "--to", tmp_path / "file")
    assert (refused.exit_code, "file: File exists; is there room, and may the node write there?" in refused.stderr) == (
        1, True,
    )  # fmt: skip


def test_inventory_without_pyarrow_says_how_to_install_it(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without" / "pyarrow").mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')"
    (tmp_path / "without" / "pyarrow" / "__init__.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))
    result = invoke("inventory", "--url", served.url, "--to", tmp_path / "to")
    assert (result.exit_code, "pip install 'mail-replicator[inventory]'" in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "to").exists()


def test_check_is_refused_while_an_inventory_runs(served: ServedNode, invoke: Invoke, silent_server: str) -> None:
    with NodeClient(parse_url(served.url)) as client:
        client.start(INVENTORY, {"to": "s3://b/p", "endpoint": silent_server})
        result = invoke("check", "--url", served.url)
        assert (result.exit_code, "an inventory is already running here" in result.stderr) == (1, True), result.stderr
        assert client.cancel(INVENTORY).state == "cancelled"
