from __future__ import annotations

import json
import re

import pytest
import trio

from replicator.cli.api.documents import parsed
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


def listed(node: ServedNode, invoke: Invoke) -> dict[str, tuple[int, bool]]:
    """Return messages and subscription of alice's folders, by name."""
    found = json.loads(invoke("mailbox", "list", "alice", "--json", "--url", node.url).stdout)
    assert found["user"] == "alice"
    return {folder["name"]: (folder["messages"], folder["subscribed"]) for folder in found["folders"]}


def changed(node: ServedNode, invoke: Invoke, *arguments: str) -> str:
    result = invoke("mailbox", *arguments, "--url", node.url)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_folders_are_created_listed_renamed_and_deleted(node: ServedNode, invoke: Invoke) -> None:
    assert changed(node, invoke, "create", "Alice", "Lists/Größe/", "Old", "--subscribe") == (
        "created Lists/Größe/\ncreated Old\n"
    )
    assert listed(node, invoke) == {
        "INBOX": (1, False), "Lists": (0, False), "Lists/Größe": (0, True), "Old": (0, True),
    }  # fmt: skip
    assert changed(node, invoke, "rename", "alice", "inbox", "Old/Kept") == "renamed inbox to Old/Kept\n"
    assert listed(node, invoke)["INBOX"] == (0, False)
    assert listed(node, invoke)["Old/Kept"] == (1, False)
    assert changed(node, invoke, "delete", "alice", "Old", "--yes") == "deleted Old\n"
    assert [*listed(node, invoke)] == ["INBOX", "Lists", "Lists/Größe", "Old/Kept"]
    assert changed(node, invoke, "delete", "alice", "Lists", "--recursive", "--yes") == (
        "deleted Lists/Größe\ndeleted Lists\n"
    )
    assert [*listed(node, invoke)] == ["INBOX", "Old/Kept"]


def test_table_names_subscriptions_without_a_folder(node: ServedNode, invoke: Invoke) -> None:
    assert changed(node, invoke, "subscribe", "alice", "INBOX", "Gone/[x]") == "subscribed INBOX\nsubscribed Gone/[x]\n"
    rows = [re.split(r"  +", line.strip()) for line in changed(node, invoke, "list", "alice").splitlines()]
    assert rows[0] == ["Folders of alice"]
    assert ["INBOX", "1", "1", "4 B", "yes"] in rows
    assert ["Gone/[x]", "-", "-", "-", "yes, but there is no such folder"] in rows
    assert changed(node, invoke, "unsubscribe", "alice", "INBOX", "Gone/[x]").startswith("unsubscribed INBOX\n")
    assert "Gone" not in changed(node, invoke, "list", "alice")
    assert listed(node, invoke) == {"INBOX": (1, False)}


def test_deletion_is_not_begun_without_a_yes(node: ServedNode, invoke: Invoke) -> None:
    changed(node, invoke, "create", "alice", "Old")
    result = invoke("mailbox", "delete", "alice", "Old", "--url", node.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "this deletes Old of alice, with 0 messages; nodes keep it for 14 days" in result.stderr
    changed(node, invoke, "create", "alice", "INBOX/Sub/One")
    result = invoke("mailbox", "delete", "alice", "inbox/Sub", "--recursive", "--url", node.url)
    assert "this deletes INBOX/Sub/One, INBOX/Sub of alice" in result.stderr
    assert "Old" in listed(node, invoke)


def test_what_cannot_be_done_is_named_and_the_rest_is_done(node: ServedNode, invoke: Invoke) -> None:
    result = invoke("mailbox", "create", "alice", "A", "INBOX", "B", "--url", node.url)
    assert (result.exit_code, result.stdout) == (1, "created A\ncreated B\n")
    assert "INBOX" in result.stderr
    assert {"A", "B"} <= listed(node, invoke).keys()
    result = invoke("mailbox", "delete", "alice", "Nowhere", "INBOX", "A", "--yes", "--json", "--url", node.url)
    assert result.exit_code == 1
    assert [(one["name"], one["error"] is None) for one in json.loads(result.stdout)] == [
        ("Nowhere", False), ("INBOX", False), ("A", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["create", "alice", "a//b"], 1, "a folder name has no empty levels"),
        (["create", "alice", "U\u0308ber"], 1, "normal form C"),
        (["create", "eve", "A"], 1, "there is no user 'eve'"),
        (["create", "alice"], 2, "Missing argument 'NAME"),
        (["rename", "alice", "Nowhere", "B"], 1, "Nowhere"),
        (["rename", "alice", "", "B"], 2, "NAME must not be empty"),
        (["delete", "alice", "INBOX", "--yes"], 1, "INBOX cannot be deleted"),
        (["subscribe", "alice", "a\tb"], 1, "a folder name has no control characters"),
        (["list", "eve"], 1, "there is no user 'eve'"),
        (["list", ""], 2, "USER must not be empty"),
    ],
)
def test_changes_are_refused_in_words(
    node: ServedNode, invoke: Invoke, arguments: list[str], code: int, why: str
) -> None:
    result = invoke("mailbox", *arguments, "--url", node.url)
    assert (result.exit_code, result.stdout, why in result.stderr) == (code, "", True), result.stderr
    assert [*listed(node, invoke)] == ["INBOX"]
