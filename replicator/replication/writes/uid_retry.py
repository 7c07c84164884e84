"""Retries requests that meet a merge: finds their messages again by placement (design section 3).

A request names UIDs as of a head. Its master has seen that head, but a merge may have given messages other UIDs since.
No UID then names another message, so no wrong message is changed; the master says which UIDs it has not found. When
this node shows what the reply reports, it also shows the merge: a message that was not found is either expunged, or has
another UID, and is requested again under that. An expunge and the second half of a MOVE leave a message which the merge
has joined with a placement that their client has not seen.

New mail has the same problem in the other direction. A master on another branch may have given it a UID under which
this node has shown another message, so clients must not be told that UID. The merge that brings the mail here settles
its UID.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from protocol.commands import Reply, Saved, Stored
from protocol.values import Dot, UidSet
from replicator.errors import UnavailableError
from replicator.mail.view import Message
from replicator.replication.writes.requests import (
    ChangeRequest,
    CopyRequest,
    ExpungeRequest,
    SaveAllRequest,
    SaveRequest,
    dots_of,
)
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit
from replicator.store.log import placements
from replicator.store.log.placements import MessageTarget
from replicator.store.store import Store
from resync.row import Placement

ROUNDS = 10  # a request can meet one merge for each branch, and clusters hardly ever have more than ten nodes

Submit = Callable[[ChangeRequest], Awaitable[Reply]]
"""A function like `Coordinator.submit`."""

AddRequest = SaveRequest | SaveAllRequest | CopyRequest
Targets = Sequence[Message] | Sequence[MessageTarget]
Named = Callable[[UidSet, Dot | None], ChangeRequest]
"""(UIDs, head) -> the request for these UIDs as of this head; its reply must be Stored."""


@dataclass(frozen=True, slots=True)
class Added:
    """New mail. Clients may be told the UIDs only if `shown`: then this node shows the mail under them.

    `dots`: the entries on which the reply rests. If a save was repeated, one of them is the mailbox's head, which may
    have brought other mail: only that with one of the `guids` is the request's. None for a copy, which clients never
    repeat: all that its entry has brought.
    """

    uids: tuple[int, ...]
    dots: tuple[Dot, ...]
    guids: frozenset[bytes] | None
    shown: bool


class UidRetry:
    """Submission of requests, repeated for messages with new UIDs. Belongs to the event loop.

    `timeout_s` bounds a change with all its rounds.
    """

    def __init__(self, store: Store, submit: Submit, *, timeout_s: float) -> None:
        self._store = store
        self._submit = submit
        self._timeout_s = timeout_s
        self._merges = 0  # applied at this node so far: as long as it stays the same, no UID has changed
        store.listeners.append(self._note_commit)

    async def change(
        self, key: MailboxKey, head: Dot | None, targets: Targets, named: Named, *, only_as_seen: bool
    ) -> None:
        """Submit a change to all of the messages that are not expunged. Raises MailError.

        With `only_as_seen`, a message that stands for a placement which its target does not have is left out.
        """
        left = targets
        with trio.move_on_after(self._timeout_s):
            for _ in range(ROUNDS):
                reply = await self._submit(named(UidSet.of(target.uid for target in left), head))
                assert isinstance(reply, Stored)
                if not reply.refused:
                    return
                missed = [target for target in left if target.uid in reply.refused]
                head, left = await self._find(key, missed, dots_of(reply), only_as_seen=only_as_seen)
                if not left:
                    return
        raise UnavailableError("the folder's branches are being merged; a part of the change was not made; try again")

    async def expunge(self, key: MailboxKey, head: Dot | None, targets: Targets) -> None:
        """Remove these messages, but none that stands for another placement too by now. Raises MailError."""
        await self.change(key, head, targets, partial(ExpungeRequest, key), only_as_seen=True)

    async def expunge_anew(self, key: MailboxKey, targets: Sequence[Message]) -> None:
        """Remove these messages like `expunge`, after the folder got another UIDVALIDITY. Raises MailError."""
        by_guid = {target.guid: target for target in targets}
        with trio.move_on_after(self._timeout_s):
            while True:
                end = self._store.tail.end
                now = await self._store.read(partial(placements.find, mailbox_id=key.mailbox_id, guids=by_guid))
                if now.chain is not None and now.uidvalidity is not None and now.uidvalidity > key.uidvalidity:
                    left = _of_placements(now.by_guid.values(), by_guid)
                    if left:
                        key = MailboxKey(key.user, key.mailbox_id, now.uidvalidity)
                        await self.expunge(key, now.chain.head, left)
                    return
                if end == self._store.tail.end:
                    await self._store.tail.grown()
        raise UnavailableError("the folder has a new UIDVALIDITY that has not reached this node yet; try again")

    async def add(self, operation: AddRequest) -> Added:
        """Submit a request that puts messages into a mailbox. Raises MailError."""
        merges, guids = self._merges, _guids_of(operation)
        reply = await self._submit(operation)
        assert isinstance(reply, Saved)
        if merges == self._merges and all(map(self._shows, reply.dots)):
            return Added(reply.uids, reply.dots, guids, shown=True)
        uids = await self._uids_now(operation, reply)
        return Added(uids or reply.uids, reply.dots, guids, shown=uids is not None)

    async def take_back(self, key: MailboxKey, added: Added) -> None:
        """Remove the messages that `add` has put there, as far as this node knows of them. Raises MailError."""
        brought = await self._store.read(partial(placements.added_by, dots=added.dots))
        targets = [target for target in brought if added.guids is None or target.guid in added.guids]
        if targets:
            await self.expunge(key, targets[-1].dot, targets)

    async def _find(
        self, key: MailboxKey, missed: Iterable[Message | MessageTarget], dots: Sequence[Dot], *, only_as_seen: bool
    ) -> tuple[Dot | None, list[MessageTarget]]:
        """Return the head at this node, and the missed messages that are there under other UIDs.

        Raises UnavailableError if this node has not seen the entries of the reply.
        """
        by_guid = {target.guid: target for target in missed}
        now = await self._store.read(partial(placements.find, mailbox_id=key.mailbox_id, guids=by_guid))
        if now.chain is None or not now.has_seen(dots):
            raise UnavailableError("this node is behind and does not know the result of the change; try again")
        found = list(now.by_guid.values())
        return now.chain.head, _of_placements(found, by_guid) if only_as_seen else found

    async def _uids_now(self, operation: AddRequest, reply: Saved) -> tuple[int, ...] | None:
        """Return the UIDs under which this node shows the added messages; None if it does not show all of them."""
        key = operation.key
        guids: Mapping[int, bytes]
        if isinstance(operation, SaveRequest):
            guids = dict.fromkeys(reply.uids, operation.guid)
        elif isinstance(operation, SaveAllRequest):
            guids = dict(zip(reply.uids, (message.guid for message in operation.messages), strict=True))
        else:
            added = await self._store.read(partial(placements.added_by, dots=reply.dots))
            guids = {target.uid: target.guid for target in added}
        now = await self._store.read(partial(placements.find, mailbox_id=key.mailbox_id, guids=guids.values()))
        uids = tuple(now.by_guid[guid].uid for uid in reply.uids if (guid := guids.get(uid)) in now.by_guid)
        known = len(uids) == len(reply.uids) and now.has_seen(reply.dots)
        return uids if known and now.uidvalidity in {None, key.uidvalidity} else None

    def _shows(self, dot: Dot) -> bool:
        return self._store.context.get(dot.origin, 0) >= dot.seq and not self._store.is_waiting(dot)

    def _note_commit(self, commit: Commit) -> None:
        self._merges += sum(entry.is_merge for entry in commit.applied)


def _guids_of(operation: AddRequest) -> frozenset[bytes] | None:
    """Return the GUIDs that a save gives; None for a copy, whose master may make GUIDs of its own."""
    match operation:
        case SaveRequest(guid=guid):
            return frozenset([guid])
        case SaveAllRequest(messages=messages):
            return frozenset(message.guid for message in messages)
        case CopyRequest():
            return None


def _of_placements(
    found: Iterable[MessageTarget], by_guid: Mapping[bytes, Message | MessageTarget]
) -> list[MessageTarget]:
    """Return the targets that stand for placements in `by_guid` alone, and for no other one of their GUID."""
    return [target for target in found if _placements(target) <= _placements(by_guid[target.guid])]


def _placements(target: Message | MessageTarget) -> set[Placement]:
    return {(target.dot, target.change), *target.also}
