"""Nodes that were down, cut off or restored catch up, and entries cross no link more often than needed."""

import shutil
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet, sid_of
from replicator.store import store as store_module
from tests.replication.cluster import TIMEOUT_S, USER, Cluster, Node, cluster


async def test_restarted_node_catches_up_from_the_log_on_disk(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "TAIL_BYTES", 20_000)  # a handful of entries in memory
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc3"].save("before")
        await nodes.converged()
        before = nodes["dc3"].store.origin
        await nodes.stop("dc3")
        await nodes.linked()
        for number in range(60):
            uid = await nodes["dc1"].save(f"{number} {'x' * 1000}")
            await nodes["dc2"].flag(uid)
        await nodes["dc2"].expunge(5, 6)
        await nodes["dc1"].mail.create_folder(USER, "New")
        await nodes.start("dc3")
        await nodes.linked()
        assert nodes["dc3"].store.origin != before
        await nodes.converged()
        assert await nodes["dc3"].bodies() == await nodes["dc1"].bodies()
        assert len(await nodes["dc3"].bodies()) == 59
        assert await nodes["dc3"].save("after") == 62
        await nodes.converged()


async def test_node_catches_up_while_clients_write(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await nodes.stop("dc3")
        for number in range(20):
            await nodes["dc1"].save(f"away {number}")

        async def client(node: Node) -> None:
            for number in range(20):
                uid = await node.save(f"{node.sid} {number}")
                await node.flag(uid)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, nodes["dc1"])
            nursery.start_soon(client, nodes["dc2"])
            await nodes.start("dc3")
            nursery.start_soon(client, nodes["dc3"])
        await nodes.linked()
        await nodes.converged()
        assert len(await nodes["dc3"].messages()) == 81


async def test_rolling_restarts_keep_all_mail(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for turn, sid in enumerate(nodes.sids * 2):
            await nodes.stop(sid)
            others = nodes.all()
            for node in others:
                await node.save(f"{turn} {node.sid}")
            await nodes.start(sid)
            await nodes.linked()
            await nodes.converged()
        assert len(await nodes["dc1"].messages()) == 12
        # All nodes stop at once: only what is on disk is left.
        for sid in nodes.sids:
            await nodes.stop(sid)
        await nodes.start()
        await nodes.linked()
        await nodes.converged()
        assert await nodes["dc2"].save("last") == 13


async def test_node_restored_from_a_backup_catches_up_and_reuses_no_dot(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for node in nodes.all():
            await node.save(f"old {node.sid}")
        await nodes.converged()
        await nodes.stop("dc3")
        shutil.copytree(nodes.data("dc3"), tmp_path / "backup")
        await nodes.start("dc3")
        await nodes.linked()
        await nodes["dc3"].mail.create_folder(USER, "Lost")  # dc3 numbers this after the backup was taken
        await nodes["dc3"].save("lost", "Lost")
        await nodes["dc1"].save("late")
        expected = await nodes.converged()
        numbered_before = dict(nodes["dc1"].store.context)
        await nodes.stop("dc3")
        shutil.rmtree(nodes.data("dc3"))
        shutil.copytree(tmp_path / "backup", nodes.data("dc3"))
        await nodes.start("dc3")
        await nodes.linked()
        assert await nodes.converged() == expected
        assert await nodes["dc3"].bodies("Lost") == {1: "lost"}
        await nodes["dc3"].save("new", "Lost")
        await nodes.converged()
        assert nodes["dc3"].store.origin not in numbered_before
        assert {origin: nodes["dc1"].store.context[origin] for origin in numbered_before} == numbered_before


async def test_node_that_lost_its_disk_gets_everything_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for node in nodes.all():
            await node.save(f"old {node.sid}")
        expected = await nodes.converged()
        await nodes.stop("dc2")
        shutil.rmtree(nodes.data("dc2"))
        await nodes.start("dc2")
        await nodes.linked()
        assert await nodes.converged() == expected
        assert sorted((await nodes["dc2"].bodies()).values()) == ["old dc1", "old dc2", "old dc3"]


async def test_changes_pass_through_an_intermediate_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes.make_line()
        # dc1 and dc3 have no link: each masters a folder, and the other changes it, two hops away.
        for here, there in (("dc1", "dc3"), ("dc3", "dc1")):
            await nodes[here].mail.create_folder(USER, f"of {here}")
            await nodes[here].save("first", f"of {here}")
            await nodes.converged()
            name = f"of {here}"
            assert await nodes[there].save("second", name) == 2
            await nodes[there].flag(1, name=name)
            await nodes[there].expunge(1, name=name)
            copied = await nodes[there].mail.copy(
                await nodes[there].view(name), UidSet.of([2]), await nodes[there].mail.folder(USER, name)
            )
            assert copied.uids == ((2, 3),)
            await nodes.converged()
            assert await nodes[here].bodies(name) == {2: "second", 3: "second"}
        numbered_by = {sid_of(origin) for origin in nodes["dc2"].store.context}
        assert numbered_by == {"dc1", "dc3"}


@pytest.mark.parametrize("shape", ["mesh", "line"])
async def test_each_entry_crosses_each_needed_link_once(tmp_path: Path, autojump_clock: MockClock, shape: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        if shape == "line":
            await nodes.make_line()
        sent_before = {pair: len(nodes.network.road(*pair).entries()) for pair in permutations(nodes.sids, 2)}
        for node in nodes.all():
            await node.mail.create_folder(USER, node.sid)
        for turn in range(5):
            for node in nodes.all():
                for name in nodes.sids:
                    uid = await node.save(f"{node.sid} {turn}", name)
                    await node.flag(uid, name=name)
        await nodes.converged()
        await trio.sleep(3 * TIMEOUT_S)
        crossed = Counter(
            (frozenset(pair), dot)
            for pair, before in sent_before.items()
            for dot in nodes.network.road(*pair).entries()[before:]
        )
        assert set(crossed.values()) == {1}
        numbered = {dot for _, dot in crossed}
        assert len(numbered) == 3 + 3 * 5 * 3 * 2  # three folders, a SAVE and a STORE each
        # Two links are enough for three nodes; in a mesh these are the two of the node that numbered the entry.
        assert Counter(dot for _, dot in crossed) == dict.fromkeys(numbered, 2)


async def test_restored_link_carries_only_missing_entries(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in range(10):
            await nodes["dc1"].save(f"before {number}")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for number in range(10):
            await nodes["dc1"].save(f"away {number}")
        before = Counter(nodes.network.road("dc1", "dc3").entries()) + Counter(
            nodes.network.road("dc2", "dc3").entries()
        )
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        after = Counter(nodes.network.road("dc1", "dc3").entries()) + Counter(
            nodes.network.road("dc2", "dc3").entries()
        )
        again = after - before
        assert len(again) == 10
        assert not set(again) & set(before)


async def test_links_reuse_the_least_recently_used_mailbox_number(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.replication.links.mailbox_numbers.MAX_NUMBERS", 2)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        names = [f"F{number}" for number in range(5)]
        for name in names:
            await nodes["dc1"].mail.create_folder(USER, name)
            await nodes["dc1"].save(f"text of {name}", name)
        for source in names:
            for destination in names:
                if source != destination:
                    await copy_first(nodes, source, destination)
        await nodes.converged()
        for name in names:
            others = {f"text of {other}" for other in names if other != name}
            assert set((await nodes["dc2"].bodies(name)).values()) == others | {f"text of {name}"}


async def copy_first(nodes: Cluster, source: str, destination: str) -> None:
    mail = nodes["dc2"].mail
    await mail.copy(await nodes["dc2"].view(source), UidSet.of([1]), await mail.folder(USER, destination))
