"""Two nodes with a fork: dc2 merges the branches while clients of dc1 go on with the branch that dc1 shows."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from replicator.mail.mailstore import INBOX
from replicator.mail.view import MailboxView
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit
from tests.replication.cluster import USER, Cluster, Node, until


async def fork(nodes: Cluster, name: str = INBOX) -> None:
    """Cut the link; then dc1 and dc2 each give UID 2 to a mail of their own."""
    if name != INBOX:
        await nodes["dc1"].mail.create_folder(USER, name)
    assert await nodes["dc1"].save("both", name) == 1
    await nodes.converged()
    nodes.network.cut(("dc1", "dc2"))
    await nodes.linked(["dc1"], ["dc2"])
    for sid, mail in (("dc1", "mine"), ("dc2", "rival")):
        assert await nodes[sid].save(mail, name) == 2


async def become_master(node: Node, view: MailboxView) -> None:
    assert await node.coordinator.mastership.find(MailboxKey.of(view)) == node.sid


@asynccontextmanager
async def behind_a_merge(nodes: Cluster, name: str = INBOX) -> AsyncIterator[MailboxView]:
    """Yield what dc1 shows, its own branch, while dc2 masters all and has merged. At the end dc1 hears of the merge."""
    view, there = await nodes["dc1"].view(name), await nodes["dc2"].view(name)
    back = nodes.network.road("dc2", "dc1")

    def hold_the_merge(commit: Commit) -> None:
        if any(len(entry.predecessors) == 2 and entry.mailbox_id == view.mailbox_id for entry in commit.applied):
            back.hold()

    nodes["dc2"].store.listeners.append(hold_the_merge)
    nodes.network.mend(("dc1", "dc2"))
    await nodes.linked()
    for folder in await nodes["dc2"].mail.folders(USER):
        await become_master(nodes["dc2"], await nodes["dc2"].mail.open_mailbox(folder))
    await until(lambda: there.deleted or 2 not in there.messages)  # a new UIDVALIDITY ends the view
    assert 2 in view.messages
    yield view
    back.release()
    await nodes.converged()


async def meeting(nodes: Cluster, change: Callable[[], Awaitable[object]]) -> None:
    """Run the change, and let dc1 hear of the merge after the master has carried out the change."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.sleep(0.5)
        nodes.network.road("dc2", "dc1").release()


async def bodies(nodes: Cluster, name: str = INBOX) -> list[str]:
    """Return the bodies in a folder, which must be the same at all nodes."""
    await nodes.converged()
    found = [await node.bodies(name) for node in nodes.all()]
    assert all(each == found[0] for each in found)
    return sorted(found[0].values())
