"""Commands that a peer must not send after its HELLO end that link with one clear error, and do nothing else."""

import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.checksum import check_of
from protocol.commands import (
    Ack,
    Annotate,
    Command,
    Content,
    Copy,
    Create,
    Delete,
    Done,
    EntryCommand,
    Expunge,
    FetchGuid,
    FetchHash,
    FetchUid,
    LinkAdvert,
    Links,
    Log,
    MasterMove,
    Mbox,
    Merge,
    NewMessage,
    Ping,
    RefusalCode,
    Refused,
    Rename,
    Save,
    SaveAll,
    Saved,
    Store,
)
from protocol.stream_codec import Request, Response
from protocol.values import UID_MAX, Dot, UidSet
from replicator.replication.links.entry_codec import MAX_CHANGES, Arrived
from replicator.replication.links.link import COMMANDS_AT_ONCE
from replicator.replication.links.mailbox_numbers import MAX_NUMBERS
from replicator.replication.writes.requests import SAVE_ALL_BYTES
from replicator.store.bodies.body_rows import StoredBody
from resync.entry import NOWHERE, pack_values, tree_id
from tests.replication.cluster import EPOCH_MS, TIMEOUT_S, Cluster, cluster, until
from tests.replication.links.stranger_checks import GUID, MAIL, TWO, as_entry, ask, assert_logged, assert_unharmed, save
from tests.replication.stranger import INBOX, INBOX_FIELDS, ORIGIN, Stranger, approach, header, reasons, text_of, visit

NEVER_GIVEN = "no MBOX has assigned mailbox number 7"


NOTE = ("/private/comment", b"x")
THREE_PREDECESSORS = replace(header(1), predecessors=(Dot(ORIGIN, 7), Dot(ORIGIN, 8), Dot(ORIGIN, 9)))
COPIED = Copy(0, 1, UidSet(), (GUID,), 0, (), 1, b"h" * 32, 4)


@pytest.mark.parametrize(
    ("commands", "error"),
    [
        ([MAIL], "a SAVE without a tag must carry an entry"),
        ([as_entry(replace(MAIL, uid=None))], "a SAVE that carries an entry lacks values that the master assigns"),
        ([as_entry(replace(MAIL, mailboxes=(7,)))], NEVER_GIVEN),
        ([as_entry(replace(MAIL, mailboxes=()))], "must name one mailbox"),
        ([as_entry(replace(MAIL, mailboxes=(1, 1)))], "must name one mailbox"),
        ([as_entry(replace(COPIED, guids=()))], "a COPY that carries an entry lacks values"),
        ([as_entry(replace(COPIED, size=None))], "a COPY that carries an entry lacks values"),
        ([as_entry(replace(COPIED, content_hash=None))], "a COPY that carries an entry lacks values"),
        ([as_entry(Store(1, UidSet.of([1]), ("a",), ("b",)))], "a STORE that carries an entry lacks values"),
        ([Merge(1, header(1), b"")], "0 bytes are not a change of an entry"),
        ([as_entry(MAIL, header(1, change=1, changes=2))], "change 1 arrived out of order"),
        ([as_entry(MAIL, TWO), as_entry(MAIL, header(1, change=2, changes=3))], "change 2 arrived out of order"),
        ([as_entry(MAIL, TWO), as_entry(MAIL, header(2, change=1, changes=2))], "change 1 arrived out of order"),
        ([as_entry(MAIL, TWO), as_entry(MAIL, header(2))], "was interrupted by"),
        ([as_entry(MAIL, TWO), as_entry(Expunge(2, UidSet.of([1])), header(1, change=1, changes=2))], "to different"),
        ([as_entry(MAIL, header(1, changes=MAX_CHANGES + 1))], "100001 changes; it must have 1 to 100000"),
        ([as_entry(MAIL, header(1, changes=0))], "0 changes; it must have 1"),
        ([as_entry(MAIL, THREE_PREDECESSORS)], "has more than 2 predecessors"),
        ([as_entry(MAIL, replace(header(1), modseq=1 << 62))], "has a MODSEQ out of range"),
        ([as_entry(MAIL, replace(header(1), time=0))], "has a time out of range"),
        ([as_entry(MAIL, replace(header(1), time=1 << 62))], "has a time out of range"),
        ([as_entry(replace(MAIL, uid=UID_MAX))], "has a change with a value out of range"),
        ([as_entry(replace(MAIL, received_ms=1 << 62))], "has a change with a value out of range"),
        ([as_entry(Expunge(1, UidSet()))], "has a change with a value out of range"),
        ([as_entry(Create("alice", "x", b"x" * 16, 0))], "has a change with a value out of range"),
        ([as_entry(Annotate("alice", NOWHERE, b""))], "0 bytes are not values of annotations"),
        ([as_entry(Annotate("alice", NOWHERE, pack_values([("x", b"")])))], "has a change with a value out of range"),
        ([as_entry(Annotate("alice", NOWHERE, pack_values([NOTE, NOTE])))], "has a change with a value out of range"),
        ([Ping()], "a PING needs a tag"),
        ([Log(())], "a LOG needs a tag"),
        ([Mbox(MAX_NUMBERS + 1, "alice", "", b"m" * 16, 1)], "not between 1 and 10000"),
        ([Mbox(0, "alice", "", b"m" * 16, 1)], "mailbox number 0"),
        ([Mbox(1, "alice", "", b"m" * 16, 0)], "a tree whose id does not belong to its user"),
    ],
)  # fmt: skip
async def test_invalid_entry_ends_the_link(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    commands: list[Command],
    error: str,
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            await stranger.number_mailbox()
            await stranger.send(Mbox(2, "alice", "Work", b"w" * 16, 9))
            for command in commands:
                await stranger.send(command)
            assert await stranger.ended()
        await assert_unharmed(nodes)
        assert_logged(caplog, error)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0\r\n",
        b"* HELLO\r\n",
        b"* SAVE (1) 0 x {99999999999+}\r\n",
        b"* PING " + b"(" * 1_000_000 + b"\r\n",
        b"x" * 2_000_000,
        b"* DONE\r\n",
        b"a OK ENTRY x:\r\n",
    ],
)
async def test_bytes_outside_the_protocol_end_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            with contextlib.suppress(trio.BrokenResourceError):
                await stranger.stream.send_all(data)
            assert await stranger.ended()
        await assert_unharmed(nodes)
        assert len(reasons(caplog.records)) == 1


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (save(1), None),
        (replace(MAIL, uid=None, mailboxes=(7,)), NEVER_GIVEN),
        (replace(MAIL, uid=None, mailboxes=(3,)), "mailbox number 3 is a folder tree"),
        (replace(MAIL, uid=None, received_ms=1 << 62), "ms from the epoch"),
        (Copy(1, 3, UidSet.of([1]), (GUID,), 0, ()), "mailbox number 3 is a folder tree"),
        (Copy(3, 1, UidSet.of([1]), (GUID,), 0, ()), "mailbox number 3 is a folder tree"),
        (Copy(1, 1, UidSet.of([1, 2]), (GUID,), 0, ()), "one GUID for each UID"),
        (Expunge(7, UidSet.of([1])), NEVER_GIVEN),
        (Store(7, UidSet.of([1]), (), ()), NEVER_GIVEN),
        (FetchUid(7, 1), NEVER_GIVEN),
    ],
)  # fmt: skip
async def test_invalid_request_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, request_: Command, error: str | None
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.number_mailbox()
        await stranger.send(Mbox(3, "alice", "", tree_id("alice"), 0))
        await stranger.send(request_, "ask")
        assert await stranger.ended() == (error is not None)
        await trio.testing.wait_all_tasks_blocked()
        assert_logged(caplog, error)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (MasterMove(1, 1, "dc1"), RefusalCode.UNAVAILABLE),
        (FetchHash(b"h" * 32), RefusalCode.NO_CONTENT),
        (FetchGuid(GUID), RefusalCode.NO_CONTENT),
        (FetchUid(1, 1), RefusalCode.NO_CONTENT),
        (Mbox(2, "alice", "", b"m" * 16, 1, destination="dc9"), RefusalCode.UNAVAILABLE),
        (Rename("alice", b"f" * 16, "x"), RefusalCode.NOT_FOUND),
        (Delete("alice", b"f" * 16), RefusalCode.NOT_FOUND),
    ],
)
async def test_request_that_cannot_be_served_is_refused(
    tmp_path: Path, autojump_clock: MockClock, request_: Command, code: str
) -> None:
    async with linked_stranger(tmp_path, autojump_clock) as (_, stranger):
        reply = await ask(stranger, request_)
        assert isinstance(reply, Refused)
        assert reply.code == code


@asynccontextmanager
async def linked_stranger(tmp_path: Path, clock: MockClock) -> AsyncIterator[tuple[Cluster, Stranger]]:
    """Run dc2, which serves alone, and link a stranger to it that takes no part in elections."""
    async with cluster(tmp_path, clock, 2, copies=1, start=["dc2"]) as nodes:
        await trio.sleep(TIMEOUT_S)
        async with visit(nodes) as stranger:
            await stranger.number_mailbox()
            yield nodes, stranger


async def test_requests_are_served_but_not_for_the_mail_of_another_user(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with linked_stranger(tmp_path, autojump_clock) as (nodes, stranger):
        request = Save((1,), EPOCH_MS, GUID, (), text_of(b"text"))
        first = await ask(stranger, request)
        assert isinstance(first, Saved)
        assert first.uids == (1,)
        assert await ask(stranger, request) == first
        assert await ask(stranger, FetchGuid(GUID)) == Content(b"text")
        assert await ask(stranger, FetchUid(1, 1)) == Content(b"text")
        assert await ask(stranger, FetchHash(StoredBody.of(b"text").content_hash)) == Content(b"text")
        for user, uidvalidity in (("mallory", INBOX.uidvalidity), ("alice", 5)):
            await stranger.send(Mbox(2, user, "", INBOX.mailbox_id, uidvalidity))
            refused = await ask(stranger, replace(request, mailboxes=(2,), guid=b"h" * 16))
            assert isinstance(refused, Refused)
            assert refused.code == RefusalCode.NOT_FOUND
        folder = await nodes["dc2"].mail.create_folder("alice", "Work")
        await ask(stranger, Create("mallory", "Mine", folder.mailbox_id, 0))
        assert (await nodes["dc2"].mail.folder("alice", "Work")).mailbox_id == folder.mailbox_id
        assert not await stranger.ended()


SMALL = NewMessage(EPOCH_MS, GUID, (), text_of(b"text"))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ((SMALL, SMALL), "a SAVE-ALL has two messages with the same GUID"),
        ((replace(SMALL, message=text_of(bytes(SAVE_ALL_BYTES + 1))),), "a SAVE-ALL brings 1048577 bytes"),
        ((replace(SMALL, received_ms=1 << 62),), "an impossible time of receipt"),
    ],
)
async def test_wrong_messages_of_a_save_all_are_not_saved(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    wrong: tuple[NewMessage, ...],
    error: str,
) -> None:
    async with linked_stranger(tmp_path, autojump_clock) as (_, stranger):
        caplog.set_level(logging.WARNING)
        good = SMALL
        altered = replace(good, guid=b"h" * 16, message=replace(good.message, octets=b"tent"))
        refused = await ask(stranger, SaveAll(1, (good, altered)))
        assert isinstance(refused, Refused)
        assert refused.code == RefusalCode.GARBLED
        first = await ask(stranger, SaveAll(1, (good,)))
        assert isinstance(first, Saved)
        assert first.uids == (1,)
        assert await ask(stranger, SaveAll(1, (good,))) == first
        await stranger.send(SaveAll(1, wrong), "wrong")
        assert await stranger.ended()
        await trio.testing.wait_all_tasks_blocked()
        assert any(error in reason for reason in reasons(caplog.records))


async def test_requests_above_the_limit_are_refused(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.replication.links.link.MAX_REQUESTS", 3)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.number_mailbox()
        for number in range(5):  # dc2 has just started and numbers nothing yet
            await stranger.send(Save((1,), EPOCH_MS, bytes([number]) * 16, (), text_of(b"text")), f"s{number}")
        refused = await stranger.next_command(Refused)
        assert refused == Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again")


@pytest.mark.parametrize(
    ("ack", "error"), [(Ack("dc2.x", 1), None), (Ack("OWN", 1), "this node has not numbered that entry yet")]
)
async def test_ack_of_an_entry_that_was_never_numbered_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, ack: Ack, error: str | None
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        origin = nodes["dc2"].store.origin if ack.origin == "OWN" else ack.origin
        await stranger.send(replace(ack, origin=origin))
        assert await stranger.ended() == (error is not None)
        await trio.testing.wait_all_tasks_blocked()
        assert_logged(caplog, error)


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (Ack("OURS", 4), "OURS 4 is on a disk: this node has not numbered that entry yet"),
        (Ack("OURS", 4, "dc3"), "OURS 4 is on a disk: this node has not numbered that entry yet"),
        (Log((Dot("OURS", 4),)), "OURS 4 is on a disk: this node has not numbered that entry yet"),
        (Ack("dc9.x", 1 << 62), "no node can have numbered that entry"),
        (Log((Dot("dc9.x", 0),)), "no node can have numbered that entry"),
        (Log((Dot("dc9.x", 1), Dot("dc9.x", 2))), "names an origin twice"),
    ],
)  # fmt: skip
async def test_claim_to_have_an_impossible_entry_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, claim: Ack | Log, error: str
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc2"]) as nodes:
        node = nodes["dc2"]
        await node.save("text")
        await node.save("text")
        origin = node.store.origin
        assert node.store.context == {origin: 3}
        async with visit(nodes) as stranger:
            match claim:
                case Ack(named):
                    await stranger.send(replace(claim, origin=named.replace("OURS", origin)))
                case Log(context):
                    dots = tuple(Dot(dot.origin.replace("OURS", origin), dot.seq) for dot in context)
                    await stranger.send(Log(dots), "log")
            assert await stranger.ended()
        assert await node.save("text") == 3
        assert_logged(caplog, error.replace("OURS", origin))


async def test_acks_of_unknown_origins_take_no_memory(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc2"]) as nodes:
        node = nodes["dc2"]
        await node.save("text")
        origin = node.store.origin
        async with visit(nodes) as stranger:
            await stranger.send(Links((LinkAdvert(ORIGIN, 100, EPOCH_MS, (("dc2", 1),)),)))
            for number in range(10):
                await stranger.send(Ack(f"dc8.{number}", 1, "dc1"))
                await stranger.send(Log((Dot(f"dc9.{number}", 1),)), f"log{number}")
            await stranger.send(Ack(origin, 2, "dc1"))
            await until(lambda: bool(node.coordinator.durability._held.get("dc1")))
            assert node.coordinator.durability._held == {"dc1": {origin: 2}}


async def test_acks_of_too_many_origins_end_the_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.replication.log.sender.MAX_ORIGINS", 3)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        for number in (1, 2, 3, 1, 2, 3):
            await stranger.send(Ack(f"dc9.{number}", number))
        assert not await stranger.ended()
        await stranger.send(Ack("dc9.4", 1))
        assert await stranger.ended()


async def test_forwarded_comparison_is_refused_when_its_link_breaks(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc2", "dc3"]) as nodes, visit(nodes) as stranger:
        nodes.network.road("dc3", "dc2").hold()
        await stranger.send(Mbox(1, *INBOX_FIELDS, destination="dc3"), "ask")
        await trio.sleep(1)
        nodes.network.cut(("dc2", "dc3"))
        with trio.fail_after(1):
            assert await stranger.next_command(Refused) == Refused(RefusalCode.UNAVAILABLE, "the link to dc3 broke")


async def test_peer_that_refuses_its_log_loses_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            stranger.answers_log = False
            with trio.fail_after(5):
                while not isinstance(item := await stranger.next(), Request) or not isinstance(item.command, Log):
                    pass
            assert item.tag is not None
            await stranger.reply(item.tag, Refused(RefusalCode.UNAVAILABLE, "no log today"))
            assert await stranger.ended()
        await assert_unharmed(nodes)
        assert_logged(caplog, "no log today")


async def test_database_failure_refuses_only_the_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with linked_stranger(tmp_path, autojump_clock) as (nodes, stranger):
        store = nodes["dc2"].store
        await store.write(lambda tx: tx.connection.execute("ALTER TABLE by_guid RENAME TO elsewhere"))
        request = Save((1,), EPOCH_MS, GUID, (), text_of(b"text"))
        refused = await ask(stranger, request)
        assert isinstance(refused, Refused)
        assert refused.code == RefusalCode.UNAVAILABLE
        assert "at dc2: this node's database failed" in refused.text
        await store.write(lambda tx: tx.connection.execute("ALTER TABLE elsewhere RENAME TO by_guid"))
        assert isinstance(await ask(stranger, request), Saved)


async def test_synchronizing_literal_gets_its_continuation(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with linked_stranger(tmp_path, autojump_clock) as (nodes, _):
        other = await approach(nodes)
        assert isinstance(await other.greet(), Response)
        term = nodes["dc2"].coordinator.elections.machine.term
        who = b"w WHO %d {7}\r\n" % term
        await other.stream.send_all(who)
        seen = b""

        async def read_until(expected: bytes) -> None:
            nonlocal seen
            while expected not in seen:
                more = await other.stream.receive_some()
                assert more, f"the link ended: {seen!r}"
                seen += more

        with trio.fail_after(5):
            await read_until(b"+ OK\r\n")
            check = check_of(who + b" dc2", [b"mailbox"]).hex().encode()
            await other.stream.send_all(b"mailbox dc2 CHECK %s\r\n" % check)
            await read_until(b"w OK MASTER dc2")


# ---- a peer's requests for the log -------------------------------------------------------------------------------


async def entries_sent_for(stranger: Stranger, context: dict[str, int]) -> list[Dot]:
    """Send a LOG, and return the entries that come for it."""
    found = []
    await stranger.send(Log(tuple(Dot(origin, seq) for origin, seq in sorted(context.items()))), "log")
    with trio.move_on_after(0.5):
        while (item := await stranger.next()) is not None:
            command = item.command if isinstance(item, Request) else None
            if isinstance(command, EntryCommand) and command.entry is not None:
                found.append(command.entry.dot)
    return found


async def test_peer_gets_missing_entries_again_if_it_asks_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc2", "dc3"]) as nodes:
        for sid in ("dc2", "dc3"):
            await nodes[sid].mail.create_folder(sid, sid)
        for number in range(4):
            for sid in ("dc2", "dc3"):
                await nodes[sid].save(f"{number}", sid, sid)
        await nodes.converged()
        everything = dict(nodes["dc2"].store.context)
        assert sorted(everything.values()) == [5, 5]
        ours, other = (nodes[sid].store.origin for sid in ("dc2", "dc3"))
        async with visit(nodes) as stranger:
            assert await entries_sent_for(stranger, everything) == []
            assert await entries_sent_for(stranger, {ours: 5, other: 2}) == [Dot(other, seq) for seq in (3, 4, 5)]
            assert await entries_sent_for(stranger, {ours: 5, other: 2}) == [Dot(other, seq) for seq in (3, 4, 5)]
            assert sorted(await entries_sent_for(stranger, {ours: 1})) == sorted(
                [*(Dot(ours, seq) for seq in range(2, 6)), *(Dot(other, seq) for seq in range(1, 6))]
            )


# ---- valid entries that do not fit the log -----------------------------------------------------------------------


async def test_entry_after_a_gap_is_requested_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        store = nodes["dc2"].store
        stranger.answers_log = False
        asked = await stranger.next_log()
        assert asked == Log(())
        await stranger.number_mailbox()
        await stranger.send_entry(2, save(2, b"2" * 16))
        asked = await stranger.next_log()
        assert asked == Log(())
        await stranger.send_entry(1, save(1, b"1" * 16))
        await stranger.send_entry(2, save(2, b"2" * 16))
        assert await acknowledged(stranger, 2)
        assert store.context == {ORIGIN: 2}
        assert await nodes["dc2"].waiting() == 0


async def test_entry_without_its_predecessor_waits_and_is_acknowledged(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.number_mailbox()
        await stranger.send_entry(1, save(1))
        missing = replace(header(2), predecessors=(Dot("dc9.x", 1),), modseq=3)
        await stranger.send(as_entry(save(2, b"2" * 16), missing))
        assert await acknowledged(stranger, 2)
        assert await nodes["dc2"].waiting() == 1
        view = await nodes["dc2"].store.view(INBOX)
        await until(lambda: list(view.messages) == [1])
        assert (await nodes["dc2"].report.node_status()).waiting_entries == 1


async def acknowledged(stranger: Stranger, seq: int) -> bool:
    while (await stranger.next_command(Ack)).seq < seq:
        pass
    return True


async def test_entry_of_several_changes_is_logged_whole_or_not_at_all(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            await stranger.number_mailbox()
            await stranger.send(as_entry(save(1, b"1" * 16), TWO))
        await trio.sleep(1)
        assert nodes["dc2"].store.context == {}
        async with visit(nodes) as stranger:
            await stranger.number_mailbox()
            await stranger.send_entry(1, save(1, b"1" * 16, b"one"), save(2, b"2" * 16, b"two"))
            assert await acknowledged(stranger, 1)
        assert list((await nodes["dc2"].store.view(INBOX)).messages) == [1, 2]


async def test_receiver_stops_reading_while_too_much_waits_for_the_disk(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.replication.log.receiver.WAITING_BYTES", 100_000)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.number_mailbox()
        await until(lambda: "dc1" in nodes["dc2"].coordinator.feeds)
        receiver = nodes["dc2"].coordinator.feeds["dc1"].receiver
        free = trio.Event()
        write = receiver._write
        most = 0

        async def slow_write(batch: list[Arrived]) -> None:
            nonlocal most
            await free.wait()
            most = max(most, sum(item.memory_bytes for item in batch))
            await write(batch)

        monkeypatch.setattr(receiver, "_write", slow_write)

        async def send_all() -> None:
            for seq in range(1, 101):
                await stranger.send_entry(seq, save(seq, seq.to_bytes(16), b"x" * 10_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            await trio.sleep(1)
            assert receiver._waiting_bytes < 120_000
            free.set()
        assert await acknowledged(stranger, 100)
        assert most < 120_000


async def test_thousands_of_commands_at_once_leave_others_their_turns(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    commands, turns = 5000, 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.send(Ping(), "before")
        await stranger.next_command(Done)
        pings = b"".join(stranger.encoder.request(f"r{number}", Ping()) for number in range(commands))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await stranger.stream.send_all(pings)
            for _ in range(commands):
                await stranger.next_command(Done)
            nursery.cancel_scope.cancel()
    assert turns >= commands // COMMANDS_AT_ONCE
