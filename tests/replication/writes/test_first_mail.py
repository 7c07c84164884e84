"""The first mail to a user: INBOX and the mail in one transaction, at whichever node it arrives."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import WhenShort
from replicator.errors import DurabilityError
from replicator.mail.mailstore import NewMessage, SavedMessage
from replicator.replication.writes.requests import CreateRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.transaction import Commit
from replicator.store.log.sequencing.sequencer import NewMail
from tests.replication.bodies.large_messages import message
from tests.replication.cluster import TIMEOUT_S, Cluster, Node, cluster

DELAY_S = 0.01  # of a line, one way
BODY = b"Subject: x\r\n\r\nfirst\r\n"
MAIL = NewMessage(BODY)


def delay_lines(nodes: Cluster) -> None:
    for near in nodes.sids:
        for far in nodes.sids:
            nodes.network.road(near, far).delay_s = DELAY_S


async def round_trips(node: Node, user: str) -> int:
    """Deliver a mail and return how many passages over a line and back went by until OK."""
    began = trio.current_time()
    await node.mail.deliver(user, MAIL)
    return round((trio.current_time() - began) / (2 * DELAY_S))


@pytest.mark.parametrize(("sid", "first"), [("dc1", 2), ("dc2", 3)])
async def test_first_mail_takes_few_round_trips(
    tmp_path: Path, autojump_clock: MockClock, sid: str, first: int
) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        delay_lines(nodes)
        # The heads of the user's tree; the copy at another node. Where the root is another node, it is asked first.
        assert [await round_trips(nodes[sid], "bob") for _ in range(3)] == [first, 1, 1]


async def test_inbox_and_its_first_mail_share_a_transaction(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node, commits = nodes["dc1"], list[Commit]()
        node.store.listeners.append(commits.append)
        saved = await node.mail.deliver("bob", MAIL)
        assert [[item.entry.is_tree for item in commit.logged] for commit in commits if commit.logged] == [
            [True, False]
        ]
        inbox = await node.inbox("bob")
        assert saved == SavedMessage(inbox.uidvalidity, 1)
        await nodes.converged()
        assert await nodes["dc2"].bodies(user="bob") == {1: BODY.decode()}


async def test_inbox_and_its_first_mail_travel_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        road = nodes.network.road("dc1", "dc2")
        before = [len(sent) for sent in road.sent]
        await nodes["dc1"].mail.deliver("bob", MAIL)
        sent = b"".join(bytes(sent[start:]) for sent, start in zip(road.sent, before, strict=True))
        assert sent.count(b"ENTRIES") == 1
        assert b"* CREATE" not in sent
        assert b"* SAVE" not in sent


async def test_first_mail_is_acknowledged_once_another_disk_has_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes, trio.open_nursery() as nursery:
        told, back = list[SavedMessage](), nodes.network.road("dc2", "dc1")

        def hold(commit: Commit) -> None:  # dc2 stores the mail, but its ACK does not arrive
            if commit.logged:
                back.hold()

        nodes["dc1"].store.listeners.append(hold)

        async def deliver() -> None:
            told.append(await nodes["dc1"].mail.deliver("bob", MAIL))

        nursery.start_soon(deliver)
        await trio.sleep(TIMEOUT_S / 2)
        assert await nodes["dc2"].bodies(user="bob") == {1: BODY.decode()}
        assert not told
        back.release()
        await trio.sleep(0.1)
        assert [one.uid for one in told] == [1]


async def test_first_mail_is_not_said_to_be_in_an_inbox_that_replaced_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes, trio.open_nursery() as nursery:
        told, node, back = list[SavedMessage](), nodes["dc1"], nodes.network.road("dc2", "dc1")

        def hold(commit: Commit) -> None:
            if commit.logged:
                node.store.listeners.remove(hold)
                back.hold()

        node.store.listeners.append(hold)

        async def deliver() -> None:
            told.append(await node.mail.deliver("bob", MAIL))

        nursery.start_soon(deliver)
        await trio.sleep(TIMEOUT_S / 4)
        nursery.start_soon(node.mail.rename_folder, "bob", "INBOX", "Old")
        await trio.sleep(TIMEOUT_S / 4)
        assert not told
        back.release()
        await trio.sleep(0.1)
        assert await node.bodies("Old", user="bob") == {1: BODY.decode()}
        assert [one.shown for one in told] == [False]


async def test_refused_first_mails_claim_one_mailbox_for_each_user(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=3, when_short=WhenShort.REFUSE) as nodes:
        await nodes.stop("dc3")
        await nodes.linked()
        node = nodes["dc1"]
        for user in ("bob", "carol"):
            for _ in range(3):
                with pytest.raises(DurabilityError):
                    await node.mail.deliver(user, MAIL)
        assert len(node.coordinator.mastership.masters.own) <= 4, "a tree and a mailbox for each"
        await nodes.start("dc3")
        await nodes.linked()
        for user in ("bob", "carol"):
            assert (await node.mail.deliver(user, MAIL)).uid == 1


@pytest.mark.parametrize("body", [BODY, message(1)], ids=["small", "large"])
async def test_folders_with_another_master_get_the_mail_all_the_same(
    tmp_path: Path, autojump_clock: MockClock, body: bytes
) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        await nodes["dc2"].mail.subscribe("bob", "News", subscribed=True)
        assert (await nodes["dc1"].mail.deliver("bob", NewMessage(body))).uid == 1
        await nodes.converged()
        assert await nodes["dc3"].bodies(user="bob") == {1: body.decode()}


async def test_first_mails_at_all_nodes_at_once_arrive_in_one_inbox(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        mails = [f"mail {number} at {sid}" for sid in nodes.sids for number in range(3)]
        async with trio.open_nursery() as nursery:
            for mail in mails:
                nursery.start_soon(nodes[mail[-3:]].mail.deliver, "bob", NewMessage(mail.encode()))
        await nodes.converged()
        for node in nodes.all():
            assert [folder.name for folder in await node.mail.folders("bob")] == ["INBOX"]
            assert sorted((await node.bodies(user="bob")).values()) == sorted(mails)


async def test_first_mails_on_both_sides_of_a_cut_end_in_one_inbox(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        for sid in nodes.sids:
            await nodes[sid].mail.deliver("bob", NewMessage(sid.encode()))
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert sorted((await node.bodies(user="bob")).values()) == ["dc1", "dc2"]


async def test_repeated_creation_leaves_the_first_mail_to_a_save(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Another node may have numbered something in a mailbox that an earlier transaction has created."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        create = CreateRequest("bob", "INBOX", b"i" * 16, node.environment.new_guid)
        mail = NewMail(b"g" * 16, 1_000, (), StoredBody.of(b"x"))
        created = await node.coordinator.carry_out(create)
        assert await node.coordinator.carry_out(replace(create, first=mail)) == created
        assert await node.bodies(user="bob") == {}
