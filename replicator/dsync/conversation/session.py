"""A whole sync, seen from the remote side: hello, what is wanted, folders, mailboxes, end."""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace

from replicator.dsync.conversation.mailbox_sync import Direction, MailboxSync, states_by_id
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.replica import Replica, ReplicaMailbox
from replicator.dsync.rules.selection import check_options, selected
from replicator.dsync.rules.tree import Adopt, Delete, Step, Tree, merging_steps, replacing_steps
from replicator.dsync.wire.items import Deletions, Finish, Handshake, Mailbox, MailboxState, TreeNode
from replicator.dsync.wire.reader import Mark
from replicator.errors import MailError
from replicator.runtime.environment import run_in_thread
from resync.state import RAISED_MODSEQ_MAX, why_not_raise

log = logging.getLogger(__name__)

FOLDERS_MAX = 100_000
TEMPORARY = 1
"""Dovecot's number of errors that are gone later (MAIL_ERROR_TEMP)."""

NOT_POSSIBLE = 3
"""Dovecot's number of errors that stay (MAIL_ERROR_NOTPOSSIBLE)."""

SETTLED_MAX = 100_000
"""Mailboxes of which it is remembered that they are equal: 30 MB."""

TOLD_MAX = 10
TOLD_CHARACTERS_MAX = 300
"""Folders of one sync that the log names as different, and the length of what it says of each."""

STATEFUL = "s"
CHANGED = "c"


class Settled:
    """Mailboxes of which a sync has shown that both sides are equal, and the numbers that both sides had then.

    Equal numbers alone do not show it: both sides may have got a mail each. Kept in memory: it saves work, no more.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, bytes], tuple[Mailbox, Mailbox]] = OrderedDict()

    def has(self, master: str, own: Mailbox, theirs: Mailbox) -> bool:
        """Return True if nothing has changed since the mailbox was equal on both sides, and the numbers are equal."""
        known = self._numbers.get((master, own.mailbox_id))
        return known is not None and own.equals(theirs) and known[0].equals(own) and known[1].equals(theirs)

    def note(self, master: str, own: Mailbox, theirs: Mailbox) -> None:
        """Note that a mailbox was found equal."""
        own = replace(own, first_recent_uid=theirs.first_recent_uid)
        self._numbers[master, own.mailbox_id] = own, theirs
        self._numbers.move_to_end((master, own.mailbox_id))
        if len(self._numbers) > SETTLED_MAX:
            self._numbers.popitem(last=False)


class Session:
    """The conversation with one master about one user's mail. `different`: folders that could not be made equal."""

    def __init__(self, peer: Peer, replica: Replica, hostname: str, settled: Settled, address: str) -> None:
        """`hostname`: this side's. The side with the smaller one locks the user, so it is one that is greater.

        `address`: the master's, as two masters may have one name.
        """
        self._peer = peer
        self._replica = replica
        self._hostname = hostname
        self._address = address
        self._settled = settled
        self._wish = Handshake("")
        self._states = states_by_id(())
        self._full_resync = False
        self._failure: DsyncError | MailError | None = None  # with which the sync is to end
        self._owes_numbers = False
        self.different = 0
        self._adoptions: dict[bytes, Adopt] = {}  # by ids of the master's; a Dovecot with Maildirs takes ours instead

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
        if self._wish.sync_type == STATEFUL:
            self._states = states_by_id(await self._peer.all(MailboxState, FOLDERS_MAX))
        try:
            check_options(self._wish)
        except DsyncError as error:
            self._failure = error
            await self._pass_over_folders()
        else:
            await self._sync_folders()
        while (event := await self._peer.next()) is not Mark.END_OF_LIST:
            if not isinstance(event, Mailbox):
                raise DsyncError("the peer sent something else than a mailbox's numbers")
            if self._failure is None:
                await self._try_mailbox(event)
            else:
                await self._answer(Mailbox.passed_over(event.mailbox_id))
        if self._failure is not None:
            raise self._failure
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
        await self._peer.all(TreeNode, FOLDERS_MAX)
        await self._peer.one(Deletions)
        await self._peer.end_list()
        await self._peer.send(Deletions())

    async def _sync_folders(self) -> None:
        """Take over the master's folders, then tell it this side's, with all that had to be created on the way."""
        nodes = await self._peer.all(TreeNode, FOLDERS_MAX)
        deletions = await self._peer.one(Deletions)
        peer = await run_in_thread(lambda: Tree({node.name: node for node in nodes}, deletions))
        if self._direction is not Direction.THERE:
            own = await self._tree(peer)
            steps = replacing_steps if self._direction is Direction.BACKUP_HERE else merging_steps
            for step in await run_in_thread(lambda: [*steps(own, peer)]):
                if isinstance(step, Adopt):
                    self._adoptions[step.mailbox_id] = step
                elif isinstance(step, Delete) and self._direction is not Direction.BACKUP_HERE:
                    common_uid = self._replica.common_uid(step.mailbox_id, self._master)
                    await self._carry_out(replace(step, common_uid=common_uid))
                else:
                    await self._carry_out(step)
        told = await self._tree(peer)
        for name in await run_in_thread(lambda: sorted(told.nodes)):
            await self._peer.send(told.nodes[name])
        await self._peer.end_list()
        await self._peer.send(told.deletions)

    async def _tree(self, peer: Tree) -> Tree:
        tree = await self._replica.tree()
        return await run_in_thread(lambda: selected(tree, self._wish, peer.deletions.separator))

    async def _carry_out(self, step: Step) -> None:
        try:
            await self._replica.carry_out(step)
        except MailError as error:  # the folder's mail is not synced then, and the next sync tries again
            self._stays_different(str(step), str(error))

    def _stays_different(self, folder: str, why: str) -> None:
        """Count a folder that this sync leaves as it is, and log the first few."""
        self.different += 1
        if self.different <= TOLD_MAX:
            log.warning("a folder stays different: %s: %s", folder[:TOLD_CHARACTERS_MAX], why[:TOLD_CHARACTERS_MAX])

    async def _try_mailbox(self, theirs: Mailbox) -> None:
        """Sync a mailbox. An error before this side has told its numbers, which are due, waits for the end."""
        self._owes_numbers = True
        try:
            await self._sync_mailbox(theirs)
        except MailError as error:
            if not self._owes_numbers:
                raise
            self._failure = error
            await self._answer(Mailbox.passed_over(theirs.mailbox_id))

    async def _answer(self, own: Mailbox) -> None:
        self._owes_numbers = False
        await self._peer.send(own)

    async def _sync_mailbox(self, theirs: Mailbox) -> None:
        state = self._states.get(theirs.mailbox_id)
        if not (theirs.have_guids and theirs.have_save_guids):
            raise DsyncError("the master's storage keeps no GUIDs of mails, so none can be told from another")
        if theirs.mailbox_id in self._adoptions:
            await self._carry_out(self._adoptions[theirs.mailbox_id])
        async with self._replica.mailbox(theirs.mailbox_id, self._master) as box:
            own = await _numbers(box, theirs) if box is not None else None
            if box is None or own is None or _is_stale(own, theirs, state) or await _needs_all(box, state):
                self._full_resync = True
                await self._answer(Mailbox.lacking(theirs.mailbox_id))
                return
            if (wrong := _out_of_range(own, theirs)) is not None:
                self._stays_different(theirs.mailbox_id.hex(), wrong)
                await self._answer(Mailbox.passed_over(theirs.mailbox_id))
                return
            is_settled = (
                self._wish.sync_type == CHANGED
                and self._settled.has(self._master, own, theirs)
                and all(one.modseq < own.highestmodseq for one in await box.attributes())  # which numbers do not show
            )
            if not is_settled and own.equals(theirs):  # which does not show that mails are equal, so make a difference
                own = replace(own, first_recent_uid=0)
            await self._answer(own)
            if is_settled:
                return
            sync = MailboxSync(self._peer, box, own, theirs, _in_force(state))
            has_changed = await sync.run(self._direction)
            self._failure = sync.failure
            if not has_changed and sync.failure is None:
                self._settled.note(self._master, own, theirs)


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


def _is_stale(own: Mailbox, theirs: Mailbox, state: MailboxState | None) -> bool:
    """Return True if this side is older than the state that the master remembers, or is another mailbox."""
    if state is None or state.last_common_uid == 0:
        return False
    return (
        own.uidvalidity != theirs.uidvalidity
        or own.uidnext < state.last_common_uid
        or own.highestmodseq < state.last_common_modseq
    )


async def _needs_all(box: ReplicaMailbox, state: MailboxState | None) -> bool:
    """Return True if all mails must be compared, since changes since the state do not tell enough."""
    known = _in_force(state)
    return known is not None and not await box.can_tell_since(known.last_common_uid, known.last_common_modseq)


def _out_of_range(own: Mailbox, theirs: Mailbox) -> str | None:
    """Return why this side cannot take over the master's numbers; None if it can."""
    if why_not_raise(max(theirs.uidnext, own.uidnext), own.uidnext) is not None:
        return f"its UIDNEXT, {theirs.uidnext}, leaves too few UIDs"
    if theirs.highestmodseq > max(own.highestmodseq, RAISED_MODSEQ_MAX):
        return f"its HIGHESTMODSEQ, {theirs.highestmodseq}, is above {RAISED_MODSEQ_MAX}"
    return None


def _in_force(state: MailboxState | None) -> MailboxState | None:
    """Return the state that limits what is compared; None if it says nothing, as of a mailbox that was skipped."""
    return state if state is not None and (state.last_common_uid or state.last_common_modseq) else None
