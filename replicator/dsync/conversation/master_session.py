"""A whole sync that this side begins: hello, states of earlier syncs, folders, mailboxes, and the end."""

from __future__ import annotations

import logging
from dataclasses import replace

from replicator.dsync.conversation.direction import Direction
from replicator.dsync.conversation.folder_sync import FolderSync
from replicator.dsync.conversation.mailbox_sync import MailboxSync, states_by_id
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import Replica, ReplicaMailbox
from replicator.dsync.rules.numbers import in_force, out_of_range
from replicator.dsync.rules.tree import Tree
from replicator.dsync.wire.items import FULL, STATEFUL, Finish, Handshake, Mailbox, MailboxState, TreeNode
from replicator.errors import MailError

log = logging.getLogger(__name__)

LOCK_S = 30
"""Seconds for which the peer may wait for its locks of the user and of mailboxes, as its own replicator does."""


class MasterSession:
    """The conversation with one remote side about one user's mail.

    `again`: something was in the way that the next sync can do, such as a change by somebody else meanwhile.
    """

    def __init__(self, peer: Peer, replica: Replica, hostname: str, address: str) -> None:
        """`hostname`: this side's, as for `RemoteSession`. `address`: the peer's."""
        self._peer = peer
        self._replica = replica
        self._hostname = hostname
        self._address = address
        self._folders = FolderSync(peer, replica, Handshake(hostname), Direction.BOTH)
        self._failure: DsyncError | MailError | None = None
        self._name = ""  # under which things are remembered of the peer
        self.again = False

    @property
    def different(self) -> int:
        """Number of folders that could not be made equal."""
        return self._folders.different

    async def run(self, *, everywhere: bool, full: bool) -> None:
        """Sync. Raises PeerGoneError, DsyncError, MailError.

        `everywhere`: also look at mailboxes in which nothing has changed here. `full`: at all mails, whatever earlier
        syncs have found equal.
        """
        await self._peer.greet()
        await self._peer.send(Handshake(self._hostname, FULL if full else STATEFUL, lock_s=LOCK_S))
        self._name = f"{(await self._peer.one(Handshake)).hostname} {self._address}"
        states = [] if full else await self._replica.states(self._name)
        if not full:
            await self._peer.send_list(states)
        by_id = states_by_id(states)
        own, theirs = await self._folders.run(self._name)
        unchanged = by_id.keys() & await self._replica.unchanged(self._name)
        known = theirs.boxes()
        for mailbox_id, node in own.boxes().items():
            other = known.get(mailbox_id) or theirs.nodes.get(node.name)
            if everywhere or mailbox_id not in unchanged or other is None or other.uidnext != node.uidnext:
                await self._sync_named(node, mailbox_id, other, theirs, by_id.get(mailbox_id))
            if self._failure is not None:
                break
        await self._peer.end_list()
        self._end(await self._peer.one(Finish))

    def _end(self, finish: Finish) -> None:
        """Take in how the peer has fared."""
        if finish.full_resync:
            self._replica.forget(self._name)
            self.again = True
        if self._failure is not None:
            raise self._failure
        if finish.error is not None or finish.mail_error is not None:
            raise DsyncError(f"the peer has failed: {finish.error or 'it does not say why'}")

    async def _sync_named(
        self, node: TreeNode, mailbox_id: bytes, other: TreeNode | None, theirs: Tree, state: MailboxState | None
    ) -> None:
        """Sync a mailbox. Where the peer has kept another id for that name, this side takes it over."""
        if await self._sync_mailbox(mailbox_id, other, state):
            return
        rival = theirs.nodes.get(node.name)
        if rival is not None and rival.mailbox_id is not None and self._folders.adopts(rival.mailbox_id):
            await self._folders.adopt(rival.mailbox_id)
            if await self._sync_mailbox(rival.mailbox_id, rival, None):
                return
        self._replica.forget(self._name, mailbox_id)
        self.again = True

    async def _sync_mailbox(self, mailbox_id: bytes, other: TreeNode | None, state: MailboxState | None) -> bool:
        """Sync a mailbox, and return False if the peer does not have it, or has an older state than is remembered.

        `other`: what the peer tells of the folder.
        """
        if (why := self._replica.held_up(mailbox_id)) is not None:
            self._folders.stays_different(mailbox_id, why)
            return True
        async with self._replica.mailbox(mailbox_id, self._name) as box:
            if box is None:  # it has just been deleted
                return True
            known = in_force(state)
            if known is not None and not await box.can_tell_since(known.last_common_uid, known.last_common_modseq):
                return False  # branches of the mailbox have joined since the states were told
            own = await _numbers(box, other)
            if other is not None and (wrong := out_of_range(own, replace(own, uidnext=other.uidnext))) is not None:
                self._folders.stays_different(mailbox_id, wrong)
                return True
            await self._peer.send(own)
            theirs = await self._peer.one(Mailbox)
            if theirs.mailbox_id != mailbox_id:
                raise DsyncError("the peer answered with the numbers of another mailbox")
            if theirs.ignored:
                self._folders.stays_different(mailbox_id, "the peer passes it over")
                return True
            if theirs.lost:
                return False
            if not (theirs.have_guids and theirs.have_save_guids):
                raise DsyncError("the peer's storage keeps no GUIDs of mails, so none can be told from another")
            if (wrong := out_of_range(own, theirs)) is not None:
                raise DsyncError(f"the peer's mailbox {mailbox_id.hex()} cannot be synced: {wrong}")
            sync = MailboxSync(self._peer, box, own, theirs, in_force(state), is_master=True)
            await sync.run(Direction.BOTH)
            self._failure = sync.failure
            self.again = self.again or sync.is_overtaken
            return True


async def _numbers(box: ReplicaMailbox, other: TreeNode | None) -> Mailbox:
    """Return the numbers to tell. Of two UIDVALIDITYs that of the side with more mails counts: it is to be this side's.

    Which mails are recent is the peer's own affair.
    """
    own = await box.numbers()
    if other is not None and other.uidvalidity not in {0, own.uidvalidity}:
        own = replace(own, messages=max(own.messages, other.uidnext))
    return replace(own, first_recent_uid=1)
