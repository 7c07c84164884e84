# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
"""Users' quotas in a cluster (design section 8): each node enforces them, and no merge loses mail because of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock, wait_all_tasks_blocked

from protocol.values import UidSet
from replicator.errors import QuotaExceededError, UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.writes.quotas import Quotas
from replicator.runtime.metrics import QuotaMetrics
from replicator.store.db.chain import Usage
from replicator.store.store import Store
from replicator.users import QuotaLimits
from tests.limits import limits_by
from tests.one_node import one_node
from tests.replication.cluster import USER, Node, cluster

ALL = UidSet.of_ranges([(1, 99)])


async def move(node: Node, source: str, destination: str) -> None:
    await node.mail.move(await node.view(source), ALL, await node.mail.folder(USER, destination))


async def is_full(node: Node) -> bool:
    try:
        await node.save("one more")
    except QuotaExceededError:
        return True
    return False


async def test_every_node_refuses_what_exceeds_the_quota(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.quota = QuotaLimits(messages=3)
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("one")
        await nodes["dc2"].save("two", "Work")
        await nodes["dc3"].save("three")
        await nodes.converged()
        assert [await is_full(node) for node in nodes.all()] == [True, True, True]
        # MOVE changes nothing; COPY would exceed it.
        await move(nodes["dc2"], "INBOX", "Work")
        await nodes.converged()
        assert [await is_full(node) for node in nodes.all()] == [True, True, True]
        with pytest.raises(QuotaExceededError, match="quota of messages"):
            await nodes["dc3"].mail.copy(await nodes["dc3"].view("Work"), ALL, await nodes["dc3"].inbox())
        # What is expunged, as a deleted folder's mail is, gives its room back, although it is kept for an undelete.
        await nodes["dc1"].mail.delete_folder(USER, "Work")
        await nodes.converged()
        assert [await is_full(node) for node in nodes.all()] == [False, False, False]
        await nodes.converged()
        quotas = [await node.mail.quota(USER) for node in nodes.all()]
        assert [(quota.messages, quota.storage_bytes) for quota in quotas] == [(3, 24)] * 3


async def test_merge_beyond_the_quota_loses_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.quota = QuotaLimits(storage_bytes=20)
        await nodes["dc1"].save("12345")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc1"].save("at dc1, 15 long")
        await nodes["dc3"].save("at dc3, 15 long")
        with pytest.raises(QuotaExceededError, match="quota of storage"):
            await nodes["dc3"].save("x")
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == ["12345", "at dc1, 15 long", "at dc3, 15 long"]
            assert (await node.mail.quota(USER)).storage_bytes == 35
            assert await is_full(node)
        await nodes["dc2"].flag(1)  # everything but new mail goes on
        await nodes["dc2"].mail.create_folder(USER, "Away")
        await move(nodes["dc2"], "INBOX", "Away")
        await nodes.converged()
        await nodes["dc3"].expunge(*(message.uid for message in await nodes["dc3"].messages("Away")), name="Away")
        await nodes.converged()
        assert not await is_full(nodes["dc1"])


async def test_node_that_restarts_counts_what_it_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        nodes.quota = QuotaLimits(messages=2)
        await nodes["dc1"].save("one")
        await nodes["dc1"].save("two")
        await nodes.converged()
        await nodes.stop("dc2")
        await nodes.start("dc2")
        await nodes.linked()
        assert await is_full(nodes["dc2"])


async def test_deliveries_at_once_fill_the_quota_exactly(tmp_path: Path) -> None:
    """Each message is checked before the others are counted; none is refused that fits, none stored that does not."""
    registry = CollectorRegistry()

    def quotas(store: Store) -> Quotas:
        return Quotas(store.usage, limits_by(lambda _: QuotaLimits(100)), metrics=QuotaMetrics(registry))

    async with one_node(tmp_path, quotas=quotas) as mail:
        inbox = await mail.folder(USER, "INBOX")
        refused: list[int] = []

        async def deliver(number: int) -> None:
            try:
                await mail.save(inbox, NewMessage(b"ten octets"))
            except QuotaExceededError:
                refused.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(25):
                nursery.start_soon(deliver, number)
        assert len(refused) == 15
        assert (await mail.quota(USER)).storage_bytes == 100
        await mail.save(inbox, NewMessage(b""))  # fits
    assert registry.get_sample_value("replicator_quota_refusals_total", {"resource": "storage"}) == 15


async def test_delivery_waits_while_a_move_counts_mail_twice() -> None:
    used = Usage(1, 60)

    async def usage_of(_user: str) -> Usage:
        await trio.lowlevel.checkpoint()
        return used

    quotas, stored = Quotas(usage_of, limits_by(lambda _: QuotaLimits(100))), list[str]()

    async def deliver() -> None:
        async with quotas.room(USER, Usage(1, 10)):
            stored.append("delivered")

    async with trio.open_nursery() as nursery:
        with quotas.moving(USER, Usage(1, 60)):
            used = Usage(2, 120)  # copied, and not yet expunged
            nursery.start_soon(deliver)
            await wait_all_tasks_blocked()
            with pytest.raises(QuotaExceededError):
                async with quotas.room(USER, Usage(1, 50)):
                    pass
            assert not stored
            used = Usage(1, 60)
    assert stored == ["delivered"]


async def test_wait_for_room_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with one_node(
        tmp_path, quotas=lambda store: Quotas(store.usage, limits_by(lambda _: QuotaLimits(messages=1)))
    ) as mail:
        began = trio.current_time()
        async with mail._quotas.room(USER, Usage(1, 1)):
            with pytest.raises(UnavailableError, match="little room is left"):
                await mail.save(await mail.folder(USER, "INBOX"), NewMessage(b"x"))
        assert trio.current_time() - began >= timing.REQUEST_TIMEOUT_S
        await mail.save(await mail.folder(USER, "INBOX"), NewMessage(b"x"))
