"""Calls between a core and a door."""

from __future__ import annotations

import logging
from typing import cast

import pytest
import trio
import trio.testing

from replicator.errors import MailError, NotReadyError, QuotaExceededError, UnavailableError
from replicator.store.db.damage import DatabaseDamagedError
from replicator.workers.channel import FRAME_BYTES_MAX, OUTGOING_BYTES, Channel, DefectError
from tests.one_door import channels


async def test_both_ends_call_each_other_and_many_calls_are_under_way_at_once() -> None:
    gates = [trio.Event() for _ in range(20)]

    async def wait(number: int) -> int:
        await gates[number].wait()
        return number

    async def double(text: str, data: bytes) -> tuple[str, bytes]:
        await trio.lowlevel.checkpoint()
        return text * 2, data * 2

    answers: dict[int, object] = {}
    async with channels() as (core, door), trio.open_nursery() as nursery:
        core.calls["wait"], door.calls["double"] = wait, double

        async def ask(number: int) -> None:
            answers[number] = await door.call("wait", number)

        for number in range(20):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        assert await core.call("double", "ä\udc80", b"\x00\xff") == ("ä\udc80ä\udc80", b"\x00\xff\x00\xff")
        for gate in reversed(gates):
            gate.set()
    assert answers == {number: number for number in range(20)}


async def test_quick_calls_are_answered_in_their_order_before_what_follows() -> None:
    seen: list[object] = []

    async def look() -> tuple[object, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(seen)

    def note(number: int) -> int:
        seen.append(number)
        return -number

    async with channels() as (core, door):
        core.calls["look"], core.quick_calls["note"] = look, note
        door.tell("note", 1)
        assert await door.call("note", 2) == -2
        door.tell("note", 3)
        assert await door.call("look") == (1, 2, 3)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (NotReadyError("not yet"), NotReadyError),
        (QuotaExceededError("full", defer=True), QuotaExceededError),
        (DatabaseDamagedError("page 7"), MailError),
    ],
)
async def test_errors_for_clients_arrive_as_they_are(raised: MailError, kind: type[MailError]) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise raised

    def fail_at_once() -> None:
        raise raised

    async with channels() as (core, door):
        core.calls["fail"], core.quick_calls["fail_at_once"] = fail, fail_at_once
        for name in ("fail", "fail_at_once"):
            with pytest.raises(kind) as caught:
                await door.call(name)
            assert str(caught.value) == str(raised)
            if isinstance(raised, QuotaExceededError):
                assert isinstance(caught.value, QuotaExceededError)
                assert caught.value.defer


async def test_a_defect_is_logged_where_it_is_and_the_connection_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("a defect")

    async with channels() as (core, door):
        core.calls["fail"] = fail
        for _ in range(2):
            with pytest.raises(DefectError):
                await door.call("fail")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "a defect" in caplog.text


async def test_a_cancelled_call_is_cancelled_at_the_other_end() -> None:
    entered, left = trio.Event(), trio.Event()

    async def hang() -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async with channels() as (core, door):
        core.calls["hang"] = hang
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(door.call, "hang")
                await entered.wait()
                scope.cancel()
        await left.wait()


async def test_calls_fail_and_end_with_the_connection() -> None:
    entered, left = trio.Event(), trio.Event()

    async def hang() -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    core, door = map(Channel, trio.testing.memory_stream_pair())
    core.calls["hang"] = hang
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run)
        async with trio.open_nursery() as of_core:
            of_core.start_soon(core.run)

            async def ask() -> None:
                with pytest.raises(UnavailableError):
                    await door.call("hang")

            nursery.start_soon(ask)
            await entered.wait()
            of_core.cancel_scope.cancel()
    assert left.is_set()
    with pytest.raises(UnavailableError):
        await door.call("hang")
    door.tell("hang")


async def test_what_is_too_large_for_a_frame_fails_alone() -> None:
    async def answer(size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"x" * size

    async with channels() as (core, door):
        core.calls["answer"] = answer
        with pytest.raises(UnavailableError, match="too much"):
            await door.call("answer", FRAME_BYTES_MAX)
        with pytest.raises(UnavailableError, match="too much"):
            await door.call("answer", b"x" * FRAME_BYTES_MAX)
        assert len(cast("bytes", await door.call("answer", FRAME_BYTES_MAX // 2))) == FRAME_BYTES_MAX // 2


async def test_what_is_no_frame_ends_the_connection_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    core, door = trio.testing.memory_stream_pair()
    await door.send_all(b"\xc1")
    await Channel(core).run()
    assert "a connection between processes of this node ends" in caplog.text


async def test_a_call_that_was_given_up_before_it_began_does_nothing() -> None:
    done = list[int]()

    async def act(number: int) -> None:
        await trio.lowlevel.checkpoint()
        done.append(number)

    async with channels() as (core, door):
        core.calls["act"] = act
        with trio.CancelScope() as scope:
            scope.cancel()
            await door.call("act", 1)
        await door.call("act", 2)
    assert done == [2]


async def test_whoever_sends_much_waits_for_room() -> None:
    stream, other = trio.testing.memory_stream_pair()
    channel = Channel(stream)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.room)
        for _ in range(3):
            channel.tell("note", b"x" * OUTGOING_BYTES)
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0) as too_early:
                await channel.room()
            assert too_early.cancelled_caught
            nursery.start_soon(channel.run)
            await channel.room()
            await other.aclose()
            await channel.room()
            scope.cancel()
