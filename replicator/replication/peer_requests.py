"""Requests of peers: each is handed to the part of this node that can answer it, and errors become refusals."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from protocol.commands import (
    Command,
    FetchBodies,
    FetchCheckpoints,
    FetchGuid,
    FetchHash,
    FetchPart,
    FetchUid,
    MasterMove,
    Mbox,
    Offer,
    Ranges,
    RefusalCode,
    Refused,
    Reply,
    Rows,
    Save,
    SaveAll,
    Saved,
    SyncEnd,
    SyncMailbox,
    SyncNode,
    Text,
    Who,
)
from replicator.errors import DatabaseFailedError, DiskFullError, MailError
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.checkpoints import peer_checkpoints
from replicator.replication.convergence import sync_server
from replicator.replication.convergence.body_conflicts import BodyConflicts
from replicator.replication.links.entry_codec import refusal
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.elections import Elections
from replicator.replication.mastership.handover import Handover
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.writes import head_exchange
from replicator.replication.writes.prestage import Prestage
from replicator.replication.writes.requests import ChangeRequest, from_command, save_all_from, saves_from, transfer_s
from replicator.replication.writes.router import NotMasterError, Router
from replicator.runtime.environment import ThreadRunner
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store

log = logging.getLogger(__name__)


class PeerRequests:
    """Answers requests that come over links. Belongs to the event loop.

    `lacks`: as `ForkScheduler.lacks`; `new_id` makes the ids of new folders.
    """

    def __init__(
        self,
        store: Store,
        elections: Elections,
        mastership: Mastership,
        *,
        handover: Handover,
        bodies: Bodies,
        body_conflicts: BodyConflicts,
        prestage: Prestage,
        router: Router,
        lacks: Callable[[MailboxKey], None],
        new_id: Callable[[], bytes],
        run_in_thread: ThreadRunner,
    ) -> None:
        self._store = store
        self._sid = mastership.sid
        self._elections = elections
        self._mastership = mastership
        self._handover = handover
        self._bodies = bodies
        self._body_conflicts = body_conflicts
        self._prestage = prestage
        self._router = router
        self._lacks = lacks
        self._new_id = new_id
        self._run_in_thread = run_in_thread
        self._sync_server = sync_server.SyncServer(store)

    async def answer(self, link: PeerLink, command: Command) -> Reply:
        """Carry out a request, and return the reply to it: a refusal if it fails. Raises ProtocolError."""
        try:
            extra_s = transfer_s(command.message) if isinstance(command, Save | Offer) else 0.0
            with trio.move_on_after(timing.REQUEST_TIMEOUT_S + extra_s):
                return await self._answer(link, command)
            return Refused(RefusalCode.UNAVAILABLE, "the request was not completed in time")
        except NotMasterError:
            return Refused(RefusalCode.NOT_MASTER, f"{self._sid} would send the request back; ask the root again")
        except DatabaseFailedError as error:
            return Refused(RefusalCode.UNAVAILABLE, f"at {self._sid}: {error}")
        except MailError as error:
            return refusal(error)
        except LinkDownError as error:
            return Refused(RefusalCode.UNAVAILABLE, f"the link to {error} broke")

    async def _answer(self, link: PeerLink, command: Command) -> Reply:
        match command:
            case Who():
                return await self._elections.answer_who(command)
            case MasterMove():
                return await self._handover.move(link.key_of(command.mailbox), command, link)
            case Mbox():
                if command.texts and command.destination in {None, self._sid}:
                    await self._body_conflicts.put_right(link.key_of(command.number))
                return await head_exchange.compare(self._store, self._mastership, link, command, self._lacks)
            case SyncNode() | SyncMailbox() | Ranges() | Rows() | SyncEnd():
                return await sync_server.answer(self._sync_server, self._mastership, link, command)
            case FetchCheckpoints():
                return await peer_checkpoints.answer(self._store, command)
            case FetchHash() | FetchBodies() | FetchGuid() | FetchUid() | FetchPart():
                return await self._bodies.answer(link, command)
            case Offer():
                return await self._prestage.answer(link, command)
            case SaveAll():
                return await self._save_all(link, command)
            case Save():
                return await self._save(link, command)
            case _:
                return await self._perform(link, from_command(link, command, self._new_id))

    async def _save(self, link: PeerLink, save: Save) -> Reply:
        async with self._taken(link, save) as taken:
            if not taken:
                return Refused(RefusalCode.UNAVAILABLE, "not all parts of the message arrived; try again")
            if taken[0].content_hash != save.message.content_hash:
                return _garbled(link)
            return await self._perform(link, saves_from(link, save, taken[0]))

    async def _save_all(self, link: PeerLink, save_all: SaveAll) -> Reply:
        texts = [message.message for message in save_all.messages]
        bodies = await self._run_in_thread(lambda: [StoredBody.of(text.octets) for text in texts])
        if [body.content_hash for body in bodies] != [text.content_hash for text in texts]:
            return _garbled(link)
        return await self._perform(link, [save_all_from(link, save_all, bodies)])

    @asynccontextmanager
    async def _taken(self, link: PeerLink, save: Save) -> AsyncIterator[list[StoredBody]]:
        """Yield the message of a SAVE with its attachments; an empty list if some did not come.

        If this node has no room for them, it resigns as master and raises NotMasterError (see `Router.perform`).
        """
        message = save.message.octets if isinstance(save.message, Text) else save.message
        try:
            async with self._bodies.obtain([message], link) as taken:
                yield taken
        except DiskFullError:
            for number in save.mailboxes:
                await self._handover.resign(link.key_of(number), link.sid)
            raise NotMasterError from None

    async def _perform(self, link: PeerLink, operations: Sequence[ChangeRequest]) -> Reply:
        if not operations:
            return Refused(RefusalCode.UNSUPPORTED, "this version does not support the request")
        replies = [await self._router.perform(operation, link) for operation in operations]
        return replies[0] if len(replies) == 1 else _joined(replies)


def _garbled(link: PeerLink) -> Refused:
    log.warning("refusing a request of %s: its message does not match its hash", link.sid)
    return Refused(RefusalCode.GARBLED, "the message does not match its hash; try again")


def _joined(replies: list[Reply]) -> Reply:
    saved = [reply for reply in replies if isinstance(reply, Saved)]
    return Saved(tuple(uid for one in saved for uid in one.uids), tuple(dot for one in saved for dot in one.dots))
