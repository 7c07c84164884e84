"""Whose turn it is: of one key only so many at a time, the others in the order in which they came."""

from __future__ import annotations

from weakref import WeakValueDictionary

import trio


class Turns:
    """At most `at_once` turns of each key are held at a time."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: WeakValueDictionary[str, trio.Semaphore] = WeakValueDictionary()

    def of(self, key: str) -> trio.Semaphore:
        """Enter it to wait for a turn and hold it. It lives as long as somebody waits for it or holds it."""
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = trio.Semaphore(self._at_once, max_value=self._at_once)
        return semaphore
