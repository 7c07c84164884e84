"""Since when scopes have their masters, and what has brought that about, as this node has seen it in this term."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import trio

from master_election.scope_record import Event

REMEMBERED_MAX = 10_000  # scopes, some 3 MiB: operators ask for few, and rather for those of the last hours

_BEGINS = {Event.ROOT_NAMES_US, Event.ROOT_NAMES_OTHER, Event.TAKEN, Event.GIVEN}


class Tenure(NamedTuple):
    """The beginning of a mastership: at `since`, in the event loop's seconds, by `event`."""

    since: float
    event: Event


class Tenures:
    """The tenures that began last. Belongs to the event loop."""

    def __init__(self) -> None:
        self._begun: OrderedDict[str, Tenure] = OrderedDict()

    def note(self, scope: str, event: Event) -> None:
        """Note what has happened to a scope, if its master is another one from now on."""
        if event in _BEGINS:
            self._begun.pop(scope, None)
            self._begun[scope] = Tenure(trio.current_time(), event)
            if len(self._begun) > REMEMBERED_MAX:
                self._begun.popitem(last=False)

    def forget_all(self) -> None:
        """Forget everything: a new term has begun."""
        self._begun.clear()

    def get(self, scope: str) -> Tenure | None:
        """Return when the present master's time began; None if this node does not remember it."""
        return self._begun.get(scope)
