"""The mail as a door's process has it: what it delivers, and what it gives up."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.errors import DiskFullError, QuotaExceededError
from replicator.mail.mailstore import NewMessage
from replicator.workers.door.mail import RemoteMail
from tests.one_door import remote_mail
from tests.one_node import Gate, HookedMail, SinkLog, one_node

LARGE = b"Subject: large\r\n\r\n" + random.Random(1).randbytes(400_000).hex().encode()


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        mail.sinks = SinkLog()
        yield mail


@pytest.fixture
async def door(mail: HookedMail) -> AsyncIterator[RemoteMail]:
    async with remote_mail(mail) as door:
        yield door


async def send(door: RemoteMail, body: bytes, *users: str) -> list[int]:
    async with door.receive() as sink:
        for start in range(0, len(body), 50_000):
            await sink.write(body[start : start + 50_000])
        received = await sink.finish()
        assert received.size_bytes == len(body)
        return [(await door.deliver(user, NewMessage(received, received_ms=1))).uid for user in users]


@pytest.mark.parametrize("size", [0, 1000, 64 << 10, (64 << 10) + 1, len(LARGE)])
async def test_bodies_of_all_sizes_arrive_byte_for_byte(mail: HookedMail, door: RemoteMail, size: int) -> None:
    body = LARGE[:size]
    assert await send(door, body, "alice", "bob") == [1, 1]
    assert await mail.bodies("alice") == await mail.bodies("bob") == [body]
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    assert [message.received_ms for message in view.messages.values()] == [1]


async def test_only_large_bodies_are_received_by_the_core(mail: HookedMail, door: RemoteMail) -> None:
    assert mail.sinks is not None
    await send(door, LARGE[: 64 << 10], "alice")
    assert mail.sinks.opened == 0
    await send(door, LARGE, "alice")
    await trio.testing.wait_all_tasks_blocked()
    assert (mail.sinks.opened, mail.sinks.open) == (1, 0)


async def test_what_is_given_up_in_the_middle_is_discarded(mail: HookedMail, door: RemoteMail) -> None:
    assert mail.sinks is not None
    async with door.receive() as sink:
        await sink.write(LARGE)
    await trio.testing.wait_all_tasks_blocked()
    assert (mail.sinks.opened, mail.sinks.open) == (1, 0)


async def test_a_body_is_discarded_only_when_its_save_has_ended(mail: HookedMail, door: RemoteMail) -> None:
    assert mail.sinks is not None
    entered, gate = trio.Event(), trio.Event()

    async def hold(_user: str) -> None:
        entered.set()
        with trio.CancelScope(shield=True):  # as a commit that is under way
            await gate.wait()

    mail.before_change = hold
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, door, LARGE, "alice")
            await entered.wait()
            scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert mail.sinks.open == 1
    gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert mail.sinks.open == 0


async def test_what_a_door_was_sending_is_discarded_when_it_ends(mail: HookedMail) -> None:
    assert mail.sinks is not None
    async with AsyncExitStack() as in_door:
        async with remote_mail(mail) as door:
            sink = await in_door.enter_async_context(door.receive())
            await sink.write(LARGE)
            assert mail.sinks.open == 1
        assert mail.sinks.open == 0
    assert await mail.bodies("alice") == []


async def test_errors_of_the_core_are_those_of_the_door(mail: HookedMail, door: RemoteMail) -> None:
    mail.before_change = Gate({"bob": QuotaExceededError("full", defer=True)})
    with pytest.raises(QuotaExceededError) as caught:
        await send(door, b"Subject: x\r\n\r\n", "bob")
    assert caught.value.defer
    mail.sinks = SinkLog(fails_at=0, error=DiskFullError("no room"))
    with pytest.raises(DiskFullError, match="no room"):
        await send(door, LARGE, "alice")
