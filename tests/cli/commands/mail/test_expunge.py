from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from protocol.values import UidSet
from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError
from replicator.cli.commands.mail import expunge as command
from replicator.cli.target import parse_url
from replicator.errors import DurabilityError, FolderNotFoundError, MailError
from replicator.http.mail import expunge_routes
from replicator.mail.mailstore import NewMessage
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.cli.served_pair import ServedPair, served_pair
from tests.replication.cluster import Cluster

DAY_MS = 86_400_000
MAILS = 7


def text(number: int) -> bytes:
    return b"Message-ID: <%d@example.org>\r\n\r\n%d" % (number % 3, number)


@pytest.fixture
def node(served: ServedNode, monkeypatch: pytest.MonkeyPatch) -> ServedNode:
    """A node at which alice has mail of seven days, the first of 1970-01-02."""

    async def fill() -> None:
        folder = await served.mail.folder("alice", "INBOX")
        for number in range(1, MAILS + 1):
            await served.mail.save(folder, NewMessage(text(number), received_ms=number * DAY_MS))

    monkeypatch.setattr(command, "AT_ONCE", 2)
    monkeypatch.setattr(command, "RANGES_AT_ONCE", 2)
    monkeypatch.setattr(expunge_routes, "LOOKED_AT", 3)
    trio.from_thread.run(fill, trio_token=served.token)
    return served


def uids(node: ServedNode) -> list[int]:
    return [message.uid for message in node.messages("alice", "INBOX")]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (["--uid", "2,4:5"], [1, 3, 6, 7]),
        (["--uid", "6:*,1,3"], [2, 4, 5]),
        (["--before", "1970-01-05T12:00"], [5, 6, 7]),
        (["--before", "1970-01-01T12:00"], [1, 2, 3, 4, 5, 6, 7]),
        (["--message-id", "<1@example.org>"], [2, 3, 5, 6]),
        (["--message-id", "2@example.org"], [1, 3, 4, 6, 7]),
        (["--all"], []),
    ],
)
def test_mail_that_is_chosen_goes(node: ServedNode, invoke: Invoke, choice: list[str], left: list[int]) -> None:
    result = invoke("expunge", "Alice", "inbox", *choice, "--dry-run", "--url", node.url)
    assert (result.exit_code, result.stderr, uids(node)) == (0, "", [*range(1, MAILS + 1)])
    gone = MAILS - len(left)
    assert result.stdout.startswith(f"would be expunged (dry run): {gone} mails of alice's INBOX, ") or not gone
    result = invoke("expunge", "Alice", "inbox", *choice, "--yes", "--url", node.url)
    assert (result.exit_code, result.stderr, uids(node)) == (0, "", left)
    if not gone:
        assert result.stdout == "there is no such mail in alice's INBOX\n"
        return
    assert result.stdout.startswith(f"expunged {gone} mails of alice's INBOX; until 20")
    assert result.stdout.endswith("`replicator undelete alice INBOX` brings it back\n")
    back = json.loads(invoke("undelete", "alice", "INBOX", "--json", "--url", node.url).stdout)
    assert (back["restored"], len(uids(node))) == (gone, MAILS)


def test_json_tells_what_was_chosen_and_what_came_of_it(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("expunge", "alice", "INBOX", "--uid", "2:4", "--yes", "--json", "--url", node.url)
    told = json.loads(result.stdout)
    assert told.pop("until_ms") > 0
    assert told == {
        "user": "alice", "mailbox": "INBOX", "dry_run": False, "messages": 3, "size_bytes": 3 * len(text(1)),
        "oldest_ms": 2 * DAY_MS, "newest_ms": 4 * DAY_MS, "unchecked": 0, "expunged": 3, "missing": 0, "stopped": None,
        "uncertain": 0,
    }  # fmt: skip


def test_nothing_goes_without_a_yes_where_nobody_can_be_asked(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("expunge", "alice", "INBOX", "--all", "--url", node.url, typed="y\n")
    assert (result.exit_code, result.stdout, uids(node)) == (1, "", [*range(1, MAILS + 1)])
    assert "this expunges 7 mails of alice's INBOX, " in result.stderr
    assert "for `replicator undelete alice INBOX`; say --yes" in result.stderr


@pytest.mark.parametrize(("typed", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 1, MAILS), (b"\n", 1, MAILS)])
def test_a_terminal_is_asked(node: ServedNode, typed: bytes, code: int, left: int) -> None:
    near, far = pty.openpty()
    line = [sys.executable, "-m", "replicator", "expunge", "alice", "INBOX", "--all", "--url", node.url]
    try:
        os.write(near, typed)
        ended = subprocess.run(line, stdin=far, capture_output=True, check=False, timeout=120, text=True)
    finally:
        os.close(near)
        os.close(far)
    assert (ended.returncode, len(uids(node))) == (code, left), ended
    assert "Expunge 7 mails of alice's INBOX, " in ended.stderr
    assert "Go on? [y/N]" in ended.stderr


@pytest.mark.parametrize(
    ("error", "uncertain"), [(DurabilityError("too few nodes"), 2), (FolderNotFoundError("too few nodes"), 0)]
)
def test_what_stops_the_command_is_told_with_what_is_done_by_then(
    node: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, error: MailError, uncertain: int
) -> None:
    batches = 0

    async def third(_user: str) -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise error

    monkeypatch.setattr(node.mail, "before_change", third)
    result = invoke("expunge", "alice", "INBOX", "--all", "--yes", "--url", node.url)
    assert (result.exit_code, uids(node)) == (1, [5, 6, 7])
    assert result.stdout.startswith("expunged 4 mails of alice's INBOX; until ")
    assert "stopped: " in result.stderr
    assert "too few nodes; 3 mails of those chosen may still be there" in result.stderr
    assert ("no answer tells whether 2 mails of these went" in result.stderr) == bool(uncertain)


def test_an_interrupt_leaves_the_batch_on_its_way_uncertain(
    node: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, is_over = 0, trio.Event()

    async def third(_user: str) -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            os.kill(os.getpid(), signal.SIGINT)
            await is_over.wait()

    monkeypatch.setattr(node.mail, "before_change", third)
    result = invoke("expunge", "alice", "INBOX", "--all", "--yes", "--json", "--url", node.url)
    trio.from_thread.run_sync(is_over.set, trio_token=node.token)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["expunged"], told["stopped"], told["uncertain"]) == (1, 4, "interrupted", 2)
    assert "no answer tells whether 2 mails of these went" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["alice", "INBOX"], 2, "give one of --uid, --before, --message-id and --all"),
        (["alice", "INBOX", "--all", "--uid", "1"], 2, "give one of"),
        (["alice", "INBOX", "--uid", "*"], 2, "'*' is neither a UID nor a range of UIDs"),
        (["alice", "INBOX", "--before", "yesterday"], 2, "'yesterday' is not a time"),
        (["alice", "INBOX", "--message-id", "<>"], 2, "must not be empty"),
        (["", "INBOX", "--all"], 2, "must not be empty"),
        (["alice", "Nowhere", "--all", "--yes"], 1, "there is no folder 'Nowhere'"),
        (["eve", "INBOX", "--all", "--yes"], 1, "there is no user 'eve'"),
    ],
)
def test_errors(node: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("expunge", *arguments, "--url", node.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr
    assert len(uids(node)) == MAILS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ServedPair]:
    with served_pair(tmp_path / "pair") as made:
        yield made


async def save_apart(nodes: Cluster) -> None:
    """Give alice a mail that both nodes have, and under its next UID another one at each, while they are cut apart."""
    await nodes["dc1"].save("before")
    await nodes.converged()
    nodes.isolate("dc2")
    await nodes.linked(["dc1"], ["dc2"])
    for sid in ("dc1", "dc2"):
        await nodes[sid].save(f"at {sid}")


async def join(nodes: Cluster) -> None:
    nodes.rejoin("dc2")
    await nodes.linked()
    await nodes.converged()


def test_a_merge_between_look_and_deed_removes_nothing_that_was_not_seen(pair: ServedPair, invoke: Invoke) -> None:
    pair.do(save_apart)
    with NodeClient(parse_url(pair.url)) as client, NodeClient(parse_url(pair.urls["dc2"])) as other:
        seen = client.chosen("alice", "INBOX", {})
        assert (seen.uids, other.chosen("alice", "INBOX", {}).uids) == ("1:2", "1:2")
        with pytest.raises(RefusedError, match="dc1 has told these UIDs, and this is dc2"):
            other.expunge(seen, UidSet.of([2]))
        pair.do(join)
        result = client.expunge(seen, UidSet.of([1, 2]))
        assert (result.messages, result.missing) == (1, 1)
        left = client.chosen("alice", "INBOX", {})
        assert (left.messages, left.uids) == (2, "3:4")
    assert invoke("expunge", "alice", "INBOX", "--all", "--yes", "--url", pair.urls["dc2"]).exit_code == 0
    pair.do(Cluster.converged)
