"""Batches of entries on links: sent to peers that take them, and taken whole or not at all."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from protocol.commands import Ack, Entries, Log, RefusalCode, Refused, Save
from protocol.values import UidSet
from replicator.replication.links.entry_batch import pack_batch, unpack_batch
from replicator.replication.links.handshake import ENTRIES
from replicator.replication.links.link import PeerLink
from replicator.store.bodies.body_rows import StoredBody, body_count
from replicator.store.db.transaction import Logged
from resync.entry import Entry, FlagAdd, MailAdd
from tests.replication.cluster import EPOCH_MS, USER, cluster
from tests.replication.links.stranger_checks import MAIL, TWO, as_entry, ask, assert_logged, assert_unharmed
from tests.replication.stranger import INBOX, approach, header, visit

BODIES = [StoredBody.of(b"%d " % number + bytes(3000)) for number in range(40)]


def mail(seq: int, **changes: object) -> Logged:
    """Return the stranger's entry `seq`, which adds a message with that UID."""
    head, body = header(seq), BODIES[seq]
    add = MailAdd(
        seq, bytes([seq]) * 16, EPOCH_MS, ("\\Seen",), body.size_bytes, body.content_hash, copied=False
    )  # fmt: skip
    entry = replace(Entry(head.dot, head.predecessors, head.time, head.modseq, *INBOX, (add,)), **changes)  # type: ignore[arg-type]
    return Logged(seq, entry, len(entry.pack()), {body.content_hash: body})


def flagged(change: FlagAdd) -> Logged:
    return replace(mail(1, changes=(change,)), bodies={})


def with_body(item: Logged, body: StoredBody) -> Logged:
    return replace(item, bodies=dict.fromkeys(item.bodies, body))


async def test_batch_is_taken_in_and_acknowledged(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        node = nodes["dc2"]
        await stranger.send(pack_batch([mail(seq) for seq in range(1, 30)]))
        assert (await stranger.next_command(Ack)).seq > 0
        await node.store.wait_logged(mail(29).entry.dot)
        assert await node.store.read(body_count) == 29
        rows = await node.store.read(lambda reader: dict(reader.execute("SELECT hash, body FROM content")))
        assert rows == {body.content_hash: body.packed for body in BODIES[1:30]}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Entries(b"\x90"), "must hold 1 to 128 entries"),
        (Entries(b"x" * 100), "ENTRIES cannot be read"),
        (Entries(pack_batch([mail(1), mail(2)]).packed[:-1]), "ENTRIES cannot be read"),
        (pack_batch([mail(1), with_body(mail(2), BODIES[7])]), "does not match its hash"),
        (pack_batch([mail(1)] * 300), "ENTRIES"),
        (pack_batch([mail(1, time=0)]), "has a time out of range"),
        (pack_batch([flagged(FlagAdd(UidSet(), ()))]), "has a change with a value out of range"),
    ],
)
async def test_batch_with_anything_wrong_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, command: Entries, error: str
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            await stranger.send(command)
            assert await stranger.ended()
        await assert_unharmed(nodes)
        assert_logged(caplog, error)
        assert await nodes["dc2"].store.read(body_count) == 1, "only the message that shows that the node serves"


async def test_batch_amid_the_commands_of_an_entry_ends_the_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            await stranger.number_mailbox()
            await stranger.send(as_entry(MAIL, TWO))
            await stranger.send(pack_batch([mail(1)]))
            assert await stranger.ended()
        await assert_unharmed(nodes)
        assert_logged(caplog, "was interrupted by ENTRIES")


async def test_batch_as_a_request_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            reply = await ask(stranger, pack_batch([mail(1)]))
            assert isinstance(reply, Refused)
            assert reply.code == RefusalCode.UNSUPPORTED
        await assert_unharmed(nodes)


@pytest.mark.parametrize("takes_batches", [True, False])
async def test_only_a_peer_that_takes_batches_gets_them(
    tmp_path: Path, autojump_clock: MockClock, *, takes_batches: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        for number in range(5):
            await nodes["dc2"].save(f"text {number}")
        stranger = await approach(nodes)
        await stranger.greet(capabilities=(ENTRIES,) if takes_batches else ())
        await stranger.send(Log(()), "log")
        if takes_batches:
            arrived = unpack_batch(await stranger.next_command(Entries))
            assert [item.entry.is_tree for item in arrived] == [True] + 5 * [False]
            bodies = [body.message for item in arrived for body in item.bodies]
            assert bodies == [b"text %d" % number for number in range(5)]
        else:
            for number in range(5):
                message = (await stranger.next_command(Save)).message
                assert message.content_hash == StoredBody.of(b"text %d" % number).content_hash
        await stranger.stream.aclose()


async def test_node_catches_up_by_batches_and_what_does_not_fit_them(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[int] = []
    post = PeerLink.post

    def noted(link: PeerLink, command: object, tag: str | None = None) -> None:
        if isinstance(command, Entries):
            posted.append(len(unpack_batch(command)))
        post(link, command, tag)  # type: ignore[arg-type]  # passed on unchanged

    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        for number in range(20):
            await nodes["dc1"].flag(await nodes["dc2"].save(f"{number} {'x' * 1000}"))
        await nodes["dc1"].mail.subscribe(USER, "New", subscribed=True)
        await nodes["dc2"].expunge(5, 6)
        monkeypatch.setattr(PeerLink, "post", noted)
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        assert await nodes["dc3"].bodies() == await nodes["dc1"].bodies()
        assert 41 >= sum(posted) > 30
        assert len(posted) < 10
