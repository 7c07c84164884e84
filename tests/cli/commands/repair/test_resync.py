from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from click.testing import Result

from replicator.cli.api.client import NodeClient, TaskKind
from replicator.replication.convergence.fork_scheduler import ForkScheduler
from replicator.replication.log.sender import Sender
from replicator.tasks import ResyncStatus
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.cli.served_pair import ServedPair, served_pair
from tests.replication.cluster import Cluster


async def _never(*_arguments: object) -> None:
    await trio.sleep_forever()


async def _two_saved(nodes: Cluster) -> None:
    for text in ("one", "two"):
        await nodes["dc1"].save(text)
    await nodes.converged()


async def _diverge(nodes: Cluster) -> None:
    """Isolate dc2, and change mail and folders there."""
    nodes.isolate("dc2")
    await nodes.linked(["dc1"], ["dc2"])
    await nodes["dc2"].save("at dc2")
    await nodes["dc2"].expunge(1)
    await nodes["dc2"].mail.create_folder("alice", "[new]")


async def _relink(nodes: Cluster) -> None:
    nodes.rejoin("dc2")
    await nodes.linked()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ServedPair]:
    with served_pair(tmp_path / "pair") as made:
        made.do(_two_saved)
        yield made


@pytest.fixture
def apart(pair: ServedPair, monkeypatch: pytest.MonkeyPatch) -> ServedPair:
    """A pair in which dc2 has changes that no mechanism sends to dc1."""
    pair.do(_diverge)
    monkeypatch.setattr(Sender, "_send", _never)
    monkeypatch.setattr(ForkScheduler, "_look_after", _never)
    pair.do(_relink)
    return pair


def document(result: Result) -> dict[str, object]:
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_resync_of_equal_nodes_finds_nothing(pair: ServedPair, invoke: Invoke) -> None:
    one = invoke("resync", "alice", "INBOX", "--url", pair.url)
    assert (one.exit_code, one.stderr) == (0, "")
    assert one.stdout.startswith("2 mailboxes and trees, ")
    assert one.stdout.endswith(" rows compared with dc2: nothing differs\n")
    everything = invoke("resync", "--all", "--url", pair.url, "--rate", 100_000)
    assert everything.stdout == "The digests of all mailboxes and trees compared with dc2: nothing differs\n"


def test_node_that_cannot_be_compared_is_no_difference(tmp_path: Path, invoke: Invoke) -> None:
    with served_pair(tmp_path / "pair", 3) as pair:
        pair.do(_two_saved)
        result = invoke("resync", "--all", "--url", pair.url)
    assert result.exit_code == 1
    assert "dc3 cannot be reached" in result.stdout
    assert result.stdout.endswith(" compared with dc2: nothing differs; 1 node could not be compared\n")


def test_resync_reports_differences_and_then_makes_nodes_equal(apart: ServedPair, invoke: Invoke) -> None:
    told = invoke("resync", "--user", "alice", "--peer", "dc2", "--dry-run", "--url", apart.url)
    assert told.exit_code == 1
    lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
    assert "dc2 alice (folder tree) 1 missing here unchanged (dry run)" in lines
    assert "dc2 alice INBOX 1 missing here, 1 expunged there unchanged (dry run)" in lines
    assert lines[-1].endswith("2 differ (2 missing here, 1 expunged there); 0 equal now")
    done = invoke("resync", "--user", "alice", "--url", apart.url)
    assert (done.exit_code, done.stdout.count("adopted here")) == (0, 2)
    assert done.stdout.endswith("; 2 equal now\n")
    assert sorted(apart.do(lambda nodes: nodes["dc1"].bodies()).values()) == ["at dc2", "two"]


def test_resync_reports_as_json(apart: ServedPair, invoke: Invoke) -> None:
    result = invoke("resync", "--all", "--json", "--url", apart.url)
    report = document(result)
    assert (result.exit_code, report["state"], report["peers"], report["mended"]) == (0, "done", ["dc2"], 2)
    assert report["differed"] == {"missing_here": 2, "expunged_there": 1}
    assert report["differences"] == [
        {
            "peer": "dc2", "user": "alice", "folder": None, "differed": {"missing_here": 1}, "done": "adopted here",
            "why_not": None,
        },
        {
            "peer": "dc2", "user": "alice", "folder": "INBOX", "done": "adopted here", "why_not": None,
            "differed": {"missing_here": 1, "expunged_there": 1},
        },
    ]  # fmt: skip


def test_interrupt_cancels_the_resync(pair: ServedPair, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_client: NodeClient, _task: TaskKind[ResyncStatus]) -> ResyncStatus:
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeClient, "follow", interrupted)
    result = invoke("resync", "--user", "alice", "--rate", 1, "--url", pair.url)
    assert (result.exit_code, result.stderr) == (1, "Error: resync cancelled\n")


def test_resync_fails_without_other_nodes(served: ServedNode, invoke: Invoke) -> None:
    result = invoke("resync", "--all", "--url", served.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: resync failed: no other node can be reached from dc1")


@pytest.mark.parametrize("mailbox", ["inbox", "Inbox"])
def test_inbox_is_found_in_any_case(pair: ServedPair, invoke: Invoke, mailbox: str) -> None:
    result = invoke("resync", "alice", mailbox, "--url", pair.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2 mailboxes and trees" in result.stdout


def test_unknown_folder_or_user_is_reported(pair: ServedPair, invoke: Invoke) -> None:
    failed = "Error: resync failed: there is no"
    result = invoke("resync", "alice", "Nowhere", "--url", pair.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"{failed} folder 'Nowhere' of alice here or at dc2\n"
    for arguments in (["nobody", "INBOX"], ["--user", "nobody"]):
        result = invoke("resync", *arguments, "--url", pair.url)
        assert (result.exit_code, result.stdout, result.stderr.startswith(failed)) == (1, "", True)


def test_resync_refuses_the_node_itself_as_peer(pair: ServedPair, invoke: Invoke) -> None:
    result = invoke("resync", "--all", "--peer", "dc1", "--url", pair.url)
    assert (result.exit_code, result.stdout, "dc1 is the node itself" in result.stderr) == (2, "", True)


@pytest.mark.parametrize("user", ["a" * 70_000, "\udcff", "a:b"])
def test_invalid_user_name_is_refused(pair: ServedPair, invoke: Invoke, user: str) -> None:
    result = invoke("resync", user, "INBOX", "--url", pair.url)
    assert (result.exit_code, "user" in result.stderr, len(result.stderr) < 1000) == (2, True, True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["alice"],
        ["alice", "INBOX", "--all"],
        ["--all", "--user", "alice"],
        ["--all", "--rate", "0"],
        ["--all", "--rate", "99999999999999"],
        ["alice", ""],
        ["", "INBOX"],
        ["--user", ""],
        ["--all", "--peer", ""],
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: list[str]) -> None:
    assert invoke("resync", *arguments, "--url", "http://127.0.0.1:1").exit_code == 2
