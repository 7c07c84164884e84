"""Turns by key: one holder per key at a time, the others in order of arrival."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import trio

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """Turns of keys: at most one turn of each key is held at a time."""

    def __init__(self) -> None:
        self._semaphores: WeakValueDictionary[K, trio.Semaphore] = WeakValueDictionary()

    def of(self, key: K) -> trio.Semaphore:
        """Return a semaphore to enter for a turn. It exists as long as a task waits for it or holds it."""
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = trio.Semaphore(1, max_value=1)
        return semaphore
