"""COPY, MOVE, STORE and EXPUNGE: changes of messages that a client has seen.

What the client has seen counts, not what a UID names by the time the change is numbered (design section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import trio

from protocol.commands import Stored
from protocol.values import UidSet
from replicator.errors import FolderNotFoundError, MailError
from replicator.mail.lookup import SeenMessages
from replicator.mail.mailstore import CopiedMessages, Folder, StoreResult
from replicator.mail.view import Message
from replicator.replication.writes.quotas import Quotas
from replicator.replication.writes.requests import CopyRequest, StoreRequest
from replicator.replication.writes.uid_retry import Added, Submit, UidRetry
from replicator.store.db.chain import Usage
from replicator.store.db.queries import MailboxKey

AT_ONCE = 2000  # messages of one COPY, STORE or EXPUNGE; a client's command for more takes several, one after the other


class SeenChanges:
    """The changes of seen messages. Belongs to the event loop. `submit` has a request carried out.

    STORE, EXPUNGE and MOVE empty the list of messages as they go on: to free all of them at once takes long.
    """

    def __init__(self, submit: Submit, uid_retry: UidRetry, quotas: Quotas, new_guid: Callable[[], bytes]) -> None:
        self._submit = submit
        self._uid_retry = uid_retry
        self._quotas = quotas
        self._new_guid = new_guid

    async def copy(self, seen: SeenMessages, destination: Folder) -> CopiedMessages:
        """See `MailStore.copy`."""
        async with self._quotas.room(destination.user, await _usage_of(seen.messages)):
            return await self._copy(seen, destination)

    async def move(self, seen: SeenMessages, destination: Folder) -> CopiedMessages:
        """See `MailStore.move`."""
        with self._quotas.moving(destination.user, await _usage_of(seen.messages)):
            copied = await self._copy(seen, destination)
            try:
                await self.expunge(seen)
            except FolderNotFoundError:
                # UIDVALIDITY has risen. The placements that were copied are the ones to remove, whatever their UIDs.
                for some in _batches(seen.messages, AT_ONCE):
                    await self._uid_retry.expunge_anew(MailboxKey.of(seen), some)
            return copied

    async def _copy(self, seen: SeenMessages, destination: Folder) -> CopiedMessages:
        parts: list[Added] = []
        pairs: list[tuple[int, int]] = []
        try:
            for some in _batches(seen.messages, AT_ONCE):
                parts.append(await self._copy_some(seen, some, destination))
                pairs += zip((message.uid for message in some), parts[-1].uids, strict=True)
        except MailError:
            # RFC 3501 section 6.4.7: COPY copies all messages or none.
            for part in parts:
                await self._uid_retry.take_back(MailboxKey.of(destination), part)
            raise
        return CopiedMessages(destination.uidvalidity, tuple(pairs), all(part.shown for part in parts))

    async def _copy_some(self, seen: SeenMessages, some: Sequence[Message], destination: Folder) -> Added:
        return await self._uid_retry.add(
            CopyRequest(
                MailboxKey.of(seen),
                MailboxKey.of(destination),
                UidSet.of(message.uid for message in some),
                tuple(message.guid for message in some),
                tuple(self._new_guid() for _ in some),
            )
        )

    async def store_flags(
        self, seen: SeenMessages, added: frozenset[str], removed: frozenset[str], unchanged_since: int | None
    ) -> StoreResult:
        """See `MailStore.store_flags`."""
        if not added and not removed:
            return StoreResult(UidSet.of_ranges([]))
        key, refused = MailboxKey.of(seen), list[tuple[int, int]]()
        change = partial(
            StoreRequest,
            key,
            added=tuple(sorted(added)),
            removed=tuple(sorted(removed)),
            unchanged_since=unchanged_since,
        )
        for some in _used_up(seen.messages, AT_ONCE):
            if unchanged_since is None:
                await self._uid_retry.change(key, seen.head, some, change, only_as_seen=False)
                continue
            # A message to which a merge has given another UID counts as changed since.
            reply = await self._submit(change(UidSet.of(message.uid for message in some), seen.head))
            assert isinstance(reply, Stored)
            refused += reply.refused.ranges
        return StoreResult(UidSet.of_ranges(refused))

    async def expunge(self, seen: SeenMessages) -> None:
        """See `MailStore.expunge`."""
        key = MailboxKey.of(seen)
        for some in _used_up(seen.messages, AT_ONCE):
            await self._uid_retry.expunge(key, seen.head, some)


async def _usage_of(messages: Sequence[Message]) -> Usage:
    """Return the number and the total size of the messages; pause where they are many."""
    size_bytes = 0
    for some in _batches(messages, AT_ONCE):
        size_bytes += sum(message.size_bytes for message in some)
        await trio.lowlevel.checkpoint()
    return Usage(len(messages), size_bytes)


def _batches(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    return (messages[start : start + size] for start in range(0, len(messages), size))


def _used_up(messages: list[Message], size: int) -> Iterator[Sequence[Message]]:
    """Yield the messages in parts, and remove each part from the list after it."""
    while messages:
        yield messages[:size]
        del messages[:size]
