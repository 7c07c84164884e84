"""The sessions at a door: both ends. The core lists and ends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import trio

from replicator.errors import UnavailableError
from replicator.runtime.sessions import Sessions, SessionStatus
from replicator.workers.channel import Channel

ANSWER_S = 10.0
"""Seconds for an answer of a door, as for a ping."""


def answer_for_sessions(channel: Channel, sessions: Sessions) -> None:
    """Answer the core's calls about the sessions of this process."""
    channel.calls["sessions"] = sessions.page
    channel.calls["end sessions"] = sessions.end


class RemoteSessions:
    """The sessions of a door in another process. One that has ended has none."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._name = name

    async def page(self, after: int, user: str | None = None) -> tuple[Sequence[SessionStatus], int | None]:
        """See `Sessions`. Raises UnavailableError if the door does not answer."""
        found = await self._call("sessions", after, user)
        return cast("tuple[Sequence[SessionStatus], int | None]", found) if found is not None else ((), None)

    async def end(self, ids: Sequence[str]) -> Sequence[str]:
        """See `Sessions`. Raises UnavailableError if the door does not answer."""
        return cast("Sequence[str]", await self._call("end sessions", ids) or ())

    async def _call(self, name: str, *arguments: object) -> object:
        """Return what the door answers; None if its process has ended. Raises UnavailableError."""
        with trio.move_on_after(ANSWER_S):
            try:
                return await self._channel.call(name, *arguments)
            except UnavailableError:
                return None
        raise UnavailableError(f"the process of {self._name} does not answer; ask again in a minute")
