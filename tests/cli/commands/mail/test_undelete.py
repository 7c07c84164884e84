from __future__ import annotations

import json
from datetime import datetime

import pytest
import trio

from protocol.values import UidSet
from replicator.cli.api.client import NodeClient, TaskKind
from replicator.cli.times import parse_since
from replicator.mail.mailstore import NewMessage
from replicator.tasks import UndeleteStatus
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode

NOW_S = 1_800_000_000.0


@pytest.fixture
def node(served: ServedNode) -> ServedNode:
    """A node at which alice had three messages and expunged two of them."""

    async def fill() -> None:
        folder = await served.mail.folder("alice", "INBOX")
        for number in range(3):
            await served.mail.save(folder, NewMessage(b"mail %d" % number, frozenset({"\\Seen"}), number * 60_000))
        await served.mail.expunge(await served.mail.open_mailbox(folder), UidSet.of([1, 3]))

    trio.from_thread.run(fill, trio_token=served.token)
    return served


def test_undelete_restores_expunged_messages_once(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("undelete", "alice", "inbox", "--url", node.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("2 messages (12 bytes) restored; left out: none\n")
    assert result.stdout.count("restored") == 3
    assert node.bodies("alice", "INBOX") == [b"mail 1", b"mail 0", b"mail 2"]
    again = invoke("undelete", "alice", "INBOX", "--url", node.url)
    assert (again.exit_code, again.stdout) == (
        0,
        "nothing to restore: this node keeps no expunged mail of this folder and time\n",
    )


def test_a_dry_run_changes_nothing(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("undelete", "alice", "INBOX", "--dry-run", "--since", "1h", "--url", node.url)
    assert result.exit_code == 0
    assert result.stdout.endswith("2 messages (12 bytes) would be restored; left out: none\n")
    assert node.bodies("alice", "INBOX") == [b"mail 1"]


def test_messages_expunged_before_since_stay_expunged(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("undelete", "alice", "INBOX", "--since", "2099-01-01", "--url", node.url)
    assert (result.exit_code, result.stdout) == (
        0,
        "nothing to restore: this node keeps no expunged mail of this folder and time\n",
    )


def test_messages_without_a_body_are_left_out_and_reported(node: ServedNode, invoke: Invoke) -> None:
    async def lose_body() -> None:
        [(gone,)] = await node.mail.store.read(
            lambda reader: reader.execute("SELECT content_hash FROM expunged WHERE uid = 3").fetchall()
        )
        await node.mail.store.write(lambda tx: tx.connection.execute("DELETE FROM content WHERE hash = ?", (gone,)))

    trio.from_thread.run(lose_body, trio_token=node.token)
    result = invoke("undelete", "alice", "INBOX", "--json", "--url", node.url)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["state"], report["restored"], report["textless"]) == (1, "done", 1, 1)
    assert [(one["uid"], one["why_not"]) for one in report["messages"]] == [
        (1, None), (3, "no reachable node has its body")
    ]  # fmt: skip
    told = invoke("undelete", "alice", "INBOX", "--url", node.url)
    assert (told.exit_code, "left out: 1 whose body no reachable node has" in told.stdout) == (1, True)

    async def forget() -> None:
        await node.mail.store.write(lambda tx: tx.connection.execute("DELETE FROM expunged").rowcount)

    trio.from_thread.run(forget, trio_token=node.token)


def test_folder_that_never_existed_is_reported(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("undelete", "alice", "Nowhere", "--url", node.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: undelete failed: this node knows no folder 'Nowhere' of alice, present or past\n"


def test_interrupt_cancels_the_undelete(node: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_client: NodeClient, _task: TaskKind[UndeleteStatus]) -> UndeleteStatus:
        raise KeyboardInterrupt

    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(NodeClient, "follow", interrupted)
    monkeypatch.setattr("replicator.replication.tasks.undelete.UndeleteTask._bring_back", hang)
    result = invoke("undelete", "alice", "INBOX", "--url", node.url)
    assert (result.exit_code, result.stderr) == (1, "Error: undelete cancelled\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["alice"],
        ["", "INBOX"],
        ["alice", ""],
        ["alice", "INBOX", "--since", "yesterday"],
        ["alice", "INBOX", "--since", "2026-13-01"],
        ["alice", "INBOX", "--since", "3"],
        ["alice", "INBOX", "--since", ""],
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: list[str]) -> None:
    assert invoke("undelete", *arguments, "--url", "http://127.0.0.1:1").exit_code == 2


def test_invalid_folder_name_is_refused(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("undelete", "alice", "a//b", "--url", node.url)
    assert (result.exit_code, "empty levels" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("90m", NOW_S - 5400),
        ("3d", NOW_S - 3 * 86400),
        ("2026-11-20", datetime(2026, 11, 20).timestamp()),  # noqa: DTZ001 - local time is intended
        ("2026-11-20T10:00", datetime(2026, 11, 20, 10).timestamp()),  # noqa: DTZ001
        ("2026-11-20T10:00+00:00", 1_795_168_800.0),
        ("1960-01-01", 0.0),
    ],
)
def test_since_takes_ages_and_dates(text: str, time_s: float) -> None:
    assert parse_since(text, NOW_S) == int(time_s * 1000)
