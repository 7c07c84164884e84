"""A whole sync that the peer has begun: hello, what it wants, folders, mailboxes, end."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace

from replicator.dsync.conversation.direction import Direction
from replicator.dsync.conversation.folder_sync import FOLDERS_MAX, FolderSync
from replicator.dsync.conversation.mailbox_sync import MailboxSync, states_by_id
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.replica import Replica, ReplicaMailbox
from replicator.dsync.rules.numbers import in_force, is_stale, out_of_range
from replicator.dsync.rules.selection import check_options
from replicator.dsync.wire.items import CHANGED, STATEFUL, Finish, Handshake, Mailbox, MailboxState
from replicator.dsync.wire.reader import Mark
from replicator.errors import ContentUnavailableError, MailError

TEMPORARY = 1
"""Dovecot's number of errors that are gone later (MAIL_ERROR_TEMP)."""

NOT_POSSIBLE = 3
"""Dovecot's number of errors that stay (MAIL_ERROR_NOTPOSSIBLE)."""

SETTLED_MAX = 100_000
"""Mailboxes of which it is remembered that they are equal: 30 MB."""


class Settled:
    """Mailboxes of which a sync has shown that both sides are equal, and the numbers that both sides had then.

    Equal numbers alone do not show it: both sides may have got a mail each. Kept in memory: it saves work, no more.
    Each is that of one `user`, as users' mailboxes may have the same id: those of copied accounts do.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, str, bytes], tuple[Mailbox, Mailbox]] = OrderedDict()

    def has(self, user: str, master: str, own: Mailbox, theirs: Mailbox) -> bool:
        """Return True if nothing has changed since the mailbox was equal on both sides, and the numbers are equal."""
        known = self._numbers.get((user, master, own.mailbox_id))
        return known is not None and own.equals(theirs) and known[0].equals(own) and known[1].equals(theirs)

    def note(self, user: str, master: str, own: Mailbox, theirs: Mailbox) -> None:
        """Note that a mailbox was found equal."""
        own = replace(own, first_recent_uid=theirs.first_recent_uid)
        self._numbers[user, master, own.mailbox_id] = own, theirs
        self._numbers.move_to_end((user, master, own.mailbox_id))
        if len(self._numbers) > SETTLED_MAX:
            self._numbers.popitem(last=False)


class RemoteSession:
    """The conversation with one master about one user's mail."""

    def __init__(
        self, peer: Peer, replica: Replica, hostname: str, settled: Settled, *, user: str, address: str
    ) -> None:
        """`hostname`: this side's. The side with the smaller one locks the user, so it is one that is greater.

        `address`: the master's, as two masters may have one name.
        """
        self._peer = peer
        self._user = user
        self._replica = replica
        self._hostname = hostname
        self._address = address
        self._settled = settled
        self._wish = Handshake("")
        self._folders = FolderSync(peer, replica, self._wish, Direction.BOTH)
        self._states = states_by_id(())
        self._full_resync = False
        self._failure: DsyncError | MailError | None = None  # with which the sync is to end
        self._held_up: ContentUnavailableError | None = None  # which is told after all other mailboxes are synced
        self._owes_numbers = False

    @property
    def different(self) -> int:
        """Number of folders that could not be made equal."""
        return self._folders.different

    async def run(self) -> None:
        """Sync, and tell the master how that went. Raises PeerGoneError, DsyncError, MailError.

        The master logs an error in words if it comes after the last mailbox; elsewhere it only knows that there is one.
        """
        try:
            await self._run()
        except (DsyncError, MailError) as error:
            with suppress(PeerGoneError):
                await self._finish(Finish(str(error), NOT_POSSIBLE if isinstance(error, DsyncError) else TEMPORARY))
            raise

    async def _run(self) -> None:
        await self._peer.greet()
        await self._peer.send(Handshake(self._hostname))
        self._wish = await self._peer.one(Handshake)
        self._folders = FolderSync(self._peer, self._replica, self._wish, self._direction)
        if self._wish.sync_type == STATEFUL:
            self._states = states_by_id(await self._peer.all(MailboxState, FOLDERS_MAX))
        try:
            check_options(self._wish)
        except DsyncError as error:
            self._failure = error
            await self._pass_over_folders()
        else:
            await self._folders.run(self._master)
        while (event := await self._peer.next()) is not Mark.END_OF_LIST:
            if not isinstance(event, Mailbox):
                raise DsyncError("the peer sent something else than a mailbox's numbers")
            if self._failure is None:
                await self._try_mailbox(event)
            else:
                await self._answer(Mailbox.passed_over(event.mailbox_id))
        if (failure := self._failure or self._held_up) is not None:
            raise failure
        await self._finish(Finish(full_resync=self._full_resync))

    @property
    def _direction(self) -> Direction:
        if self._wish.backup_send:
            return Direction.THERE
        if self._wish.backup_recv:
            return Direction.HERE if self._wish.no_backup_overwrite else Direction.BACKUP_HERE
        return Direction.BOTH

    @property
    def _master(self) -> str:
        """The name under which things are remembered of the master."""
        return f"{self._wish.hostname} {self._address}"

    async def _finish(self, end: Finish) -> None:
        await self._peer.send(end)
        await self._peer.flush()

    async def _pass_over_folders(self) -> None:
        """Go on without folders to the end of the mailboxes, where the master understands an error.

        A master that takes over this side's tree would delete its own folders: it learns of no error, but stops.
        """
        if self._failure is not None and self._wish.backup_send and not self._wish.no_backup_overwrite:
            raise self._failure
        await self._folders.pass_over()

    async def _try_mailbox(self, theirs: Mailbox) -> None:
        """Sync a mailbox. An error before this side has told its numbers, which are due, waits for the end."""
        self._owes_numbers = True
        try:
            await self._sync_mailbox(theirs)
        except (DsyncError, MailError) as error:
            if not self._owes_numbers:
                raise
            self._failure = error
            await self._answer(Mailbox.passed_over(theirs.mailbox_id))

    async def _answer(self, own: Mailbox) -> None:
        self._owes_numbers = False
        await self._peer.send(own)

    async def _pass_over(self, theirs: Mailbox, why: str) -> None:
        self._folders.stays_different(theirs.mailbox_id, why)
        await self._answer(Mailbox.passed_over(theirs.mailbox_id))

    async def _sync_mailbox(self, theirs: Mailbox) -> None:
        state = self._states.get(theirs.mailbox_id)
        if not (theirs.have_guids and theirs.have_save_guids):
            raise DsyncError("the master's storage keeps no GUIDs of mails, so none can be told from another")
        await self._folders.adopt(theirs.mailbox_id)
        if (why := self._replica.held_up(theirs.mailbox_id)) is not None:
            self._held_up = ContentUnavailableError(why)
            await self._pass_over(theirs, why)
            return
        async with self._replica.mailbox(theirs.mailbox_id, self._master) as box:
            own = await _numbers(box, theirs) if box is not None else None
            goes_on = theirs.mailbox_id == self._folders.left  # as if it were lacking, so that the master syncs again
            if box is None or own is None or goes_on or is_stale(own, theirs, state) or await _needs_all(box, state):
                self._full_resync = True
                await self._answer(Mailbox.lacking(theirs.mailbox_id))
                return
            if (wrong := out_of_range(own, theirs)) is not None:
                await self._pass_over(theirs, wrong)
                return
            is_settled = (
                self._wish.sync_type == CHANGED
                and self._settled.has(self._user, self._master, own, theirs)
                and all(one.modseq < own.highestmodseq for one in await box.attributes())  # which numbers do not show
            )
            if not is_settled and own.equals(theirs):  # which does not show that mails are equal, so make a difference
                own = replace(own, first_recent_uid=0)
            await self._answer(own)
            if is_settled:
                return
            sync = MailboxSync(self._peer, box, own, theirs, in_force(state))
            has_changed = await sync.run(self._direction)
            self._failure = sync.failure
            if not has_changed and sync.failure is None:
                self._settled.note(self._user, self._master, own, theirs)


async def _numbers(box: ReplicaMailbox, theirs: Mailbox) -> Mailbox:
    """Return the numbers to tell, after taking over the UIDVALIDITY of the master's for a mailbox that is still empty.

    Else the master is to take over this side's. It does if this side has more mails, so their number is raised: it
    serves nothing else then. The lowest UID that is recent is the master's own, which no other server needs to know.
    """
    own = await box.numbers()
    if own.uidvalidity != theirs.uidvalidity and own.uidnext == 1:
        await box.take_uidvalidity(theirs.uidvalidity)
        own = await box.numbers()
    if own.uidvalidity != theirs.uidvalidity:
        own = replace(own, messages=max(own.messages, theirs.messages + 1))
    return replace(own, first_recent_uid=min(theirs.first_recent_uid, own.uidnext))


async def _needs_all(box: ReplicaMailbox, state: MailboxState | None) -> bool:
    """Return True if all mails must be compared, since changes since the state do not tell enough."""
    known = in_force(state)
    return known is not None and not await box.can_tell_since(known.last_common_uid, known.last_common_modseq)
