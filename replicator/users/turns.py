"""Turns by key: a limited number of holders per key at a time, the others in order of arrival."""

from __future__ import annotations

from weakref import WeakValueDictionary

import trio


class Turns:
    """At most `at_once` turns of each key are held at a time."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: WeakValueDictionary[str, trio.Semaphore] = WeakValueDictionary()

    def of(self, key: str) -> trio.Semaphore:
        """Return a semaphore to enter for a turn. It exists as long as a task waits for it or holds it."""
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = trio.Semaphore(self._at_once, max_value=self._at_once)
        return semaphore
