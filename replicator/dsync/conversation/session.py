"""A whole sync, seen from the remote side: hello, what is wanted, folders, mailboxes, end."""

from __future__ import annotations

import logging

from replicator.dsync.conversation.mailbox_sync import MailboxSync, states_by_id
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import Replica
from replicator.dsync.rules.tree import Tree, merging_steps, replacing_steps
from replicator.dsync.wire.items import Deletions, Finish, Handshake, Mailbox, MailboxState, TreeNode
from replicator.dsync.wire.reader import Mark
from replicator.errors import MailError

log = logging.getLogger(__name__)

FOLDERS_MAX = 100_000
TEMPORARY = 1
"""Dovecot's number of errors that are gone later (MAIL_ERROR_TEMP)."""

NOT_POSSIBLE = 3
"""Dovecot's number of errors that stay (MAIL_ERROR_NOTPOSSIBLE)."""

STATEFUL = "s"
CHANGED = "c"


class Session:
    """The conversation with one master about one user's mail."""

    def __init__(self, peer: Peer, replica: Replica, hostname: str) -> None:
        """`hostname`: this side's. The side with the smaller one locks the user, so it is one that is greater."""
        self._peer = peer
        self._replica = replica
        self._hostname = hostname
        self._wish = Handshake("")
        self._states = states_by_id(())
        self._full_resync = False

    async def run(self) -> None:
        """Sync, and tell the master how that went. Raises PeerGoneError, and DsyncError that the master was told of."""
        try:
            await self._run()
        except DsyncError as error:
            await self._finish(Finish(str(error), NOT_POSSIBLE))
            raise
        except MailError as error:
            await self._finish(Finish(str(error), TEMPORARY))
            raise

    async def _run(self) -> None:
        await self._peer.greet()
        await self._peer.send(Handshake(self._hostname))
        self._wish = await self._peer.one(Handshake)
        if self._wish.filters:
            raise DsyncError("this side syncs all mails of a mailbox: leave out the options -t, -e, -I and -O")
        if self._wish.sync_type == STATEFUL:
            self._states = states_by_id(await self._peer.all(MailboxState, FOLDERS_MAX))
        await self._sync_folders()
        while (event := await self._peer.next()) is not Mark.END_OF_LIST:
            if not isinstance(event, Mailbox):
                raise DsyncError("the peer sent something else than a mailbox's numbers")
            await self._sync_mailbox(event)
        await self._finish(Finish(full_resync=self._full_resync))

    async def _finish(self, end: Finish) -> None:
        await self._peer.send(end)
        await self._peer.flush()

    async def _sync_folders(self) -> None:
        own = await self._replica.tree()
        for node in sorted(own.nodes.values(), key=lambda node: node.name):
            await self._peer.send(node)
        await self._peer.end_list()
        await self._peer.send(own.deletions)
        nodes = await self._peer.all(TreeNode, FOLDERS_MAX)
        peer = Tree({node.name: node for node in nodes}, await self._peer.one(Deletions))
        if self._wish.backup_send:
            return
        replaces = self._wish.backup_recv and not self._wish.no_backup_overwrite
        for step in (replacing_steps if replaces else merging_steps)(own, peer):
            try:
                await self._replica.carry_out(step)
            except MailError as error:  # the folder's mail is not synced then, and the next sync tries again
                log.warning("a folder stays different: %s: %s", step, error)

    async def _sync_mailbox(self, theirs: Mailbox) -> None:
        state = self._states.get(theirs.mailbox_id)
        async with self._replica.mailbox(theirs.mailbox_id) as box:
            own = await box.numbers() if box is not None else None
            if box is None or own is None or _is_stale(own, theirs, state):
                self._full_resync = True
                await self._peer.send(Mailbox.lacking(theirs.mailbox_id))
                return
            await self._peer.send(own)
            if self._wish.sync_type == CHANGED and own.equals(theirs):
                return
            await MailboxSync(self._peer, box, own, theirs, _in_force(state)).run()


def _is_stale(own: Mailbox, theirs: Mailbox, state: MailboxState | None) -> bool:
    """Return True if this side is older than the state that the master remembers, or is another mailbox."""
    if own.uidvalidity != theirs.uidvalidity:
        return True
    return (
        state is not None
        and state.last_common_uid > 0
        and (own.uidnext < state.last_common_uid or own.highestmodseq < state.last_common_modseq)
    )


def _in_force(state: MailboxState | None) -> MailboxState | None:
    """Return the state that limits what is compared; None if it says nothing, as of a mailbox that was skipped."""
    return state if state is not None and (state.last_common_uid or state.last_common_modseq) else None
