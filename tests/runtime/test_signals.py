from __future__ import annotations

import trio
import trio.testing

from replicator.runtime.signals import Signal


async def waiting(signal: Signal, nursery: trio.Nursery) -> list[str]:
    """Start a task that waits for the signal. Return the list to which it adds a word once it is woken."""
    woken: list[str] = []

    async def wait() -> None:
        await signal.wait()
        woken.append("woken")

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    return woken


async def test_set_signal_wakes_all_until_it_is_cleared() -> None:
    signal = Signal()
    async with trio.open_nursery() as nursery:
        first = await waiting(signal, nursery)
        assert (first, signal.is_set()) == ([], False)
        signal.set()
        assert (await waiting(signal, nursery), first, signal.is_set()) == (["woken"], ["woken"], True)
        signal.clear()
        assert (await waiting(signal, nursery), signal.is_set()) == ([], False)
        nursery.cancel_scope.cancel()


async def test_clear_of_an_unset_signal_keeps_its_waiters() -> None:
    signal = Signal()
    async with trio.open_nursery() as nursery:
        woken = await waiting(signal, nursery)
        signal.clear()
        signal.set()
    assert woken == ["woken"]


async def test_notification_wakes_waiting_tasks_and_no_later_ones() -> None:
    signal = Signal()
    async with trio.open_nursery() as nursery:
        woken = await waiting(signal, nursery)
        signal.notify()
        assert (await waiting(signal, nursery), woken) == ([], ["woken"])
        nursery.cancel_scope.cancel()
