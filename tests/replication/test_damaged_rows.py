"""A row that cannot be read holds up what would change it, and nothing else."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.errors import UnavailableError
from replicator.tasks import CheckOptions, CheckStatus
from tests.replication.cluster import Node, cluster, until
from tests.replication.test_checking import ended, tasks_at

GARBLE = "UPDATE by_uid SET flags = x'c1' WHERE uid = 1"


async def repair(node: Node) -> CheckStatus:
    async with tasks_at(node) as tasks:
        status = await ended(tasks, CheckOptions(repair=True))
    assert (status.state, status.error, status.unrepaired) == ("done", None, 0)
    return status


async def test_of_another_nodes_change(
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
        assert await two.texts(user="bob") == {1: "another's"}
        assert await two.waiting() == 2
        assert "waits for `replicator check --repair`" in caplog.text
        assert (await repair(two)).damage == {"by_uid": 1}
        await nodes.converged()
        assert await two.waiting() == 0


async def test_of_its_masters_own_change(tmp_path: Path, autojump_clock: MockClock) -> None:
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
