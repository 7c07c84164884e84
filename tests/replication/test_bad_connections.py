"""A connection that changes what it carries: nobody takes that in, and all that was sent arrives in the end."""

import logging
from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.mailstore import NewMessage
from tests.replication.cluster import Cluster, cluster

TEXT = "Subject: Invoice\r\n\r\nPlease pay 1000 EUR"


def ended(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why links to dc1 ended, at the nodes that ended them."""
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in messages if message.startswith("link to dc1 is down: ")]


async def assert_shown(nodes: Cluster, *texts: str) -> None:
    """At all nodes, under the digests and hashes that all have."""
    await nodes.converged()
    for node in nodes.all():
        assert list((await node.texts()).values()) == list(texts)


async def test_a_digit_of_a_body_that_changes_on_a_link_is_not_taken(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        road = nodes.network.road("dc1", "dc3")
        road.spoil(b"pay 1")
        await nodes["dc1"].save(TEXT)
        await assert_shown(nodes, TEXT)
        assert not road.spoils
        assert len(ended(caplog)) == 1
        assert "other octets than its hash is of" in ended(caplog)[0]


async def test_a_digit_of_a_body_that_changes_on_its_way_to_the_master_is_not_numbered(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        road = nodes.network.road("dc2", "dc1")
        road.spoil(b"pay 1")
        folder = await nodes["dc2"].inbox()
        await nodes["dc2"].mail.save(folder, NewMessage(TEXT.encode()))
        await assert_shown(nodes, "first", TEXT)
        assert not road.spoils
        assert ended(caplog) == []
        assert "a request of dc2 is refused" in caplog.text


ENTRY = rb"SAVE [^\n]* ENTRY \(dc1\."
FIELDS = {  # up to the octet that changes
    "tree's id": rb"MBOX \d+ alice [^ ]+ [0-9a-f]{32}",
    "mailbox id": rb"r\d+ MBOX \d+ alice [^ ]+ [0-9a-f]{32}(?= 1)",
    "user": rb"MBOX \d+ alice",
    "UIDVALIDITY": rb"r\d+ MBOX \d+ alice [^ ]+ [0-9a-f]{32} 1",
    "mailbox number": rb"SAVE \(\d",
    "received": rb"SAVE \(\d+\) \d{13}",
    "GUID": rb"SAVE \(\d+\) \d+ [0-9a-f]{32}",
    "flag": rb"SAVE [^\n]*See",
    "UID": rb"SAVE [^\n]* UID \d",
    "origin": ENTRY + rb"[^:]*(?=:)",
    "seq": ENTRY + rb"[^:]*:\d",
    "predecessor": ENTRY + rb"[^:]*:\d+ \(dc1\.[^:]*:\d",
    "time": ENTRY + rb"[^ ]* \([^)]*\) \d{10}",
    "MODSEQ": ENTRY + rb"[^ ]* \([^)]*\) \d+ \d",
    "digest": ENTRY + rb"[^ ]* \([^)]*\) \d+ \d+ [0-9a-f]{32}",
    "change": ENTRY + rb"[^\n]* 0(?= 1\))",
    "changes": ENTRY + rb"[^\n]* 0 1(?=\))",
    "hash": rb"SAVE [^\n]* HASH [0-9a-f]{64}",
    "body": rb"pay 1",
    "flags added": rb"STORE [^\n]*Flag",
    "messages flagged": rb"STORE \d+ 2",
    "messages expunged": rb"EXPUNGE \d+ 2",
    "folder": rb"CREATE alice Wor",
    "folder's id": rb"CREATE alice Work [0-9a-f]{32}",
    "subscribed": rb"\* SUBSCRIBE alice Wor",
}


@pytest.mark.parametrize("field", FIELDS)
async def test_whatever_changes_of_an_entry_it_is_not_taken(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        node, road = nodes["dc1"], nodes.network.road("dc1", "dc2")
        if b"MBOX" not in FIELDS[field]:
            await node.save("zero")
            await nodes.converged()
        road.spoil(FIELDS[field])
        flags = frozenset({"\\Seen"})
        uid = (await node.mail.save(await node.inbox(), NewMessage(TEXT.encode(), flags=flags))).uid
        await node.flag(uid, added=("\\Flagged",))
        await node.save("last")
        await node.expunge(uid)
        await node.mail.create_folder("alice", "Work")
        await node.mail.subscribe("alice", "Work", subscribed=True)
        shown = await node.texts()
        await nodes.converged()
        assert not road.spoils, "nothing was changed"
        assert len(ended(caplog)) == 1, ended(caplog)
        await assert_shown(nodes, *shown.values())
