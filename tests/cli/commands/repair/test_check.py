from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from replicator.cli.api.client import CHECK, NodeClient, SentMessage, TaskKind
from replicator.cli.target import parse_url
from replicator.tasks import CheckStatus
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.store.damaging import damage


@pytest.fixture
def filled(served: ServedNode) -> ServedNode:
    """A node with two messages in alice's INBOX."""
    with NodeClient(parse_url(served.url)) as client:
        for text in (b"one", b"two"):
            client.save("alice", "INBOX", SentMessage(text))
    return served


def document(result: Result) -> dict[str, Any]:
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_check_and_scrub_find_nothing_at_a_sound_node(filled: ServedNode, invoke: Invoke) -> None:
    checked = invoke("check", "--url", filled.url)
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert checked.stdout.endswith(" rows read: 0 damaged; 0 repaired\n")
    scrubbed = invoke("scrub", "--url", filled.url, "--rate", 1_000_000)
    assert (scrubbed.exit_code, scrubbed.stdout) == (0, "2 bodies read: 0 damaged; 0 repaired\n")


def test_check_shows_damage_and_repairs_it_on_request(filled: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    damage(tmp_path / "served" / "node.db", "DELETE FROM by_uid WHERE uid = 2")
    found = invoke("check", "--url", filled.url)
    assert found.exit_code == 1
    assert "1 damaged, 1 in by_uid; 0 repaired" in found.stdout
    assert "--repair" in found.stderr
    row = next(line.split() for line in found.stdout.splitlines() if "missing" in line)
    assert row == ["by_uid", "alice", "INBOX", "2", "is", "missing", "not", "repaired"]
    mended = invoke("check", "--repair", "--url", filled.url)
    assert (mended.exit_code, "rebuilt from the log" in mended.stdout) == (0, True)
    assert [message.uid for message in filled.messages("alice", "INBOX")] == [1, 2]
    assert invoke("check", "--url", filled.url).exit_code == 0


def test_check_reports_as_json(filled: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    damage(tmp_path / "served" / "node.db", "UPDATE chain SET messages = 9 WHERE uidvalidity > 0")
    result = invoke("check", "--repair", "--json", "--url", filled.url)
    report = document(result)
    assert (report["state"], report["damage"], report["repaired"], report["unrepaired"]) == ("done", {"chain": 1}, 1, 0)
    assert report["findings"] == [
        {
            "kind": "chain", "user": "alice", "folder": "INBOX", "uid": None, "guid": None,
            "what": "messages: 9, not 2", "done": "rebuilt from the log", "also": [], "more": 0,
        }
    ]  # fmt: skip


def test_scrub_reports_a_body_that_no_node_has(filled: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    damage(tmp_path / "served" / "node.db", "UPDATE content SET body = x'00' WHERE id = 1")
    result = invoke("scrub", "--json", "--url", filled.url)
    assert (result.exit_code, document(result)["damage"]) == (1, {"content": 1})
    shown = invoke("scrub", "--url", filled.url)
    assert "no reachable node has it" in " ".join(shown.stdout.split())


def test_scrub_names_the_messages_of_a_damaged_body(filled: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    with NodeClient(parse_url(filled.url)) as client:
        for _ in range(2):
            client.save("bob", "INBOX", SentMessage(b"one"))
        client.make_folder("alice", "Work")
        for _ in range(5):
            client.save("alice", "Work", SentMessage(b"one"))
    damage(tmp_path / "served" / "node.db", "UPDATE content SET body = x'00' WHERE id = 1")
    (finding,) = document(invoke("scrub", "--json", "--url", filled.url))["findings"]
    places = [finding, *finding["also"]]
    named = {(one["user"], one["folder"], one["uid"]) for one in places}
    work = {("alice", "Work", uid) for uid in range(1, 6)}
    assert (len(named), finding["more"]) == (5, 3)
    assert named <= {("alice", "INBOX", 1), ("bob", "INBOX", 1), ("bob", "INBOX", 2)} | work
    shown = invoke("scrub", "--url", filled.url).stdout
    lines = shown.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(" content"))
    for line, one in zip(lines[start:], places, strict=False):
        assert [one["user"], one["folder"], str(one["uid"])] == line.removeprefix(" content").split()[:3]
    assert "3 more" in lines[start + 5]


def test_interrupt_cancels_the_check(filled: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_client: NodeClient, _task: TaskKind[CheckStatus]) -> CheckStatus:
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeClient, "follow", interrupted)
    result = invoke("check", "--rate", 1, "--url", filled.url)
    assert (result.exit_code, result.stderr) == (1, "Error: check cancelled\n")


def test_scrub_is_refused_while_a_check_runs(filled: ServedNode, invoke: Invoke) -> None:
    with NodeClient(parse_url(filled.url)) as client:
        client.start(CHECK, {"rate": 1})
        result = invoke("scrub", "--url", filled.url)
        assert (result.exit_code, "is already running here" in result.stderr) == (1, True)
        assert client.cancel(CHECK).state == "cancelled"


def test_wrong_usage(invoke: Invoke) -> None:
    assert invoke("check").exit_code == 2
    for command in ("check", "scrub"):
        for rate in (0, 99_999_999_999_999):
            assert invoke(command, "--url", "http://127.0.0.1:1", "--rate", rate).exit_code == 2
    assert invoke("scrub", "--url", "http://127.0.0.1:1").exit_code == 1
