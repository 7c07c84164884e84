from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator.cli.commands.mail import explain
from replicator.cli.commands.mail.explain import asked_mail
from replicator.stories import AskedMail
from tests.cli.conftest import Invoke
from tests.cli.served_pair import ServedPair, served_pair
from tests.replication.cluster import Cluster
from tests.replication.stories.telling import link_apart

MAIL = "Message-ID: <one@example.org>\r\n\r\n"
DATE = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"


async def save_one(nodes: Cluster) -> None:
    await nodes["dc1"].save("before")
    await nodes.converged()


async def save_apart(nodes: Cluster) -> None:
    nodes.isolate("dc2")
    await nodes.linked(["dc1"], ["dc2"])
    await nodes["dc1"].save(f"{MAIL}at dc1")
    await nodes["dc2"].save(f"{MAIL}at dc2")
    await nodes["dc2"].flag(2)


async def link(nodes: Cluster) -> None:
    nodes.rejoin("dc2")
    await nodes.linked()
    await nodes.converged()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ServedPair]:
    with served_pair(tmp_path / "pair") as made:
        made.do(save_one)
        yield made


def urls(pair: ServedPair, *sids: str) -> list[str]:
    return [text for sid in sids or pair.urls for text in ("--url", pair.urls[sid])]


def test_mail_that_is_there_twice_is_explained(pair: ServedPair, invoke: Invoke) -> None:
    pair.do(save_apart)
    apart = invoke("explain", "alice", "INBOX", "2", *urls(pair))
    assert (apart.exit_code, apart.stderr) == (0, "")
    answer = apart.stdout.splitlines()[-1]
    assert answer.startswith("UID 2 is one mail at dc1, and another at dc2, until their branches are joined.")
    assert answer.endswith("No node that was asked has all of them: the nodes have yet to become equal.")
    pair.do(link)
    told = invoke("explain", "alice", "inbox", "<one@example.org>", *urls(pair))
    assert (told.exit_code, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    first, second = (at for at, line in enumerate(lines) if line.startswith(("1. ", "2. ")))
    assert re.fullmatch(
        rf"1\. in INBOX: Message-ID <one@example\.org>, 39 B, received {DATE}, GUID \w{{32}}", lines[first]
    )
    assert re.fullmatch(r"   now: UID \d at dc1 and dc2", lines[first + 1])
    joined = "\n".join(lines)
    assert len(re.findall(rf"   {DATE}  dc[12]  arrived as UID 2  \[dc[12]\.\w+ \d+\]", joined)) == 2
    assert len(re.findall(rf"   {DATE}  dc[12]  merge: UID 2 -> [34]  \[dc[12]\.\w+ \d+\]", joined)) == 2
    assert second > first
    assert re.fullmatch(
        "It is here twice because 2 messages with the same Message-ID were delivered or saved by clients:"
        rf" by dc\d at {DATE} as UID \d and by dc\d at {DATE} as UID \d, while neither node had the other's change;"
        rf" dc\d joined their branches at {DATE}\.",
        lines[-1],
    )


def asked(document: dict[str, list[dict[str, dict[str, list[dict[str, object]]]]]]) -> list[set[object]]:
    """Return the GUIDs of the mails that were asked for, as each node tells it."""
    lives = [node["story"]["lives"] for node in document["nodes"]]
    return [{life["guid"] for life in told if life["same"] == "asked"} for told in lives]


def test_node_is_asked_again_for_a_mail_that_it_knows_otherwise(
    pair: ServedPair, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UID 2 is another mail at each node. A node that has the other branch, and has not joined it, knows of both."""
    pair.do(save_apart)
    one, other = asked(json.loads(invoke("explain", "alice", "INBOX", "2", "--json", *urls(pair)).stdout))
    assert (len(one), len(other), one & other) == (1, 1, set())
    with monkeypatch.context() as patched:
        pair.do(lambda nodes: link_apart(nodes, patched))
        told = invoke("explain", "alice", "INBOX", "2", "--json", *urls(pair))
        assert asked(json.loads(told.stdout)) == [one | other] * 2
    pair.do(link)
    merged = json.loads(invoke("explain", "alice", "INBOX", "2", "--json", *urls(pair)).stdout)
    assert asked(merged) == [one | other] * 2, "both had that UID once"


def test_nodes_that_were_not_asked_are_named(pair: ServedPair, invoke: Invoke) -> None:
    alone = invoke("explain", "alice", "INBOX", "1", *urls(pair, "dc2"))
    assert alone.exit_code == 0
    assert "not asked: dc1; name them by --config or --url to hear what they know" in alone.stdout
    document = json.loads(invoke("explain", "alice", "INBOX", "1", "--json", *urls(pair, "dc2")).stdout)
    assert document["not_asked"] == ["dc1"]
    assert document["answer"] == [invoke("explain", "alice", "INBOX", "1", *urls(pair)).stdout.splitlines()[-1]]


def test_node_that_does_not_answer_is_named(pair: ServedPair, invoke: Invoke) -> None:
    told = invoke("explain", "alice", "INBOX", "1", *urls(pair, "dc1"), "--url", "http://127.0.0.1:9")
    assert told.exit_code == 1
    assert "no answer from http://127.0.0.1:9: no answer (Connection refused); is the node running?" in told.stdout
    assert told.stdout.splitlines()[-1].startswith("It is in INBOX once, as UID 1")
    document = json.loads(
        invoke("explain", "alice", "INBOX", "1", "--json", "--url", "http://127.0.0.1:9", *urls(pair, "dc1")).stdout
    )
    assert [node["error"] is None for node in document["nodes"]] == [False, True]
    none = invoke("explain", "alice", "INBOX", "1", "--url", "http://127.0.0.1:9")
    assert (none.exit_code, none.stdout) == (1, "")
    assert "no answer (Connection refused)" in none.stderr


def test_node_that_hangs_is_not_waited_for(pair: ServedPair, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections, as a stopped process does, and says nothing."""
    monkeypatch.setattr(explain, "ALIVE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        told = invoke("explain", "alice", "INBOX", "1", *urls(pair), "--url", url)
    assert told.exit_code == 1
    assert f"no answer from {url}: no answer (timed out); is the node running?" in told.stdout
    assert told.stdout.splitlines()[-1].startswith("It is in INBOX once, as UID 1")


@pytest.mark.parametrize("mail", ["77", "ab" * 16, "other@example.org"])
def test_unknown_mail(pair: ServedPair, invoke: Invoke, mail: str) -> None:
    told = invoke("explain", "alice", "INBOX", mail, *urls(pair))
    assert told.exit_code == 1
    assert told.stdout.splitlines()[-1] == (
        "No node that was asked knows of such a mail in INBOX: what has left their logs, and is not kept for `undelete`"
        " any more, cannot be told."
    )


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["alice", "Nowhere", "1"], 1, "alice has no folder 'Nowhere' at dc1"),
        (["eve", "INBOX", "1"], 1, "there is no user 'eve'"),
        (["alice", "INBOX"], 2, "Missing argument"),
        (["alice", "INBOX", "seven"], 2, "'seven' is neither a UID (17), nor a GUID"),
        (["alice", "INBOX", "0"], 2, "is neither a UID"),
        (["alice", "", "1"], 2, "must not be empty"),
    ],
)
def test_errors(pair: ServedPair, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("explain", *arguments, *urls(pair, "dc1"))
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr


def test_nodes_must_be_named(invoke: Invoke) -> None:
    result = invoke("explain", "alice", "INBOX", "1")
    assert (result.exit_code, "name at least one node" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("17", AskedMail(uid=17)),
        ("4294967295", AskedMail(uid=2**32 - 1)),
        ("AB" * 16, AskedMail(guid=b"\xab" * 16)),
        ("M" + "ab" * 16, AskedMail(guid=b"\xab" * 16)),
        ("12" * 16, AskedMail(guid=b"\x12" * 16)),
        ("<a@b>", AskedMail(message_id="a@b")),
        ("a@b", AskedMail(message_id="a@b")),
        ("<no at sign>", AskedMail(message_id="no at sign")),
        ('<"a"@b>', AskedMail(message_id="a@b")),
    ],
)
def test_mail_is_named_in_each_way(text: str, asked: AskedMail) -> None:
    assert asked_mail(text) == asked
