import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from replicator.mail.view import SEEN, MailboxView
from replicator.store.db import queries
from replicator.store.db.memory import view_cache
from replicator.store.db.memory.view_cache import Views
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from tests.store.harness import (
    ALICE,
    INBOX,
    WORK,
    assert_same_view,
    creating,
    expunging,
    flagging,
    fresh_messages,
    guid,
    open_store,
    save,
    saving,
)
from tests.store.memory_node import MemoryNode


class SlowLoader:
    """A loader of mailboxes from a memory node, which answers once `answer` is set."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node
        self.loads = 0
        self.answer = trio.Event()

    async def load(self, key: MailboxKey) -> MailboxView:
        self.loads += 1
        view = queries.view(self._node.connection, key)
        await self.answer.wait()
        return view


async def publish(node: MemoryNode, target: Views) -> None:
    for commit in node.commits:
        for change in commit.changes:
            await target.apply(change)
        for mailbox_id in commit.retired:
            target.retire(mailbox_id)
    node.commits.clear()


async def test_view_shows_a_commit_before_its_writer_hears_ok(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        view = await store.view(INBOX)
        assert (view.uidnext, view.highestmodseq, len(view.messages)) == (1, 0, 0)
        await save(store, 1)
        await save(store, 2, flags=[SEEN])
        await store.write(flagging(1, added=["$Later"]))
        assert view.uidnext == 3
        assert view.unseen == 1
        await store.write(expunging(2))
        assert_same_view(view, await fresh_messages(store))
        assert await store.view(INBOX) is view
        assert (await store.view(WORK)).messages == {}


async def test_commits_during_loading_are_applied_once() -> None:
    node = MemoryNode("dc1.a")
    for number in (1, 2, 3):
        node.write(saving(b"text", guid(number)))
    loader = SlowLoader(node)
    views = Views(loader.load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(views.get, INBOX)
        await wait_all_tasks_blocked()
        node.commits.clear()
        node.write(expunging(1))
        node.write(flagging(2, added=[SEEN]))
        node.write(saving(b"text", guid(4)))
        await publish(node, views)
        loader.answer.set()
    view = await views.get(INBOX)
    chain, messages, _ = queries.messages(node.connection, INBOX.mailbox_id)
    assert chain is not None
    assert_same_view(view, messages)
    assert (view.uidnext, view.highestmodseq) == (chain.uidnext, chain.highestmodseq)


async def test_commits_contained_in_the_snapshot_are_ignored() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    saved, node.commits = node.commits, []
    node.write(expunging(1))
    loader = SlowLoader(node)
    views = Views(loader.load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(views.get, INBOX)
        await wait_all_tasks_blocked()
        await views.apply(saved[0].changes[0])
        loader.answer.set()
    view = await views.get(INBOX)
    assert (dict(view.messages), view.highestmodseq) == ({}, 2)


async def test_view_is_reloaded_if_its_uidvalidity_rose_during_loading() -> None:
    node = MemoryNode("dc1.a")
    node.write(creating("Work", WORK.mailbox_id))
    node.write(saving(b"text", guid(1), WORK))
    before = queries.uidvalidity(node.connection, WORK.mailbox_id)
    assert before is not None
    loader = SlowLoader(node)
    views = Views(loader.load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(views.get, WORK._replace(uidvalidity=before))
        await wait_all_tasks_blocked()
        node.write(lambda tx: setattr(tx.chain_to_change(WORK.mailbox_id, ALICE, before), "risen", 3))
        views.retire(WORK.mailbox_id)
        loader.answer.set()
    assert loader.loads == 2
    assert (await views.get(WORK._replace(uidvalidity=before))).uidvalidity == before + 3


async def test_view_is_made_in_the_thread_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_in: list[threading.Thread] = []
    build = MailboxView.build

    def note(**parts: Any) -> MailboxView:
        made_in.append(threading.current_thread())
        return build(**parts)

    monkeypatch.setattr(MailboxView, "build", note)
    async with open_store(tmp_path) as store:
        await save(store, 1)
        assert len((await store.view(INBOX)).messages) == 1
    assert made_in != []
    assert threading.current_thread() not in made_in


async def test_others_go_on_while_a_large_change_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.mail.view.STEP_WORK", 10)
    async with open_store(tmp_path) as store, trio.open_nursery() as nursery:
        for number in range(100):
            await save(store, number)
        view = await store.view(INBOX)
        seen: list[int] = []

        async def look() -> None:
            while True:
                seen.append(len(view.messages))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(look)
        placed = await store.write(expunging(*range(1, 101)))
        assert len(view.messages) == 0
        assert placed is not None
        assert store.context[placed.origin] == placed.seq
        assert len({*seen}) > 100 // 10 // 2  # two steps may come between two looks
        nursery.cancel_scope.cancel()


async def test_changes_are_shown_after_one_that_came_first_during_loading() -> None:
    """A change that arrives while a loaded view is brought up to date is not lost."""
    node = MemoryNode("dc1.a")
    for number in range(2001):
        node.write(saving(b"text", guid(number)))
    loader = SlowLoader(node)
    views = Views(loader.load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(views.get, INBOX)
        await wait_all_tasks_blocked()
        node.commits.clear()
        node.write(expunging(*range(1, 2001)))
        await publish(node, views)
        loader.answer.set()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        node.write(saving(b"text", guid(3000)))
        await publish(node, views)
    assert [*(await views.get(INBOX)).messages] == [2001, 2002]


async def test_concurrent_requests_share_one_view() -> None:
    loader = SlowLoader(MemoryNode("dc1.a"))
    views = Views(loader.load)
    found = []

    async def ask() -> None:
        found.append(await views.get(INBOX))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        loader.answer.set()
    assert loader.loads == 1
    assert all(view is found[0] for view in found)
    assert len(found) == 5


async def test_cancelled_request_does_not_cancel_others() -> None:
    loader = SlowLoader(MemoryNode("dc1.a"))
    views = Views(loader.load)
    with trio.CancelScope() as first:
        async with trio.open_nursery() as nursery:

            async def ask(scope: trio.CancelScope) -> None:
                with scope:
                    await views.get(INBOX)

            nursery.start_soon(ask, first_scope := trio.CancelScope())
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, trio.CancelScope())
            await wait_all_tasks_blocked()
            first_scope.cancel()
            await wait_all_tasks_blocked()
            assert loader.loads == 2
            loader.answer.set()
    assert not first.cancelled_caught


async def load_at_once(key: MailboxKey) -> MailboxView:
    await trio.lowlevel.checkpoint()
    return MailboxView(key.mailbox_id, key.user, key.uidvalidity, uidnext=1, highestmodseq=0)


def mailbox(number: int) -> MailboxKey:
    return MailboxKey(ALICE, guid(number), 7)


async def test_least_recently_used_views_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_cache, "MAX_IDLE_MESSAGES", 3 * view_cache.VIEW_COST)
    loaded: list[bytes] = []

    async def load(key: MailboxKey) -> MailboxView:
        loaded.append(key.mailbox_id)
        return await load_at_once(key)

    views = Views(load)
    for number in (1, 2, 3, 1, 4, 1, 3, 2):
        await views.get(mailbox(number))
    assert loaded == [guid(number) for number in (1, 2, 3, 4, 2)]


async def test_view_in_use_is_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_cache, "MAX_IDLE_MESSAGES", 0)
    views = Views(load_at_once)
    used = await views.get(mailbox(1))
    for number in (2, 3):
        await views.get(mailbox(number))
    assert await views.get(mailbox(1)) is used


async def test_size_of_a_view_is_updated_when_it_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_cache, "MAX_IDLE_MESSAGES", 3 * view_cache.VIEW_COST)
    node = MemoryNode("dc1.a")
    loader = SlowLoader(node)
    loader.answer.set()
    views = Views(loader.load)
    await views.get(mailbox(1))
    await views.get(INBOX)
    for number in range(2 * view_cache.VIEW_COST):
        node.write(saving(b"text", guid(number)))
    await publish(node, views)
    await views.get(INBOX)
    assert loader.loads == 2
    await views.get(mailbox(1))
    assert loader.loads == 3


# ---- subscriptions -----------------------------------------------------------------------------------------------


async def test_subscription_collects_changes_until_they_are_taken(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        view = await store.view(INBOX)
        with view.subscribe() as subscription:
            await save(store, 1)
            await save(store, 2)
            await store.write(flagging(1, added=[SEEN]))
            await subscription.wait()
            assert subscription.take() == ({1, 2}, set())
            await save(store, 3)
            await store.write(expunging(1, 3))
            assert subscription.take() == (set(), {1, 3})
            assert subscription.take() == (set(), set())


@pytest.mark.parametrize("change", [saving(b"text", guid(9)), flagging(1, added=[SEEN]), expunging(1)])
async def test_waiting_ends_with_the_next_change(tmp_path: Path, change: Callable[[Transaction], object]) -> None:
    async with open_store(tmp_path) as store:
        view = await store.view(INBOX)
        await save(store, 1)
        woken = trio.Event()
        with view.subscribe() as subscription:

            async def wait() -> None:
                await subscription.wait()
                woken.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                assert not woken.is_set()
                await store.write(change)


async def test_a_subscription_ends_with_its_block(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        view = await store.view(INBOX)
        with view.subscribe() as subscription:
            assert view.subscribers == {subscription}
        assert view.subscribers == set()
        await save(store, 1)
        assert subscription.take() == (set(), set())
