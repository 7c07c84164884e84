"""The stories that operators ask for, see `replicator.http.services.StoryTeller`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from replicator.mail.mailstore import MessageIdReader
from replicator.replication.coordinator import Coordinator
from replicator.replication.stories import mailbox
from replicator.replication.stories.history import history_of
from replicator.replication.stories.mail import MailStoryTeller
from replicator.runtime.environment import Environment
from replicator.runtime.signals import acquire
from replicator.store.store import Reader, Store
from replicator.stories import AskedMail, LoggedHistory, MailboxStory, MailStory

AT_ONCE = 2  # stories that are read at once, each on a connection of its own


class Stories:
    """The teller of stories. Belongs to the event loop; all reading is done in threads, in slices."""

    def __init__(
        self, store: Store, coordinator: Coordinator, environment: Environment, message_ids: MessageIdReader
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._environment = environment
        self._message_ids = message_ids
        self._room = trio.Semaphore(AT_ONCE)

    async def history(self, user: str, mailbox: str | None, *, last: int, since_ms: int) -> LoggedHistory:
        """See `StoryTeller`."""
        async with self._reader() as reader:
            return await history_of(reader, self._coordinator.sid, user, mailbox, last=last, since_ms=since_ms)

    async def mailbox(self, user: str, name: str) -> MailboxStory:
        """See `StoryTeller`."""
        async with self._reader() as reader:
            return await mailbox.story_of(reader, self._coordinator, user, name, self._environment.clock_ms())

    async def mail(self, user: str, name: str, asked: AskedMail) -> MailStory:
        """See `StoryTeller`."""
        async with self._reader() as reader:
            teller = MailStoryTeller(
                reader,
                self._coordinator,
                self._message_ids,
                user=user,
                mailbox=name,
                clock_ms=self._environment.clock_ms(),
            )
            return await teller.tell(asked)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Reader]:
        await acquire(self._room)
        try:
            async with self._store.reader() as reader:
                yield reader
        finally:
            self._room.release()
