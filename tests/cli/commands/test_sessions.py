from __future__ import annotations

import json
import re

import pytest
import trio

from replicator.runtime.sessions import Facts, OpenSession
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


@pytest.fixture
def opened(served: ServedNode) -> dict[str, OpenSession]:
    """Sessions by their addresses."""

    async def open_all() -> dict[str, OpenSession]:
        return {
            "192.0.2.1": await served.sessions.open(Facts("bob", "IDLE", 0, "Lists/[x]", tls=True), "192.0.2.1"),
            "192.0.2.2": await served.sessions.open(Facts("alice", None, 0, None, tls=False), "192.0.2.2"),
            "192.0.2.3": await served.sessions.open(Facts(None, None, 0, None, tls=False), "192.0.2.3"),
        }

    return trio.from_thread.run(open_all, trio_token=served.token)


def test_sessions_are_shown_by_user(served: ServedNode, opened: dict[str, OpenSession], invoke: Invoke) -> None:
    result = invoke("who", "--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    title, heads, _, *rows, total = filter(None, result.stdout.splitlines())
    assert title == "Sessions"
    assert heads.split() == ["session", "user", "address", "protocol", "TLS", "for", "does", "mailbox", "process"]
    found = [re.split(r"  +", row.strip()) for row in rows]
    assert [row[1:5] for row in found] == [
        ["alice", "192.0.2.2", "imap", "no"],
        ["bob", "192.0.2.1", "imap", "yes"],
        ["-", "192.0.2.3", "imap", "no"],
    ]
    assert re.fullmatch(r"IDLE \d+d \d+h", found[1][6])
    assert found[1][7:] == ["Lists/[x]", "core"]
    assert total == f"{len(opened)} sessions of 2 users"


def test_json_has_what_the_node_answers(served: ServedNode, opened: dict[str, OpenSession], invoke: Invoke) -> None:
    [bob] = json.loads(invoke("who", "bob", "--json", "--url", served.url).stdout)
    assert (bob["address"], bob["doing"], bob["process"]) == ("192.0.2.1", "IDLE", "core")
    assert len(json.loads(invoke("who", "--address", "192.0.2.0/24", "--json", "--url", served.url).stdout)) == 3
    assert json.loads(invoke("who", "nobody", "--json", "--url", served.url).stdout) == []
    assert not any(session.was_ended for session in opened.values())


def test_sessions_are_ended(served: ServedNode, opened: dict[str, OpenSession], invoke: Invoke) -> None:
    result = invoke("kick", "Bob", "--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(r"ended \d+\.1: imap of bob from 192\.0\.2\.1\n", result.stdout)
    assert [session.was_ended for session in opened.values()] == [True, False, False]
    [alice] = json.loads(invoke("who", "alice", "--json", "--url", served.url).stdout)
    assert json.loads(invoke("kick", "--session", alice["id"], "--json", "--url", served.url).stdout) == [alice]
    assert [session.was_ended for session in opened.values()] == [True, True, False]


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ([], 2, "name whose sessions to end"),
        ([""], 2, "USER must not be empty"),
        (["alice", "--address", "192.0.2.1"], 1, "there is no such session"),
        (["--address", "mars"], 1, "'mars' is neither an IP address nor a network"),
        (["--session", "7"], 1, "there is no such session"),
    ],
)
def test_errors_end_nothing(served: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("kick", *arguments, "--url", served.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr
    assert len(json.loads(invoke("who", "--json", "--url", served.url).stdout)) == 3
