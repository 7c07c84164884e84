"""A change whose reply is lost with its link is done once, whether it is asked for again or given up."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Reply
from protocol.values import UidSet
from replicator.errors import UnavailableError
from replicator.mail.mailstore import INBOX
from tests.replication.cluster import USER, Cluster, Node, cluster, until

FLAGGED = frozenset({"\\Flagged"})
Change = Callable[[Node], Awaitable[object]]


async def dc1_masters_everything(nodes: Cluster) -> Node:
    """Make dc1 master everything, and dc3 know that; return dc3, which makes the changes."""
    await nodes["dc1"].mail.create_folder(USER, "Work")
    await nodes["dc1"].save("one", "Work")
    for number in range(3):
        await nodes["dc1"].save(f"mail {number}")
    await nodes.converged()
    node = nodes["dc3"]
    await node.flag(1)
    await node.flag(1, name="Work")
    await node.mail.subscribe(USER, "Else", subscribed=True)
    await nodes.converged()
    return node


async def lose_the_reply(nodes: Cluster, change: Change) -> int:
    """Let dc1 do the change, and cut the link before its reply arrives; return the number of new entries."""
    master = nodes["dc1"].store
    before = dict(master.context)
    back = nodes.network.road("dc1", "dc3")
    async with trio.open_nursery() as nursery:
        back.hold()
        nursery.start_soon(change, nodes["dc3"])
        await until(lambda: master.context != before)
        nodes.network.cut(("dc1", "dc3"))
        back.release()
    await nodes.converged()
    return sum(master.context.values()) - sum(before.values())


async def store(node: Node) -> None:
    await node.mail.store_flags(await node.view(), UidSet.of([1, 2]), added=FLAGGED)


async def rename(node: Node) -> None:
    await node.mail.rename_folder(USER, "Work", "Job")


async def create(node: Node) -> None:
    await node.mail.create_folder(USER, "New/Below")


async def subscribe(node: Node) -> None:
    await node.mail.subscribe(USER, "Work", subscribed=True)


async def annotate(node: Node) -> None:
    await node.mail.annotate(USER, await node.mail.folder(USER, "Work"), {"/private/a": b"x", "/private/b": b"y"})


@pytest.mark.parametrize(
    "change",
    [store, rename, create, subscribe, annotate, lambda node: node.expunge(1, 2), lambda node: node.save("new")],
)
async def test_repeatable_change_is_done_once_and_confirmed(
    tmp_path: Path, autojump_clock: MockClock, change: Change
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await dc1_masters_everything(nodes)
        assert await lose_the_reply(nodes, change) == 1


async def test_folder_is_deleted_once_with_its_mail(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await dc1_masters_everything(nodes)
        assert await lose_the_reply(nodes, lambda node: node.mail.delete_folder(USER, "Work")) == 2
        assert [folder.name for folder in await nodes["dc2"].mail.folders(USER)] == [INBOX]


async def test_store_with_unchangedsince_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A repeated STORE would refuse the messages that it has changed itself."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await dc1_masters_everything(nodes)
        view = await node.view()

        async def change(node: Node) -> None:
            with pytest.raises(UnavailableError, match="may or may not"):
                await node.mail.store_flags(view, UidSet.of([1, 2]), added=FLAGGED, unchanged_since=view.highestmodseq)

        assert await lose_the_reply(nodes, change) == 1
        assert {uid for uid, message in view.messages.items() if message.flags >= FLAGGED} == {1, 2}


async def test_move_that_is_given_up_leaves_two_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await dc1_masters_everything(nodes)

        async def change(node: Node) -> None:
            with pytest.raises(UnavailableError, match="may or may not"):
                await node.mail.move(await node.view(), UidSet.of([2]), await node.mail.folder(USER, "Work"))

        assert await lose_the_reply(nodes, change) == 1
        for node in nodes.all():
            assert await node.bodies() == {1: "mail 0", 2: "mail 1", 3: "mail 2"}
            assert await node.bodies("Work") == {1: "one", 2: "mail 1"}


async def test_repeated_reply_is_used_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await dc1_masters_everything(nodes)
        link = nodes["dc1"].coordinator.connections.link("dc3")
        assert link is not None
        reply = link._reply

        def reply_twice(tag: str, answer: Reply) -> None:
            for _ in range(2):
                reply(tag, answer)

        monkeypatch.setattr(link, "_reply", reply_twice)
        assert await node.save("new") == 4
        assert await node.save("newer") == 5
        await nodes.converged()
        assert len(await node.messages()) == 5
