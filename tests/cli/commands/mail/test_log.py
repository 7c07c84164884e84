from __future__ import annotations

import json
import re

import pytest
import trio

from protocol.values import UidSet
from replicator.cli.api.client import NodeClient
from replicator.cli.api.documents import parsed
from replicator.mail.mailstore import NewMessage
from replicator.stories import LAST_DEFAULT, LAST_MAX, LoggedHistory
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode

DATE = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def node(served: ServedNode) -> ServedNode:
    """A node at which alice got three mails, read one, and expunged another."""

    async def fill() -> None:
        folder = await served.mail.folder("alice", "INBOX")
        await served.mail.save_all(folder, [NewMessage(b"mail %d" % number) for number in range(3)])
        view = await served.mail.open_mailbox(folder)
        await served.mail.store_flags(view, UidSet.of([3]), added=frozenset({"\\Seen"}))
        await served.mail.store_flags(view, UidSet.of([3]), removed=frozenset({"\\Seen"}))
        await served.mail.expunge(view, UidSet.of([1]))
        await served.mail.create_folder("alice", "Work")

    trio.from_thread.run(fill, trio_token=served.token)
    return served


def test_a_line_for_each_entry_the_newest_first(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("log", "show", "alice", "inbox", "--url", node.url)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = [re.fullmatch(rf"\* {DATE}  dc1  (.*)  \[(dc1\.\w+ \d+)\]", line) for line in result.stdout.splitlines()]
    assert [line and line[1] for line in shown] == [
        "expunged UID 1",
        "\\Seen off UID 3",
        "\\Seen on UID 3",
        "+3 mails UID 1-3",
    ]


def test_folders_of_a_user(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("log", "show", "alice", "--url", node.url)
    assert re.fullmatch(rf"\* {DATE}  dc1  created Work  .*\n\* {DATE}  dc1  created INBOX  .*\n", result.stdout)


def test_last_and_since(node: ServedNode, invoke: Invoke) -> None:
    short = invoke("log", "show", "alice", "INBOX", "--last", "1", "--url", node.url).stdout.splitlines()
    assert (len(short), short[1]) == (2, "there are older entries: ask for them by --last or --since")
    assert len(invoke("log", "show", "alice", "INBOX", "--since", "1h", "--url", node.url).stdout.splitlines()) == 4
    late = invoke("log", "show", "alice", "INBOX", "--since", "2099-01-01", "--url", node.url)
    assert (late.exit_code, late.stdout) == (0, "there are older entries: ask for them by --last or --since\n")


def test_json_is_the_history(node: ServedNode, invoke: Invoke) -> None:
    document = json.loads(invoke("log", "show", "alice", "INBOX", "--json", "--url", node.url).stdout)
    found = parsed(LoggedHistory, document)
    assert (found.node, found.user, found.mailbox, found.is_cut) == ("dc1", "alice", "INBOX", False)
    assert [deed.uids for one in found.entries for deed in one.deeds] == ["1", "3", "3", "1:3"]
    assert found.head == found.entries[0].entry
    assert found.entries[1].entry == found.entries[0].predecessors[0]


def test_as_many_entries_as_asked_for(node: ServedNode, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def history(_client: NodeClient, user: str, mailbox: str, last: int, _since_ms: int) -> LoggedHistory:
        asked.append(last)
        return LoggedHistory("dc1", user, mailbox, "", None, (), (), is_cut=False)

    monkeypatch.setattr(NodeClient, "history", history)
    invoke("log", "show", "alice", "INBOX", "--url", node.url)
    invoke("log", "show", "alice", "INBOX", "--since", "1h", "--url", node.url)
    invoke("log", "show", "alice", "INBOX", "--since", "1h", "--last", "7", "--url", node.url)
    assert asked == [LAST_DEFAULT, LAST_MAX, 7]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["alice", "Nowhere"], 1, "alice has no folder 'Nowhere' at dc1"),
        (["eve", "INBOX"], 1, "there is no user 'eve'"),
        (["bob"], 1, "bob has no folders at dc1"),
        ([], 2, "Missing argument 'USER'"),
        (["alice", ""], 2, "must not be empty"),
        (["alice", "INBOX", "--last", "0"], 2, "--last"),
        (["alice", "INBOX", "--last", str(LAST_MAX + 1)], 2, "--last"),
        (["alice", "INBOX", "--since", "yesterday"], 2, "is not a time"),
    ],
)
def test_errors(node: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("log", "show", *arguments, "--url", node.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr


def test_a_node_must_be_named(invoke: Invoke) -> None:
    assert invoke("log", "show", "alice", "INBOX").exit_code == 2
