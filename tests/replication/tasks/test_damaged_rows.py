"""A damaged row holds back only the entries and merges that need it."""

from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.errors import UnavailableError
from replicator.replication import timing
from replicator.tasks import CheckOptions, CheckStatus, ResyncOptions, ResyncStatus
from tests.replication.cluster import TIMEOUT_S, Node, cluster, until
from tests.replication.idle_parts import stop_the_log
from tests.replication.tasks.partition import cut_off_dc1, rejoin_dc1
from tests.replication.tasks.planted_damage import MAILBOX_DAMAGES
from tests.replication.tasks.running import run_task

GARBLE = "UPDATE by_uid SET flags = x'c1' WHERE uid = 1"


async def repair(node: Node) -> CheckStatus:
    status = await run_task(node, CheckOptions(repair=True), CheckStatus)
    assert (status.state, status.error, status.unrepaired) == ("done", None, 0)
    return status


async def test_entries_of_another_node_wait_for_an_unreadable_row(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        for number in range(3):
            await one.save(f"text {number}")
        await nodes.converged()
        two.damage(GARBLE)
        await one.flag(1)
        await one.flag(2)
        await one.save("another's", user="bob")
        await until(lambda: two.store.context == one.store.context)
        assert await two.bodies(user="bob") == {1: "another's"}
        assert await two.waiting() == 2
        assert "waits until `replicator check --repair`" in caplog.text
        assert (await repair(two)).damage == {"by_uid": 1}
        await nodes.converged()
        assert await two.waiting() == 0


async def test_master_refuses_a_change_to_an_unreadable_row(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one = nodes["dc1"]
        for number in range(3):
            await one.save(f"text {number}")
        await nodes.converged()
        view, before = await one.view(), dict(one.store.context)
        one.damage(GARBLE)
        with pytest.raises(UnavailableError, match="cannot be read"):
            await one.mail.store_flags(view, UidSet.of([1, 2]), added=frozenset({"\\Seen"}))
        assert one.store.context == before
        await one.flag(2)
        await one.save("later")
        await repair(one)
        await nodes.converged()


@pytest.mark.parametrize("sid", ["dc1", "dc2"])
async def test_merge_does_not_take_a_lost_row_for_expunged(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, sid: str
) -> None:
    """The master is one of the two nodes, and keeps the branches apart until its rows match its head."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(3):
            await nodes["dc1"].save(f"text {number}")
        await nodes.converged()
        await cut_off_dc1(nodes)
        for node in nodes.all():
            await node.save(f"at {node.sid}")
        nodes[sid].damage("DELETE FROM by_uid WHERE uid = 2")
        await rejoin_dc1(nodes)
        await trio.sleep(2 * timing.FORK_MERGE_DAMAGED_EVERY_S)
        other = nodes["dc2" if sid == "dc1" else "dc1"]
        assert "text 1" in (await other.bodies()).values()
        assert caplog.text.count("stay apart") <= 4, "the master looks again, and logs it, once a minute"
        await repair(nodes[sid])
        await trio.sleep(timing.FORK_MERGE_DAMAGED_EVERY_S)
        await nodes.converged()
        assert sorted((await other.bodies()).values()) == ["at dc1", "at dc2", "text 0", "text 1", "text 2"]


@pytest.mark.parametrize("damage", ["row missing", "row unreadable", "fingerprint changed"])
async def test_damage_at_a_peer_does_not_stop_a_new_master(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The new master numbers without the peer's newer changes, as if the peer could not be reached."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        for number in range(3):
            await one.save(f"text {number}")
        await nodes.converged()
        await cut_off_dc1(nodes)
        await two.flag(2, 3)
        await two.save("at dc2")
        two.damage(MAILBOX_DAMAGES[damage])
        with monkeypatch.context() as patch:
            stop_the_log(patch)
            await rejoin_dc1(nodes)
            with trio.fail_after(TIMEOUT_S + 1):
                assert await one.save("at dc1") == 4
            await cut_off_dc1(nodes)
        await repair(two)
        await rejoin_dc1(nodes)
        await nodes.converged()
        assert sorted((await two.bodies()).values()) == ["at dc1", "at dc2", "text 0", "text 1", "text 2"]


async def test_damage_that_peers_requests_meet_is_logged_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    users = ["alice", "bob", "carol"]
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        for user in users:
            await one.save("text", user=user)
        await nodes.converged()
        one.damage("UPDATE by_uid SET claim_origin = CAST(x'ff' AS TEXT)")
        for user in users:
            resync = await run_task(two, ResyncOptions(user), ResyncStatus)
            assert "state: at dc1: a part of this node's database is damaged" in str(resync.differences[0].why_not)
        assert one.store.damage.found
        told = Counter(record.name.rpartition(".")[2] for record in caplog.records if "damaged" in record.getMessage())
        assert told == {"damage": 1}
        one.damage("UPDATE by_uid SET claim_origin = origin")  # the databases must be whole when the nodes stop
