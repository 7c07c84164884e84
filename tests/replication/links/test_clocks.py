"""Changes of nodes with wrong clocks reach all nodes, and links stay up."""

from pathlib import Path

from trio.testing import MockClock

from protocol.values import UidSet
from replicator.mail.view import SEEN
from tests.replication.cluster import cluster

DAY_S = 86_400
FLAGGED = "\\Flagged"


async def test_nodes_with_distant_clocks_exchange_mail_through_a_third_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc2"]) as nodes:
        nodes.clock_ahead_s = {"dc1": 200, "dc3": -200}
        nodes.network.cut(("dc1", "dc3"))
        await nodes.start("dc1", "dc3")
        await nodes.linked()
        before = {node.sid: list(node.coordinator.connections.links) for node in nodes.all()}
        for sid in nodes.sids:
            await nodes[sid].save(f"at {sid}")
        await nodes.converged()
        assert set((await nodes["dc3"].bodies()).values()) == {"at dc1", "at dc2", "at dc3"}
        after = {node.sid: list(node.coordinator.connections.links) for node in nodes.all()}
        assert after == before


async def test_mail_stamped_a_day_ahead_is_accepted_and_later_changes_win(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc1", "dc2"]) as nodes:
        await nodes["dc1"].save("before")
        await nodes.stop("dc2")
        nodes.clock_ahead_s["dc3"] = DAY_S
        await nodes.start("dc3")
        await nodes["dc3"].save("of tomorrow")
        await nodes["dc3"].flag(1)
        assert nodes["dc3"].component == {"dc3"}, "links are refused"
        await nodes.stop("dc3")
        nodes.clock_ahead_s["dc3"] = 0
        await nodes.start("dc2", "dc3")
        await nodes.linked()
        await nodes.converged()
        texts = await nodes["dc1"].bodies()
        assert set(texts.values()) == {"before", "of tomorrow"}
        (uid,) = (uid for uid, text in texts.items() if text == "of tomorrow")
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await nodes["dc1"].flag(uid, added=[FLAGGED])
        await nodes["dc2"].mail.store_flags(await nodes["dc2"].view(), UidSet.of([uid]), removed=frozenset([SEEN]))
        nodes.rejoin("dc1")
        await nodes.linked()
        await nodes.converged()
        assert (await nodes["dc1"].view()).messages[uid].flags == {FLAGGED}
