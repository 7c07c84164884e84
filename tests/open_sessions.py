"""Sessions that are open while their tasks run, for tests of listing and ending them."""

from __future__ import annotations

from functools import partial

import trio

from replicator.runtime.sessions import Facts, OpenSession, Sessions


class Holder:
    """Opens sessions in tasks of the nursery, and ends those tasks."""

    def __init__(self, nursery: trio.Nursery, sessions: Sessions) -> None:
        self._nursery = nursery
        self._sessions = sessions
        self._leaving = trio.Event()

    async def open(self, facts: Facts, address: str = "192.0.2.1") -> OpenSession:
        """Open a session, which lasts until it is ended, or `leave`."""
        session = await self._nursery.start(partial(self._hold, facts, address))
        assert isinstance(session, OpenSession)
        return session

    async def leave(self) -> None:
        """End the sessions as if their clients had left."""
        self._leaving.set()
        await trio.testing.wait_all_tasks_blocked()

    async def _hold(self, facts: Facts, address: str, task_status: trio.TaskStatus[OpenSession]) -> None:
        with self._sessions.opened("imap", address, lambda: facts) as session:
            task_status.started(session)
            await self._leaving.wait()
