"""The sessions of a door in another process, as the core lists and ends them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from replicator.errors import UnavailableError
from replicator.runtime.sessions import Facts, NodeSessions, Sessions
from replicator.workers.both_ends.sessions import RemoteSessions, answer_for_sessions
from tests.one_door import channels

FACTS = Facts("alice", "IDLE", 3, "Arch\udc80ive", tls=True, master="admin")


async def test_sessions_of_a_door_are_listed_and_ended_with_those_of_the_core() -> None:
    own, at_door = Sessions(), Sessions("door 1")
    async with channels() as (core, door):
        answer_for_sessions(door, at_door)
        node = NodeSessions(own, lambda: [RemoteSessions(core, "door 1")])
        with own.opened("imap", "::1", lambda: FACTS) as here, at_door.opened("imap", "::2", lambda: FACTS) as there:
            found = await node.list("alice", lambda _: True)
            assert [(one.process, one.address) for one in found] == [("core", "::1"), ("door 1", "::2")]
            assert {(one.user, one.doing, one.doing_since_ms, one.mailbox, one.tls, one.master) for one in found} == {
                FACTS
            }
            assert await node.list("bob", lambda _: True) == []
            assert await node.end("alice", lambda one: one.address == "::2") == found[1:]
            assert (here.was_ended, there.was_ended) == (False, True)


async def test_a_door_that_has_ended_has_no_sessions() -> None:
    async with channels() as (core, _):
        remote = RemoteSessions(core, "door 1")
    assert await remote.page(0) == ((), None)
    assert await remote.end(["1.1"]) == ()


async def test_a_door_that_hangs_is_named(autojump_clock: MockClock) -> None:  # noqa: ARG001
    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    async with channels() as (core, door):
        door.calls["sessions"] = hang
        with pytest.raises(UnavailableError, match="the process of door 1 does not answer"):
            await NodeSessions(Sessions(), lambda: [RemoteSessions(core, "door 1")]).list(None, lambda _: True)


async def test_a_door_that_hangs_keeps_no_other_session_from_being_ended(
    autojump_clock: MockClock,  # noqa: ARG001
) -> None:
    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    at_door = Sessions("door 2")
    async with channels() as (core, hanging), channels() as (other_core, door):
        hanging.calls["sessions"] = hang
        answer_for_sessions(door, at_door)
        node = NodeSessions(Sessions(), lambda: [RemoteSessions(core, "door 1"), RemoteSessions(other_core, "door 2")])
        with at_door.opened("imap", "::2", lambda: FACTS) as there:
            with pytest.raises(UnavailableError, match="the process of door 1 does not answer"):
                await node.end("alice", lambda _: True)
            assert there.was_ended
