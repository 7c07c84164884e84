"""Clients that rely on NOTIFY (RFC 5465) believe in the end what LIST, STATUS and GETMETADATA say, whatever happens.

They watch at dc1 and dc2 while folders, mail and annotations change at every node, and links are cut, healed and
branches merged.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from protocol.values import UidSet
from replicator.config import UidConflict
from replicator.errors import MailError
from replicator.mail.mailstore import INBOX, NewMessage
from tests.effort import examples
from tests.imap.client import connected, services
from tests.replication.cluster import USER, Cluster, Node, cluster
from tests.replication.tasks.running import check_at
from tests.replication.watcher import Watcher, look

NAMES = ["a", "a/b", "a/b/c", "a/d", "e", "e/b", "f"]

Act = Callable[[Node, random.Random], Awaitable[object]]


async def deliver(node: Node, rng: random.Random) -> None:
    folder = await node.mail.folder(USER, rng.choice([INBOX, *NAMES]))
    await node.mail.save(folder, NewMessage(b"mail"))


async def flag(node: Node, rng: random.Random) -> None:
    view = await node.view(rng.choice([INBOX, *NAMES]))
    change, none = frozenset({rng.choice(["\\Seen", "\\Flagged"])}), frozenset[str]()
    added, removed = rng.choice([(change, none), (none, change)])
    await node.mail.store_flags(view, UidSet.of([rng.randint(1, 5)]), added=added, removed=removed)


async def expunge(node: Node, rng: random.Random) -> None:
    await node.mail.expunge(await node.view(rng.choice([INBOX, *NAMES])), UidSet.of([rng.randint(1, 5)]))


async def create(node: Node, rng: random.Random) -> None:
    await node.mail.create_folder(USER, rng.choice(NAMES))


async def rename(node: Node, rng: random.Random) -> None:
    await node.mail.rename_folder(USER, rng.choice([INBOX, *NAMES]), rng.choice(NAMES))


async def delete(node: Node, rng: random.Random) -> None:
    await node.mail.delete_folder(USER, rng.choice(NAMES))


async def subscribe(node: Node, rng: random.Random) -> None:
    await node.mail.subscribe(USER, rng.choice([INBOX, *NAMES]), subscribed=rng.random() < 0.6)


async def annotate(node: Node, rng: random.Random) -> None:
    folder = None if rng.random() < 0.3 else await node.mail.folder(USER, rng.choice([INBOX, *NAMES]))
    value = rng.choice([None, b"one", b"two", rng.randbytes(8).hex().encode()])
    await node.mail.annotate(USER, folder, {f"/{rng.choice(['private', 'shared'])}/comment": value})


ACTS: list[Act] = [
    *(deliver, deliver, deliver, flag, expunge, create, create, rename, rename, delete, subscribe),
    *(annotate, annotate, annotate),
]


async def change(node: Node, rng: random.Random, turns: int) -> None:
    for _ in range(turns):
        await trio.sleep(rng.choice([0, 0.01, 0.3]))
        try:
            await rng.choice(ACTS)(node, rng)
        except MailError:  # there is no such folder, or there is one already
            continue


@asynccontextmanager
async def watching(node: Node) -> AsyncIterator[Watcher]:
    async with connected(services(node.mail)) as client, trio.open_nursery() as nursery:
        await client.log_in(USER)
        watcher = Watcher(client)
        await watcher.begin()
        nursery.start_soon(watcher.listen)
        yield watcher
        nursery.cancel_scope.cancel()


async def settled(nodes: Cluster) -> None:
    await nodes.linked()
    await nodes.converged()
    await trio.sleep(1)
    await nodes.converged()
    await wait_all_tasks_blocked()


async def check(node: Node, watcher: Watcher) -> None:
    async with connected(services(node.mail)) as client:
        await client.log_in(USER)
        watcher.beliefs.agree(await look(client))


@pytest.mark.parametrize("uid", [UidConflict.RENUMBER, UidConflict.UIDVALIDITY])
@pytest.mark.parametrize("seed", range(examples(1, 20)))
async def test_watchers_believe_what_is_so(
    tmp_path: Path, autojump_clock: MockClock, seed: int, uid: UidConflict
) -> None:
    rng = random.Random(seed)
    async with cluster(tmp_path, autojump_clock, 3, copies=1, uid=uid) as nodes:
        for name in ("a", "a/b", "e"):
            await nodes["dc1"].mail.create_folder(USER, name)
        await nodes.converged()
        async with watching(nodes["dc1"]) as one, watching(nodes["dc2"]) as other:
            for is_cut in (False, True, True, False):  # after a merge, all folders are read anew
                if is_cut:
                    nodes.isolate(rng.choice(nodes.sids))
                async with trio.open_nursery() as nursery:
                    for node in nodes.all():
                        nursery.start_soon(change, node, random.Random(rng.random()), 12)
                    await trio.sleep(rng.choice([0.5, 3, 8]))
                    for sid in nodes.sids:
                        nodes.rejoin(sid)
                await settled(nodes)
                await check(nodes["dc1"], one)
                await check(nodes["dc2"], other)
            assert one.lines > 20
            assert other.lines > 20


async def test_a_merge_that_raises_uidvalidity_is_told_by_status(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1, uid=UidConflict.UIDVALIDITY) as nodes:
        await nodes["dc1"].save("both")
        await nodes.converged()
        async with watching(nodes["dc1"]) as watcher:
            before = watcher.beliefs.folders[INBOX]
            nodes.network.cut(("dc1", "dc2"))
            await nodes.linked(["dc1"], ["dc2"])
            for sid in nodes.sids:
                await nodes[sid].save(sid)
            nodes.network.mend(("dc1", "dc2"))
            await settled(nodes)
            after = watcher.beliefs.folders[INBOX]
            assert before is not None
            assert after is not None
            assert int(after["UIDVALIDITY"]) > int(before["UIDVALIDITY"])
            assert after["MESSAGES"] == "3"
            await check(nodes["dc1"], watcher)


async def test_annotations_are_told_by_name_to_clients_of_other_nodes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A merge tells those that the other side of a cut has changed, and no others."""
    async with (
        cluster(tmp_path, autojump_clock, 2, copies=1) as nodes,
        connected(services(nodes["dc1"].mail)) as client,
    ):
        await client.log_in(USER)
        assert " OK " in (await client.run("NOTIFY SET (personal (MailboxMetadataChange ServerMetadataChange))"))[-1]
        far = nodes["dc2"].mail
        await far.annotate(USER, await far.folder(USER, INBOX), {"/shared/comment": b"a", "/private/comment": b"b"})
        assert await client.line() == '* METADATA "INBOX" /private/comment /shared/comment'
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        await far.annotate(USER, await far.folder(USER, INBOX), {"/shared/comment": None, "/private/comment": b"c"})
        await far.annotate(USER, None, {"/shared/comment": b"d"})
        near = nodes["dc1"].mail
        await near.annotate(USER, await near.folder(USER, INBOX), {"/private/vendor/x/y": b"e"})
        assert await client.line() == '* METADATA "INBOX" /private/vendor/x/y'
        nodes.network.mend(("dc1", "dc2"))
        await settled(nodes)
        told = sorted([await client.line(), await client.line()])
        assert told == ['* METADATA "" /shared/comment', '* METADATA "INBOX" /private/comment /shared/comment']
        assert await client.run("NOOP") == ["t OK Nothing done"]


async def test_a_deleted_folder_that_holds_new_mail_has_lost_its_annotations(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        near, far = nodes["dc1"].mail, nodes["dc2"]
        await near.create_folder(USER, "a")
        await near.annotate(USER, await near.folder(USER, "a"), {"/private/comment": b"x"})
        await nodes.converged()
        async with watching(far) as watcher:
            nodes.network.cut(("dc1", "dc2"))
            await nodes.linked(["dc1"], ["dc2"])
            await near.delete_folder(USER, "a")
            await far.save("new", "a")
            nodes.network.mend(("dc1", "dc2"))
            await settled(nodes)
            assert watcher.beliefs.folders.keys() == {INBOX, "a"}
            await check(far, watcher)


async def test_a_repaired_folder_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].mail.create_folder(USER, "a")
        await nodes.converged()
        nodes["dc1"].damage("UPDATE folder SET name = 'damaged' WHERE name = 'a'")
        async with watching(nodes["dc1"]) as watcher:
            assert watcher.beliefs.folders.keys() == {INBOX, "damaged"}
            assert (await check_at(nodes["dc1"], repair=True)).repaired
            await wait_all_tasks_blocked()
            assert watcher.beliefs.folders.keys() == {INBOX, "a"}
            await check(nodes["dc1"], watcher)
