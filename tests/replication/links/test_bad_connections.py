"""Nodes refuse the commands that a faulty connection changes, and everything that was sent arrives in the end."""

import logging
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.errors import UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication.convergence import fork_merge
from tests.effort import first, spread
from tests.replication.cluster import USER, Cluster, cluster, entries_as_commands, until
from tests.replication.log.truncating import forget_log

BODY = "Subject: Invoice\r\n\r\nPlease pay 1000 EUR"


def link_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the reasons for which other nodes ended their links to dc1."""
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in messages if message.startswith("link to dc1 is down: ")]


async def assert_shown(nodes: Cluster, *bodies: str) -> None:
    """Check that all nodes have the same digests, and show these bodies in INBOX."""
    await nodes.converged()
    for node in nodes.all():
        assert list((await node.bodies()).values()) == list(bodies)


async def test_receiver_refuses_body_that_changed_on_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        road = nodes.network.road("dc1", "dc3")
        road.spoil(b"pay 1")
        await nodes["dc1"].save(BODY)
        await assert_shown(nodes, BODY)
        assert not road.spoils
        assert len(link_errors(caplog)) == 1
        assert "does not match its hash" in link_errors(caplog)[0]


async def test_master_refuses_body_that_changed_on_the_way(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        road = nodes.network.road("dc2", "dc1")
        road.spoil(b"pay 1")
        folder = await nodes["dc2"].inbox()
        await nodes["dc2"].mail.save(folder, NewMessage(BODY.encode()))
        await assert_shown(nodes, "first", BODY)
        assert not road.spoils
        assert link_errors(caplog) == []
        assert "refusing a request of dc2" in caplog.text


ENTRY = rb"SAVE [^\n]* ENTRY \(dc1\."
ENTRY_FIELDS = {  # each pattern ends with the octet that changes
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
    "change": ENTRY + rb"[^\n]* 0(?= 1 \()",
    "changes": ENTRY + rb"[^\n]* 0 1(?= \()",
    "history": ENTRY + rb"[^\n]* 0 1 \([0-9a-f]{32}",
    "hash": rb"SAVE [^\n]* HASH [0-9a-f]{64}",
    "body": rb"pay 1",
    "flags added": rb"STORE [^\n]*Flag",
    "messages flagged": rb"STORE \d+ 2",
    "messages expunged": rb"EXPUNGE \d+ 2",
    "folder": rb"CREATE alice Wor",
    "folder's id": rb"CREATE alice Work [0-9a-f]{32}",
    "subscribed": rb"\* SUBSCRIBE alice Wor",
}


@pytest.mark.parametrize("field", spread(9, ENTRY_FIELDS))
async def test_receiver_refuses_entry_with_changed_field(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
) -> None:
    """The entry travels as commands; `test_entry_batch` changes batches."""
    entries_as_commands(monkeypatch)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        node, road = nodes["dc1"], nodes.network.road("dc1", "dc2")
        if b"MBOX" not in ENTRY_FIELDS[field]:
            await node.save("zero")
            await nodes.converged()
        road.spoil(ENTRY_FIELDS[field])
        flags = frozenset({"\\Seen"})
        uid = (await node.mail.save(await node.inbox(), NewMessage(BODY.encode(), flags=flags))).uid
        await node.flag(uid, added=("\\Flagged",))
        await node.save("last")
        await node.expunge(uid)
        await node.mail.create_folder("alice", "Work")
        await node.mail.subscribe("alice", "Work", subscribed=True)
        shown = await node.bodies()
        await nodes.converged()
        assert not road.spoils, "nothing was changed"
        assert len(link_errors(caplog)) == 1, link_errors(caplog)
        await assert_shown(nodes, *shown.values())


OTHER_FIELDS = {  # fields that no entry's digest covers; each pattern ends with the octet that changes
    "origin of a HELLO": rb"HELLO \d+ dc\d dc\d\.[0-9a-f]+",
    "mailbox of an MBOX": rb"r\d+ MBOX \d+ alice [^ ]+ [0-9a-f]{32}",
    "mailbox number": rb"SYNC MAILBOX \d",
    "mailbox's state": rb"OK SNAPSHOT \d+ [1-9]\d* \d+ ",
}


@pytest.mark.parametrize("field", OTHER_FIELDS)
async def test_changed_hello_and_state_fields_are_refused(
    tmp_path: Path, autojump_clock: MockClock, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node also goes on running when its HELLO arrives with another origin."""
    monkeypatch.setattr(fork_merge, "SHORT_MODSEQ", 0)  # other nodes are asked what they show
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        for folder in ("Other", "Work"):
            await nodes["dc1"].mail.create_folder(USER, folder)
            await nodes["dc1"].save(folder, folder)
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc3"), ("dc2", "dc3"))
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for sid in ("dc1", "dc3"):
            await nodes[sid].save(sid)
        roads = [nodes.network.road(*way) for way in permutations(nodes.sids, 2)]
        for road in roads:
            road.spoil(OTHER_FIELDS[field])
        nodes.network.mend(("dc1", "dc3"), ("dc2", "dc3"))
        await nodes.linked()
        await nodes.converged()
        assert not all(road.spoils for road in roads), "nothing was changed"
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == ["dc1", "dc3", "first"]
            assert list((await node.bodies("Work")).values()) == ["Work"]


async def move_inbox(nodes: Cluster, source: str, target: str) -> None:
    """Move INBOX from one master to another, and ask again if the connection ends."""
    while True:
        with suppress(UnavailableError):
            return await nodes[source].coordinator.handover.move_to(await nodes[source].inbox(), target)
        await trio.sleep(5)


ELECTION_FIELDS = {  # fields about nodes and masters; each pattern ends with the octet that changes
    "links of a node that nobody has": rb"LINKS [^\n]*\(d",
    "number of a node's links": rb"LINKS \(\([^ ]+ \d+ \d",
    "node that nobody has": rb"SETTLED dc",
    "what a node has settled": rb"SETTLED dc\d \d+ \([^\n]*:\d",
    "root's term": rb"ROOT \d",
    "node that has dropped": rb"DROPPED \d+ dc\d",
    "candidate": rb"WHO \d+ [^ ]+ dc\d",
    "master": rb"MASTER dc\d",
    "node that is to be master": rb"MASTER-MOVE \d+ \d+ dc\d",
    "head of what moves": rb"MOVED [^\n]*:\d",
}


@pytest.mark.parametrize("field", first(2, ELECTION_FIELDS))
async def test_changed_election_fields_are_refused(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    """Nodes also do not remember a node that does not exist."""
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        roads = [nodes.network.road(*way) for way in permutations(nodes.sids, 2)]
        for road in roads:
            road.spoil(ELECTION_FIELDS[field])
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes["dc2"].save("second")
        await move_inbox(nodes, "dc1", "dc3")
        await trio.sleep(60)
        await nodes.linked()
        await nodes.converged()
        assert not all(road.spoils for road in roads), "nothing was changed"
        for node in nodes.all():
            assert set(node.coordinator.settled_logs.known()) == set(nodes.sids)
        assert "the connection changes what it carries" in caplog.text


ANY_FIELDS = {  # fields that nothing but a block's check covers; each pattern ends with the octet that changes
    "tag of a request": rb"r\d+ SAVE|r\d(?=\d* SAVE)",
    "flag of a client's change": rb"r\d+ SAVE [^\n]*See",
    "GUID of a client's change": rb"r\d+ SAVE \(\d+\) \d+ [0-9a-f]{32}",
    "reply to a client's change": rb"OK SAVED \(\d",
    "what is on a disk": rb"ACK dc\d\.[0-9a-f]+:\d",
    "what a log lacks": rb"LOG \(dc\d\.[0-9a-f]+:\d",
    "a heartbeat": rb"r\d+ PIN",
}


@pytest.mark.parametrize("field", ANY_FIELDS)
async def test_any_octet_that_changes_on_a_line_without_tls_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1, has_tls=False) as nodes:
        await nodes["dc1"].save("first")  # makes dc1 master
        await nodes.converged()
        roads = [nodes.network.road(*way) for way in permutations(nodes.sids, 2)]
        if field == "what a log lacks":  # a link begins with it
            nodes.network.cut(("dc1", "dc2"))
            await nodes.linked(["dc1"], ["dc2"])
        for road in roads:
            road.spoil(ANY_FIELDS[field])
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        folder = await nodes["dc2"].inbox()
        await nodes["dc2"].mail.save(folder, NewMessage(BODY.encode(), flags=frozenset({"\\Seen"})))
        await until(lambda: not all(road.spoils for road in roads))
        for road in roads:
            road.spoils.clear()
        await until(lambda: "a block has a wrong checksum: the connection changes what it carries" in caplog.text)
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():  # the UID may be another one: if a reply is lost, both nodes may number the message
            assert list((await node.bodies()).values()) == ["first", BODY]
            assert (await node.messages())[1].flags == {"\\Seen"}
            assert (await node.messages())[1].guid == (await nodes["dc2"].messages())[1].guid


async def test_changed_mbox_sends_no_save_to_another_mailbox(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An MBOX arrives with the id of another mailbox, and a SAVE names its number."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("first")
        await nodes["dc1"].save("work", "Work")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        inbox, work = [(await nodes["dc1"].mail.folder(USER, name)).mailbox_id.hex() for name in ("INBOX", "Work")]
        line = nodes.network.change(
            ("dc2", "dc1"),
            b"MBOX (.*) " + inbox.encode(),
            lambda found: b"MBOX %s %s" % (found[1], work.encode()),
        )
        line.until = trio.current_time() + 5
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await nodes["dc1"].save("second")  # makes dc1 master
        await nodes["dc2"].save("third")
        await nodes.converged()
        assert line.done
        for node in nodes.all():
            assert list((await node.bodies("Work")).values()) == ["work"]
            assert sorted((await node.bodies()).values()) == ["first", "second", "third"]


async def test_changed_snapshot_context_skips_no_entries(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The context in the reply to SYNC NODE says where the log goes on; one of its numbers arrives changed."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await nodes.stop("dc2")
        await nodes["dc1"].save("second")
        await forget_log(nodes["dc1"])
        line = nodes.network.change(
            ("dc1", "dc2"),
            rb"(SNAPSHOT \d+ 0 0 0 NIL \(dc1\.[^ ]+:)(\d+)",
            lambda found: b"%s%d" % (found[1], int(found[2]) + 1),
        )
        await nodes.start("dc2")
        await nodes.linked()
        await until(lambda: bool(line.done))
        await nodes.converged()
        await nodes["dc1"].save("third")
        await nodes.converged()
        assert sorted((await nodes["dc2"].bodies()).values()) == ["first", "second", "third"]
