"""A node that lacks many mailboxes altogether takes them over by checkpoints that a neighbour makes on request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import msgpack
import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Command, Content, FetchCheckpoints, RefusalCode, Refused, Reply, SyncMailbox
from protocol.stream_codec import ProtocolError
from replicator.replication.checkpoints import peer_checkpoints
from replicator.replication.checkpoints.peer_checkpoints import TOGETHER, TOGETHER_BYTES
from replicator.replication.convergence.state_transfer import StateTransfer
from replicator.replication.links import handshake
from replicator.replication.peer_requests import PeerRequests
from replicator.store.db import queries
from replicator.store.db.transaction import Transaction
from resync.entry import ID_BYTES, tree_id
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.log.truncating import forget_log, logs_agree

USERS = [f"user{number}" for number in range(TOGETHER)]  # two chains each, so that there are several requests

Change = Callable[[Command, Reply], Reply]


def watch(monkeypatch: pytest.MonkeyPatch, change: Change = lambda _, reply: reply) -> Counter[type]:
    """Count what nodes are asked for, and change their replies."""
    asked: Counter[type] = Counter()
    usual = PeerRequests.answer

    async def answer(self: PeerRequests, link: object, command: Command) -> Reply:
        asked[type(command)] += 1
        return change(command, await usual(self, link, command))  # type: ignore[arg-type]

    monkeypatch.setattr(PeerRequests, "answer", answer)
    return asked


async def fill(nodes: Cluster) -> None:
    """Give each user mail at a node whose log begins afterwards."""
    for user in USERS:
        await nodes["dc1"].save(f"first of {user}", user=user)
        await nodes["dc1"].save(f"second of {user}", user=user)
    await nodes["dc1"].mail.create_folder(USER, "Work")
    await nodes["dc1"].mail.subscribe(USER, "Work", subscribed=True)
    await nodes["dc1"].flag(1)
    await nodes["dc1"].expunge(2)
    await forget_log(nodes["dc1"])


async def test_new_node_takes_over_many_mailboxes_by_few_requests(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = watch(monkeypatch)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        await nodes["dc1"].save("a", user=USER)
        await nodes["dc1"].save("b", user=USER)
        await fill(nodes)
        await nodes.start("dc2")
        await nodes.linked()
        await logs_agree(nodes)
        assert 3 <= asked[FetchCheckpoints] <= 6
        assert asked[SyncMailbox] == 0
        assert await nodes["dc2"].bodies(user="user7") == {1: "first of user7", 2: "second of user7"}
        assert await nodes["dc2"].save("third", user="user7") == 3
        await nodes.converged()


def swapped(reply: Reply) -> Reply:
    """Put the answers into another order."""
    return Content(msgpack.packb(list(reversed(unpacked(reply)))))


def unpacked(reply: Reply) -> list[object]:
    assert isinstance(reply, Content)
    return cast("list[object]", msgpack.unpackb(reply.message))


def damaged(reply: Reply) -> Reply:
    """Alter an octet of one checkpoint, and the type of another one's head."""
    assert isinstance(reply, Content)
    answers = msgpack.unpackb(reply.message)
    head, data = answers[0]
    answers[0] = [head, data[:-1] + bytes([data[-1] ^ 1])]
    answers[1] = [7, answers[1][1]]
    return Content(msgpack.packb(answers))


def lying(reply: Reply) -> Reply:
    """Give one head another user, so that its node cannot have numbered it."""
    assert isinstance(reply, Content)
    answers = msgpack.unpackb(reply.message)
    answers[0][0][0] = "nobody"
    return Content(msgpack.packb(answers))


LIES: dict[str, Callable[[Reply], Reply]] = {
    "refused": lambda _: Refused(RefusalCode.UNAVAILABLE, "later"),
    "no MessagePack": lambda _: Content(b"\xc1"),
    "no array": lambda _: Content(b"\x07"),
    "empty": lambda _: Content(b"\x90"),
    "nothing there": lambda reply: Content(msgpack.packb([None] * len(unpacked(reply)))),
    "more than was asked for": lambda reply: Content(msgpack.packb(unpacked(reply) * 2)),
    "too large": lambda _: Content(bytes(1 << 20)),
    "in another order": swapped,
    "damaged": damaged,
    "lying": lying,
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_does_not_come_by_checkpoints_is_compared(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lie: str,
) -> None:
    asked = watch(monkeypatch, lambda said, reply: LIES[lie](reply) if isinstance(said, FetchCheckpoints) else reply)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        for text in "abc":
            await nodes["dc1"].save(text, user=USER)
        await nodes["dc1"].save("hers", user="bob")
        await forget_log(nodes["dc1"])
        await nodes.start("dc2")
        await nodes.linked()
        await logs_agree(nodes)
        assert asked[FetchCheckpoints]
        assert asked[SyncMailbox]
        assert await nodes["dc2"].bodies() == {1: "a", 2: "b", 3: "c"}
        assert await nodes["dc2"].bodies(user="bob") == {1: "hers"}
    told = [text for text in caplog.messages if "checkpoints from dc1 cannot be used" in text]
    assert all(
        "; run `replicator check` there, whose database may be damaged; the first reason: " in text for text in told
    )
    if lie == "damaged":
        assert re.search(r"a mailbox of \w+: damaged: its checksum is wrong$", told[0])


async def test_peer_of_an_earlier_version_is_not_asked(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "CHECKPOINTS", "OTHER")
    asked = watch(monkeypatch)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        await nodes["dc1"].save("text")
        await forget_log(nodes["dc1"])
        await nodes.start("dc2")
        await nodes.linked()
        await logs_agree(nodes)
        assert not asked[FetchCheckpoints]
        assert await nodes["dc2"].bodies() == {1: "text"}


async def test_large_and_damaged_checkpoints_do_not_hold_up_others(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = watch(monkeypatch)
    monkeypatch.setattr(peer_checkpoints, "SMALL_MESSAGES", 10)
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        one = nodes["dc1"]
        for number in range(20):
            await one.save(f"{number}", user="large")
        for user in ("ann", "bob"):
            await one.save("text", user=user)
        await forget_log(one)
        inbox = await one.mail.folder("bob", "INBOX")
        await one.store.write(partial(_count, chain_id=inbox.mailbox_id, messages=7))
        await nodes.start("dc2")
        await nodes.linked()
        await until(lambda: not nodes["dc2"].coordinator.state_transfer.is_running)
        assert await nodes["dc2"].bodies(user="ann") == {1: "text"}
        assert len(await nodes["dc2"].bodies(user="large")) == 20
        assert asked[FetchCheckpoints] == 1
        assert await answered(one, [inbox.mailbox_id]) == [None]
        await one.store.write(partial(_count, chain_id=inbox.mailbox_id, messages=1))


def _count(tx: Transaction, chain_id: bytes, messages: int) -> None:
    tx.connection.execute("UPDATE chain SET messages = ? WHERE id = ?", (messages, chain_id))


@pytest.mark.parametrize("is_tree_first", [True, False])
async def test_mailbox_under_another_users_name_is_not_taken_over_beside_its_tree(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_tree_first: bool
) -> None:
    """No digest covers the name. If the mailbox came in, every later entry of its true user would be refused."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        await nodes["dc1"].save("text", user="bob")
        folder = await nodes["dc1"].mail.folder("bob", "INBOX")
        await forget_log(nodes["dc1"])
        wanted = [tree_id("bob"), folder.mailbox_id]
        packed = await nodes["dc1"].store.read(partial(peer_checkpoints._packed, chain_ids=wanted, now_ms=1))
        _, (tree, mailbox), _ = peer_checkpoints._unpacked(packed, wanted)
        wrong = replace(mailbox, key=mailbox.key._replace(user="bobo"), theirs=replace(mailbox.theirs, user="bobo"))
        monkeypatch.setattr(StateTransfer, "_take_over", forever)
        await nodes.start("dc2")
        unusable = peer_checkpoints.Unusable()
        some = [tree, wrong] if is_tree_first else [wrong, tree]
        assert await peer_checkpoints._install(nodes["dc2"].store, some, unusable) == 1
        assert "of bob" in unusable.why or "another user" in unusable.why


async def forever(_transfer: StateTransfer, _sid: str) -> None:
    await trio.sleep_forever()


async def test_answer_is_bounded_in_number_and_size(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        one = nodes["dc1"]
        await one.save("text")
        known = tree_id(USER)
        assert len(await answered(one, [known] * (2 * TOGETHER))) == TOGETHER
        assert await answered(one, [bytes(ID_BYTES)]) == [None]
        assert await answered(one, []) == []
        with pytest.raises(ProtocolError, match="not whole ids"):
            await peer_checkpoints.answer(one.store, FetchCheckpoints(b"short"))
        for each_bytes, count in ((TOGETHER_BYTES // 2, 2), (TOGETHER_BYTES // 2 - 1, 3), (TOGETHER_BYTES, 1)):
            made = (known, bytes(each_bytes)), each_bytes
            monkeypatch.setattr(peer_checkpoints, "_small", lambda *_, made=made: made)
            assert len(await answered(one, [known] * 5)) == count


async def answered(node: Node, chain_ids: list[bytes]) -> list[object]:
    reply = await peer_checkpoints.answer(node.store, FetchCheckpoints(b"".join(chain_ids)))
    return unpacked(reply)


async def test_mailbox_that_has_come_meanwhile_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its state may be later than the checkpoint's."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        await one.save("text")
        await nodes.converged()
        before = await two.store.read(lambda reader: list(queries.chains_of(reader, USER)))
        link = two.coordinator.connections.link("dc1")
        assert link is not None
        chain_ids = [chain.id for chain in before]
        counts: list[int] = []
        await peer_checkpoints.take_over(two.store, link, chain_ids, counts.append)
        assert sum(counts) == 0
        assert await two.store.read(lambda reader: list(queries.chains_of(reader, USER))) == before
