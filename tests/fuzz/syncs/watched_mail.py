"""A node's mail store whose callers are held back for a moment, so that users can do something between its calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import cast

from tests.one_node import HookedMail


class WatchedMail:
    """The mail store, with a call of `before`, with the method's name, ahead of each call that may wait."""

    def __init__(self, mail: HookedMail, before: Callable[[str], Awaitable[None]]) -> None:
        self._mail = mail
        self._before = before

    def __getattr__(self, name: str) -> object:
        method = getattr(self._mail, name)
        if not inspect.iscoroutinefunction(method):
            return cast("object", method)

        async def call(*values: object, **named: object) -> object:
            await self._before(name)
            return cast("object", await method(*values, **named))

        return call


def watched(mail: HookedMail, before: Callable[[str], Awaitable[None]]) -> HookedMail:
    """Return the mail store as those see it whose calls are watched."""
    return cast("HookedMail", WatchedMail(mail, before))
