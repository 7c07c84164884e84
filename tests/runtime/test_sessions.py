"""The register of sessions: what it lists while sessions come and go, and whom it ends."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from replicator.runtime.sessions import PAGE_SESSIONS, Facts, NodeSessions, Sessions, SessionStatus
from tests.open_sessions import Holder

ALICE, BOB = (Facts(user, None, 1, None, tls=False) for user in ("alice", "bob"))


async def listed(sessions: Sessions, user: str | None = None) -> list[SessionStatus]:
    return [*await NodeSessions(sessions).list(user, lambda _: True)]


async def test_all_of_many_sessions_are_listed_a_page_at_a_time(nursery: trio.Nursery) -> None:
    sessions = Sessions(clock_ms=lambda: 7)
    holder = Holder(nursery, sessions)
    for facts in (*[ALICE] * PAGE_SESSIONS, BOB, *[ALICE] * PAGE_SESSIONS):
        await holder.open(facts)
    first, after = await sessions.page(0)
    assert (len(first), after) == (PAGE_SESSIONS, PAGE_SESSIONS)
    assert [one.id for one in await listed(sessions)] == [f"{os.getpid()}.{n}" for n in range(1, 2 * PAGE_SESSIONS + 2)]
    [bob] = await listed(sessions, "bob")
    assert (bob.user, bob.since_ms, bob.process, bob.address) == ("bob", 7, "core", "192.0.2.1")
    await holder.leave()
    assert await listed(sessions) == []


async def test_sessions_that_come_and_go_while_others_are_listed(nursery: trio.Nursery) -> None:
    sessions = Sessions()
    leaving, staying = Holder(nursery, sessions), Holder(nursery, sessions)
    for _ in range(PAGE_SESSIONS):
        await leaving.open(BOB)
    await staying.open(ALICE)
    _, after = await sessions.page(0)
    assert after is not None
    await leaving.leave()
    await staying.open(BOB)
    page, last = await sessions.page(after)
    assert ([one.user for one in page], last) == (["alice", "bob"], None)
    await staying.leave()


async def test_exactly_the_wanted_sessions_are_ended(nursery: trio.Nursery) -> None:
    sessions = Sessions()
    holder = Holder(nursery, sessions)
    opened = [await holder.open(facts) for facts in (ALICE, BOB, ALICE)]
    first, second = await listed(sessions, "alice")
    assert await NodeSessions(sessions).end("alice", lambda one: one.id == first.id) == [first]
    await trio.testing.wait_all_tasks_blocked()
    assert [one.was_ended for one in opened] == [True, False, False]
    assert await sessions.end([first.id, f"{os.getpid()}.77", "1.2", second.id]) == [second.id]
    assert len(await NodeSessions(sessions).end(None, lambda one: one.user == "bob")) == 1
    await trio.testing.wait_all_tasks_blocked()
    assert await listed(sessions) == []


async def test_a_busy_session_ends_after_what_it_does() -> None:
    sessions = Sessions()
    done = False
    with sessions.opened("lmtp", "", lambda: ALICE) as session:
        with session.busy():
            session.end()
            await trio.lowlevel.checkpoint()
            done = True
        with pytest.raises(trio.Cancelled):
            await trio.lowlevel.checkpoint()
    assert (done, session.was_ended) == (True, True)
