from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.runtime.process.service_manager import BEATS_PER_WATCHDOG, WRITER_PATIENCE_S, ServiceManager
from tests.notify_socket import NotifySocket


@pytest.fixture(params=["path", "abstract"])
def heard_by(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@replicator-tests-{os.getpid()}"
    with NotifySocket(address) as listener:
        yield listener


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(str(tmp_path / "notify")) as listener:
        yield listener


async def answer() -> None:
    await trio.lowlevel.checkpoint()


async def heard_for(notify: NotifySocket, seconds: int) -> list[str]:
    """Return what is said meanwhile: a socket has room for ten messages or so."""
    messages = []
    for _ in range(seconds):
        await trio.sleep(1)
        messages += notify.heard()
    return messages


def test_states_are_told_in_their_order(heard_by: NotifySocket) -> None:
    manager = ServiceManager(heard_by.address)
    manager.ready()
    before_us = time.monotonic_ns() // 1000
    with manager.reloading():
        after_us = time.monotonic_ns() // 1000
        *_, reloading = heard_by.heard()
    manager.stopping()
    found = re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)", reloading)
    assert found
    assert before_us <= int(found[1]) <= after_us
    assert heard_by.heard() == ["READY=1", "STOPPING=1"]


def test_a_node_is_ready_again_after_a_reading_that_has_failed(notify: NotifySocket) -> None:
    manager = ServiceManager(notify.address)
    manager.ready()
    with pytest.raises(KeyError), manager.reloading():
        raise KeyError
    assert [message.partition("\n")[0] for message in notify.heard()] == ["READY=1", "RELOADING=1", "READY=1"]


def test_readings_before_the_node_is_ready_and_after_it_stops_are_not_told(notify: NotifySocket) -> None:
    manager = ServiceManager(notify.address)
    with manager.reloading():
        pass
    assert notify.heard() == []
    manager.ready()
    with manager.reloading():
        manager.stopping()
    with manager.reloading():
        pass
    assert [message.partition("\n")[0] for message in notify.heard()] == ["READY=1", "RELOADING=1", "STOPPING=1"]


async def test_signs_of_life_come_often_enough(notify: NotifySocket, autojump_clock: MockClock) -> None:
    del autojump_clock
    manager = ServiceManager(notify.address, watchdog_s=60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.beat, answer)
        beats = await heard_for(notify, 600)
        nursery.cancel_scope.cancel()
    assert set(beats) == {"WATCHDOG=1"}
    assert len(beats) >= 10 * BEATS_PER_WATCHDOG


async def test_signs_of_life_cease_while_the_writer_does_not_answer(
    notify: NotifySocket, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    may_answer = trio.Event()
    manager = ServiceManager(notify.address, watchdog_s=60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.beat, may_answer.wait)
        beats = await heard_for(notify, int(WRITER_PATIENCE_S) - 1)
        assert len(beats) == WRITER_PATIENCE_S / 20  # a slow writer is no reason to end the node
        await heard_for(notify, 60)
        assert await heard_for(notify, 600) == []
        assert [record.message for record in caplog.records] == [
            "the database's writer has not answered for 600 s: signs of life cease"
        ]
        may_answer.set()
        assert await heard_for(notify, 60)
        nursery.cancel_scope.cancel()


async def test_last_state_is_told_once_there_is_room_for_it(notify: NotifySocket, autojump_clock: MockClock) -> None:
    del autojump_clock
    manager = ServiceManager(notify.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.beat, answer)
        notify.fill()
        manager.ready()
        with manager.reloading():
            pass
        assert set(notify.heard()) == {"of somebody else"}
        await trio.sleep(60)
        assert notify.heard() == ["READY=1"]
        nursery.cancel_scope.cancel()


async def test_a_manager_that_is_gone_is_reported_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    address = tmp_path / "notify"
    manager = ServiceManager(str(address), watchdog_s=30.0)
    manager.ready()
    with trio.move_on_after(600):
        await manager.beat(answer)
    [record] = caplog.records
    assert record.message == f"the service manager at {address} cannot be told anything: No such file or directory"
    with NotifySocket(str(address)) as back, trio.move_on_after(5):
        await manager.beat(answer)
    del back


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
async def test_watchdog_counts_if_it_is_for_this_process(
    notify: NotifySocket, autojump_clock: MockClock, variables: dict[str, str], watchdog_s: float | None
) -> None:
    del autojump_clock
    environment = {"NOTIFY_SOCKET": notify.address, "PATH": "/bin", **variables}
    manager = ServiceManager.of_environment(environment)
    assert environment == {"PATH": "/bin"}
    with trio.move_on_after(6.5):
        await manager.beat(answer)
    assert notify.heard() == ["WATCHDOG=1"] * (0 if watchdog_s is None else 7)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "notify"])
async def test_without_a_socket_nobody_is_told(address: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager.of_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"})
    manager.ready()
    with manager.reloading():
        pass
    manager.stopping()
    await manager.beat(answer)  # it returns
    assert [record.levelname for record in caplog.records] == (["WARNING"] if address else [])
