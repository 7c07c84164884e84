from __future__ import annotations

import json
import re

import pytest
import trio

from replicator.cli.documents import parsed
from replicator.mail.mailstore import NewMessage
from replicator.stories import MailboxStory
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


@pytest.fixture
def node(served: ServedNode) -> ServedNode:
    async def fill() -> None:
        await served.mail.save(await served.mail.folder("alice", "INBOX"), NewMessage(b"mail"))

    trio.from_thread.run(fill, trio_token=served.token)
    return served


def test_mailbox_is_shown(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("mailbox", "show", "alice", "inbox", "--url", node.url)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "alice's INBOX at dc1"
    facts = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines[1:-2])
    assert [*facts] == [
        "mailbox id", "UIDVALIDITY", "UIDNEXT", "HIGHESTMODSEQ", "messages", "head", "checkpoint", "master", "state",
        "expunged mail", "waiting",
    ]  # fmt: skip
    assert (facts["UIDNEXT"], facts["messages"], facts["waiting"]) == ("2", "1, 1 unseen, 4 B", "no entries")
    assert re.fullmatch(r"dc1\.\w+ 2, numbered at 20.*", facts["head"])
    assert facts["master"].startswith("dc1, since 20")
    assert lines[-2:] == ["Other nodes", "  none are configured"]


def test_json_is_the_story(node: ServedNode, invoke: Invoke) -> None:
    story = parsed(
        MailboxStory, json.loads(invoke("mailbox", "show", "alice", "INBOX", "--json", "--url", node.url).stdout)
    )
    assert (story.node, story.mailbox, story.messages, story.nodes) == ("dc1", "INBOX", 1, ())


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["alice", "Nowhere"], 1, "alice has no folder 'Nowhere' at dc1"),
        (["eve", "INBOX"], 1, "there is no user 'eve'"),
        (["alice"], 2, "Missing argument 'MAILBOX'"),
        (["", "INBOX"], 2, "must not be empty"),
    ],
)
def test_errors(node: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str) -> None:
    result = invoke("mailbox", "show", *arguments, "--url", node.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr
