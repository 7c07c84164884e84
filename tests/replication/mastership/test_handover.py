"""Masters move to the nodes that use a mailbox, but not too often, and waiting changes are done once."""

import random
from collections import Counter
from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from master_election.scope_usage import ASK_AFTER, JOIN_AFTER_S, QUIET_S, STAY_S
from protocol.values import UidSet
from replicator.config import MastershipConfig, Scope
from replicator.errors import DiskFullError, UnavailableError
from replicator.mail.mailstore import INBOX
from replicator.replication import timing
from replicator.replication.convergence import reconciliation
from replicator.replication.writes.requests import CopyRequest
from replicator.store.db.queries import MailboxKey
from tests.effort import spread
from tests.replication.cluster import TIMEOUT_S, USER, Cluster, Node, cluster
from tests.replication.log.truncating import forget_log
from tests.replication.mastership.masters import key_of


async def known_master_at(node: Node, name: str = INBOX) -> str | None:
    return node.coordinator.mastership.known_master(await key_of(node, name))


async def authors(node: Node, name: str = INBOX) -> list[str]:
    """Return the node that numbered each message."""
    return [message.dot.sid for message in await node.messages(name)]


async def use(node: Node, times: int, name: str = INBOX, every_s: float = 0.2) -> None:
    for number in range(times):
        await node.save(f"{node.sid} {number} {trio.current_time()}", name)
        await trio.sleep(every_s)


async def stay_quiet(node: Node) -> None:
    """Let the node's clients leave the mailbox alone until its master may move."""
    await trio.sleep(max(QUIET_S, STAY_S))
    assert node.coordinator.mastership.masters.own


async def test_master_moves_to_where_the_mailbox_is_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await stay_quiet(nodes["dc1"])
        await use(nodes["dc2"], ASK_AFTER + 2)
        await nodes.converged()
        assert [await known_master_at(node) for node in nodes.all()][:2] == ["dc2", "dc2"]
        assert (await authors(nodes["dc1"]))[-1] == "dc2"
        # A node that has not heard of the move asks the former master, or the root.
        await nodes["dc3"].save("by the chain of former masters")
        await nodes.converged()
        assert (await authors(nodes["dc1"]))[-1] == "dc2"
        assert await known_master_at(nodes["dc3"]) == "dc2"


async def test_master_in_use_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        async with trio.open_nursery() as nursery:
            for node in nodes.all():
                nursery.start_soon(use, node, 60)
        await nodes.converged()
        assert len(set(await authors(nodes["dc1"]))) == 1


@pytest.mark.long
async def test_nodes_that_take_turns_rarely_move_the_master(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for _ in range(20):
            for sid in ("dc1", "dc2"):
                await use(nodes[sid], ASK_AFTER + 2)
                await trio.sleep(QUIET_S)
        await nodes.converged()
        numbered = await authors(nodes["dc1"])
        moves = sum(before != after for before, after in pairwise(numbered))
        assert 0 < moves < 8  # of 39 turns


async def test_changes_during_a_handover_are_done_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The links to dc2 are slow, so the handover takes a while, and clients go on writing."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await stay_quiet(nodes["dc1"])
        nodes.network.road("dc1", "dc2").delay_s = 0.5
        nodes.network.road("dc2", "dc1").delay_s = 0.5
        saved: list[int] = []

        async def client(node: Node, number: int) -> None:
            saved.append(await node.save(f"{node.sid} {number}"))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(client, nodes["dc2"], number)
                nursery.start_soon(client, nodes["dc3"], number)
                await trio.sleep(0.1)
        await nodes.converged()
        assert Counter(saved) == Counter(range(2, 42))
        texts = await nodes["dc1"].bodies()
        assert len(texts) == len(set(texts.values())) == 41
        assert set(await authors(nodes["dc1"])) > {"dc1"}


async def test_handover_over_several_links(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 4) as nodes:
        await nodes.make_line()
        await nodes["dc4"].save("first")
        await stay_quiet(nodes["dc4"])
        await use(nodes["dc1"], ASK_AFTER + 3)
        await nodes.converged()
        assert await known_master_at(nodes["dc1"]) == "dc1"
        await nodes["dc4"].save("the former master's client")
        await nodes.converged()
        assert (await authors(nodes["dc2"]))[-1] == "dc1"


@pytest.mark.parametrize("gone", ["dc1", "dc2"])
async def test_node_dies_during_a_handover(tmp_path: Path, autojump_clock: MockClock, gone: str) -> None:
    """dc1 masters the mailbox and is the root, dc2 asks for it, and their commands to each other arrive late."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await stay_quiet(nodes["dc1"])
        for road in (("dc1", "dc2"), ("dc2", "dc1")):
            nodes.network.road(*road).delay_s = 0.4
        await use(nodes["dc2"], ASK_AFTER, every_s=0)
        await trio.sleep(0.5)
        await nodes.stop(gone)
        with trio.fail_after(2 * TIMEOUT_S):
            await nodes["dc3"].save("second")
        await nodes.start(gone)
        await nodes.linked()
        await nodes.converged()
        assert {"first", "second"} <= set((await nodes["dc3"].bodies()).values())


async def test_operator_moves_a_master(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await use(nodes["dc1"], 3)
        await nodes.converged()
        for source, target in (("dc1", "dc2"), ("dc3", "dc3"), ("dc1", "dc1"), ("dc2", "dc3")):
            handover = nodes[source].coordinator.handover
            await handover.move_to(await nodes[source].inbox(), target)
            await nodes[source].save(f"moved to {target}")
            await nodes.converged()
            assert (await authors(nodes["dc1"]))[-1] == target
            assert await handover.master_of(await nodes[source].inbox()) == target
        nodes.isolate("dc2")
        await nodes.linked(["dc1", "dc3"], ["dc2"])
        with pytest.raises(UnavailableError, match="dc2 cannot be reached from dc1"):
            await nodes["dc1"].coordinator.handover.move_to(await nodes["dc1"].inbox(), "dc2")
        with pytest.raises(UnavailableError, match="no node dc9 is configured at dc1, which reaches dc1, dc3"):
            await nodes["dc1"].coordinator.handover.move_to(await nodes["dc1"].inbox(), "dc9")


@pytest.mark.parametrize(("by_client", "master"), [(True, "dc2"), (False, "dc1")])
async def test_copies_by_nodes_themselves_do_not_count_as_usage(
    tmp_path: Path,
    autojump_clock: MockClock,
    by_client: bool,  # noqa: FBT001 - parametrized
    master: str,
) -> None:
    """Nodes move stray mail to the folder that has its folder's name now, which another node may master."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        work = await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("at dc1", "Work")
        await nodes["dc2"].save("moves")
        await nodes.converged()
        await stay_quiet(nodes["dc1"])
        (message,) = await nodes["dc2"].messages()
        source, destination = MailboxKey.of(await nodes["dc2"].inbox()), MailboxKey.of(work)
        coordinator = nodes["dc2"].coordinator
        submit = coordinator.submit if by_client else coordinator.fork_scheduler._submit
        for _ in range(ASK_AFTER + 2):
            await submit(CopyRequest(source, destination, UidSet.of([1]), (message.guid,), (message.guid,)))
        assert await coordinator.handover.master_of(work) == master


@pytest.mark.parametrize("source", ["dc1", "dc2", "dc3"])
@pytest.mark.parametrize("target", spread(2, ["dc1", "dc2", "dc3"]))
async def test_all_nodes_know_the_master_after_a_handover(
    tmp_path: Path, autojump_clock: MockClock, source: str, target: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for sid in ("dc2", "dc1", "dc3"):
            await nodes[sid].save(f"at {sid}")
        await nodes.converged()
        inbox = await nodes[source].inbox()
        await nodes[source].coordinator.handover.move_to(inbox, target)
        await trio.sleep(0.1)  # until the root has heard of it
        assert [await node.coordinator.handover.master_of(inbox) for node in nodes.all()] == [target] * 3
        assert await known_master_at(nodes[target]) == target, "also without asking the root"


@pytest.mark.parametrize("target", ["dc1", "dc2", "dc3"])
async def test_operator_moves_a_master_over_a_line(tmp_path: Path, autojump_clock: MockClock, target: str) -> None:
    """Each node is the operator's once for each former master."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes.make_line()
        await nodes["dc1"].save("first")
        await nodes.converged()
        for former, source in product(nodes.sids, nodes.sids):
            await nodes[former].coordinator.handover.move_to(await nodes[former].inbox(), former)
            with trio.fail_after(1):
                await nodes[source].coordinator.handover.move_to(await nodes[source].inbox(), target)
            await nodes[source].save(f"{former}, {source}")
            await nodes.converged()
            assert (await authors(nodes["dc1"]))[-1] == target


@pytest.mark.parametrize("after_s", [0.1, 0.3])
async def test_term_that_begins_during_a_move_leaves_no_scope_in_between(
    tmp_path: Path, autojump_clock: MockClock, after_s: float
) -> None:
    async with cluster(tmp_path, autojump_clock, 4) as nodes, trio.open_nursery() as nursery:
        await nodes["dc2"].save("first")
        await nodes.converged()
        for way in (("dc1", "dc3"), ("dc3", "dc1")):
            nodes.network.road(*way).delay_s = 0.3
        move_to, inbox = nodes["dc2"].coordinator.handover.move_to, await nodes["dc2"].inbox()

        async def write() -> None:
            for number in range(100):
                await nodes["dc2"].save(f"{number}")
                await trio.sleep(0.05)

        async def move() -> None:
            with suppress(UnavailableError):
                await move_to(inbox, "dc3")

        nursery.start_soon(write)
        nursery.start_soon(move)
        await trio.sleep(after_s)
        await nodes.stop("dc4")
        await trio.sleep(3 * TIMEOUT_S)
        with trio.fail_after(TIMEOUT_S):
            await nodes["dc3"].save("last")


async def test_asking_for_a_master_does_not_make_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        inbox = await nodes["dc1"].inbox()
        assert await nodes["dc2"].coordinator.handover.master_of(inbox) is None
        await nodes["dc1"].save("first")
        assert (await authors(nodes["dc1"])) == ["dc1"]


async def make_request_loop(nodes: Cluster) -> None:
    """Let dc3 hand the mailbox to dc2, which takes dc1 for the master, while dc1 still takes dc3 for it."""
    for sid in ("dc1", "dc2"):
        await nodes[sid].save(f"at {sid}")
    await nodes.converged()
    handover = nodes["dc3"].coordinator.handover
    await handover.move_to(await nodes["dc3"].inbox(), "dc3")
    await handover.resign(MailboxKey.of(await nodes["dc3"].inbox()), "dc2")
    assert [await known_master_at(node) for node in nodes.all()] == ["dc3", "dc1", "dc2"]


@pytest.mark.parametrize("sid", ["dc1", "dc2", "dc3"])
async def test_requests_leave_a_loop_of_former_masters(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await make_request_loop(nodes)
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nodes[sid].save, "text")
                nursery.start_soon(nodes[sid].flag, 1)
                nursery.start_soon(
                    nodes[sid].mail.copy, await nodes[sid].view(), UidSet.of([2]), await nodes[sid].inbox()
                )
        await nodes.converged()
        assert sorted((await nodes["dc1"].bodies()).values()) == ["at dc1", "at dc2", "at dc2", "text"]
        assert (await authors(nodes["dc1"]))[-1] == "dc2"


@pytest.mark.parametrize("sid", ["dc1", "dc2", "dc3"])
async def test_handover_leaves_a_loop_of_former_masters(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await make_request_loop(nodes)
        with trio.fail_after(1):
            await nodes[sid].coordinator.handover.move_to(await nodes[sid].inbox(), "dc1")
        await nodes["dc3"].save("moved")
        await nodes.converged()
        assert (await authors(nodes["dc2"]))[-1] == "dc1"


async def restart_with(nodes: Cluster, scope: Scope) -> None:
    for sid in list(nodes.nodes):
        await nodes.stop(sid)
    nodes.mastership = MastershipConfig(scope=scope)
    await nodes.start()
    await nodes.linked()


async def test_dynamic_scope_splits_and_joins_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await restart_with(nodes, Scope.DYNAMIC)
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("first", "Work")
        await nodes.converged()
        await use(nodes["dc2"], 1, "Work")
        await nodes.converged()
        assert await authors(nodes["dc3"], "Work") == ["dc1", "dc1"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, nodes["dc1"], 40, INBOX)
            nursery.start_soon(use, nodes["dc2"], 40, "Work")
        await nodes.converged()
        assert set(await authors(nodes["dc3"], INBOX)) == {"dc1"}
        assert (await authors(nodes["dc3"], "Work"))[-1] == "dc2"
        assert await known_master_at(nodes["dc2"], INBOX) != "dc2"

        await trio.sleep(JOIN_AFTER_S + 2 * timing.HANDOVER_JOIN_INTERVAL_S)
        await nodes["dc3"].save("after a quiet time", "Work")
        await nodes["dc1"].save("at the user's master", "Work")
        await nodes.converged()
        assert (await authors(nodes["dc3"], "Work"))[-2:] == ["dc1", "dc1"]


async def test_dynamic_scope_moves_as_a_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await restart_with(nodes, Scope.DYNAMIC)
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("first", "Work")
        await nodes["dc1"].save("first")
        await nodes.converged()
        await trio.sleep(STAY_S)
        await use(nodes["dc2"], ASK_AFTER + 2)
        await nodes["dc3"].save("second", "Work")
        await nodes.converged()
        assert (await authors(nodes["dc1"]))[-1] == "dc2"
        assert await authors(nodes["dc1"], "Work") == ["dc1", "dc2"]


async def fill_disk(node: Node) -> None:
    """Keep the database from growing: its errors are those of a full disk."""
    await node.store.write(lambda tx: tx.connection.execute("PRAGMA max_page_count = 1"))


async def test_master_with_full_disk_hands_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("mastered there", "Work")
        await nodes.converged()
        await fill_disk(nodes["dc1"])
        with trio.fail_after(TIMEOUT_S):
            for number in range(10):
                await nodes["dc2"].save(random.Random(number).randbytes(5000).hex())
        assert await known_master_at(nodes["dc2"]) == "dc2"
        for _ in range(ASK_AFTER + 1):
            with pytest.raises(DiskFullError):
                await nodes["dc1"].save(random.Random().randbytes(50_000).hex(), "Work")
        await nodes["dc1"].store.write(lambda tx: tx.connection.execute("PRAGMA max_page_count = 1000000"))
        await nodes.converged()
        assert len(await nodes["dc1"].bodies()) == 11


async def test_new_master_that_cannot_catch_up_on_a_full_disk_hands_over(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise DiskFullError("full")

    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        await one.save("first")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        await two.save("second")
        await forget_log(two)
        with monkeypatch.context() as patch:
            patch.setattr(reconciliation, "adopt", fail)
            nodes.rejoin("dc1")
            await nodes.linked()
            assert await one.coordinator.mastership.find(await key_of(two)) == "dc1", (
                "the first node that asks becomes master"
            )
            with trio.fail_after(TIMEOUT_S):
                await two.flag(2)
            assert await known_master_at(two) == "dc2"
        await nodes.converged()
        assert "\\Seen" in (await one.messages())[1].flags


async def test_mailbox_and_its_users_scope_have_one_master_each(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A mailbox returns to its user's master. Then the user's scope moves, and the mailbox stays where it is used."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await restart_with(nodes, Scope.DYNAMIC)
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("first", "Work")
        await nodes.converged()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use, nodes["dc1"], 40)
            nursery.start_soon(use, nodes["dc2"], 40, "Work")
        assert (await authors(nodes["dc1"], "Work"))[-1] == "dc2"
        await trio.sleep(STAY_S)
        await use(nodes["dc1"], ASK_AFTER + 3, "Work", every_s=1)
        assert (await authors(nodes["dc1"], "Work"))[-1] == "dc1"
        await trio.sleep(2 * STAY_S)
        await use(nodes["dc3"], ASK_AFTER + 3)
        assert (await authors(nodes["dc3"]))[-1] == "dc3"
        for sid in ("dc1", "dc3"):
            await nodes[sid].save("text", "Work")
        owners = [node.sid for node in nodes.all() if node.coordinator.mastership.is_ours(await key_of(node, "Work"))]
        assert owners == ["dc1"]
        await nodes.converged()
        assert {"dc1", "dc2"} == set(await authors(nodes["dc2"], "Work"))
