"""Folders in both directions. This side waits for the peer's, and tells what has become of both."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from replicator.dsync.conversation.direction import Direction
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.replica import Replica
from replicator.dsync.rules.given_names import as_users_named, given_names
from replicator.dsync.rules.moves import Name
from replicator.dsync.rules.selection import selected
from replicator.dsync.rules.tree import (
    Adopt,
    Create,
    Delete,
    Leave,
    Rename,
    Step,
    Subscribe,
    Tree,
    deleted_here,
    merging_steps,
    renamed_last,
    replacing_steps,
    uidvalidities_to_take,
    without_deletions,
)
from replicator.dsync.wire.items import Deletions, Handshake, TreeNode
from replicator.errors import MailError
from replicator.runtime.environment import run_in_thread
from replicator.runtime.logs.fields import LogFields

log = logging.getLogger(__name__)

FOLDERS_MAX = 100_000

TOLD_MAX = 10
TOLD_CHARACTERS_MAX = 120
"""Folders of one sync that the log names as different, and the length of the names."""


class FolderSync:
    """The sync of a user's folders. `different`: folders that could not be made equal.

    `left`: the mailbox of the first one whose name is left for the next sync, if there is one.
    """

    def __init__(self, peer: Peer, replica: Replica, wish: Handshake, direction: Direction) -> None:
        """`wish`: what the master wants."""
        self._peer = peer
        self._replica = replica
        self._wish = wish
        self._direction = direction
        self._adoptions: dict[bytes, Adopt] = {}  # by ids of the peer's; a Dovecot with Maildirs takes ours instead
        self._told: Mapping[bytes, TreeNode] = {}  # this side's folders as the peer knows them, by their mailboxes
        self._kept: list[TreeNode] = []  # the peer's, which are deleted here, and have mail that nobody here has seen
        self.different = 0
        self.left: bytes | None = None

    async def run(self, name: str) -> tuple[Tree, Tree]:
        """Take over the peer's folders, then tell it this side's. Return both trees: this side's, and the peer's.

        `name`: under which things are remembered of the peer.
        """
        nodes = await self._peer.all(TreeNode, FOLDERS_MAX)
        deletions = await self._peer.one(Deletions)
        theirs = await run_in_thread(lambda: Tree({node.name: node for node in nodes}, deletions))
        if self._direction is not Direction.THERE:
            before = await self._own_tree(theirs, name)
            for step in await run_in_thread(lambda: [*self._steps(before, theirs)]):
                if isinstance(step, Adopt):
                    self._adoptions[step.mailbox_id] = step
                elif isinstance(step, Leave):
                    self.left = self.left or step.mailbox_id
                    self.stays_different(step.name, "this sync has renamed many others; the next one goes on")
                elif isinstance(step, Delete) and self._direction is not Direction.BACKUP_HERE:
                    await self._carry_out(replace(step, common_uid=self._replica.common_uid(step.mailbox_id, name)))
                else:
                    await self._carry_out(step)
            own = await self._tree(theirs)
            known = self._replica.given_names
            self._replica.note_given_names(await run_in_thread(lambda: given_names(before, own, theirs, known)))
            await self._take_uidvalidities(own, theirs, name)
        told = await self._told_tree(theirs)
        self._told = await run_in_thread(told.boxes)
        ordered = await run_in_thread(lambda: sorted(told.nodes))
        await self._peer.send_list(told.nodes[one] for one in ordered)
        await self._peer.send(told.deletions)
        return told, theirs

    def _steps(self, own: Tree, theirs: Tree) -> Iterator[Step]:
        if self._direction is Direction.BACKUP_HERE:
            return replacing_steps(own, theirs)
        return merging_steps(*as_users_named(own, theirs, self._replica.given_names))

    async def pass_over(self) -> None:
        """Read the peer's folders, and tell none."""
        await self._peer.all(TreeNode, FOLDERS_MAX)
        await self._peer.one(Deletions)
        await self._peer.end_list()
        await self._peer.send(Deletions())

    def adopts(self, mailbox_id: bytes) -> bool:
        """Return True if a folder here is to have this id of the peer's."""
        return mailbox_id in self._adoptions

    async def adopt(self, mailbox_id: bytes) -> None:
        """Let a folder here have the peer's id, and its name for it, if that is due: the peer keeps its own."""
        if mailbox_id in self._adoptions:
            await self._carry_out(self._adoptions[mailbox_id])

    def stays_different(self, folder: Name | bytes, why: str) -> None:
        """Count a folder that this sync leaves as it is, and log the first few. `folder`: a name, or a mailbox's id."""
        self.different += 1
        if self.different > TOLD_MAX:
            return
        if isinstance(folder, bytes):
            folder = self._told[folder].name if folder in self._told else (folder.hex(),)
        fields = {"user": self._replica.user, "folder": _shown(folder), "reason": why}
        log.warning("a folder stays different %s", LogFields(fields))

    async def _take_uidvalidities(self, own: Tree, theirs: Tree, name: str) -> None:
        """Take over the peer's UIDVALIDITYs for mailboxes that have had no mail here: clients there know them.

        Where that fails, the numbers of the mailbox settle later which of the two both sides have.
        """
        for mailbox_id, uidvalidity in await run_in_thread(lambda: uidvalidities_to_take(own, theirs)):
            with suppress(MailError):
                async with self._replica.mailbox(mailbox_id, name) as box:
                    if box is not None:
                        await box.take_uidvalidity(uidvalidity)

    async def _own_tree(self, theirs: Tree, name: str) -> Tree:
        """Return this side's folders as the sync finds them, with those of the peer's that are not to be deleted there.

        The peer deletes what is deleted here, with mail that this side has never seen. Such a folder comes back.
        """
        own = await self._tree(theirs)
        if self._direction is not Direction.BOTH:
            return own
        for node in await run_in_thread(lambda: deleted_here(own, theirs)):
            if node.uidnext > self._replica.seen_uid(node.mailbox_id or b"", node.uidvalidity, name) + 1:
                self._kept.append(node)
        return await run_in_thread(lambda: without_deletions(own, self._kept))

    async def _told_tree(self, theirs: Tree) -> Tree:
        """Return this side's folders as the peer is told them: with names that it takes over, if all is done here."""
        tree = await self._tree(theirs)
        if self._direction is not Direction.BOTH or self.different:
            return tree
        return await run_in_thread(lambda: renamed_last(tree, theirs))

    async def _tree(self, theirs: Tree) -> Tree:
        tree = await self._replica.tree()
        found = await run_in_thread(lambda: selected(tree, self._wish, theirs.deletions.separator))
        return await run_in_thread(lambda: without_deletions(found, self._kept)) if self._kept else found

    async def _carry_out(self, step: Step) -> None:
        try:
            await self._replica.carry_out(step)
        except MailError as error:  # the folder's mail is not synced then, and the next sync tries again
            name, undone = _undone(step)
            self.stays_different(name, f"{undone}: {error}")


def _undone(step: Step) -> tuple[Name, str]:
    """Return the folder that a step is about, and in words that the step was not possible."""
    match step:
        case Delete():
            return step.name, "it cannot be deleted"
        case Rename():
            return step.old, f"it cannot be renamed to {_shown(step.new)}"
        case Create():
            return step.name, "it cannot be created"
        case Adopt():
            return step.name, "it cannot become one with the peer's"
        case Subscribe():
            return step.name, "its subscription cannot be set" if step.subscribed else "it cannot be unsubscribed from"
        case Leave():
            return step.name, "it cannot get this name"


def how_different(folders: int) -> str:
    """Return in words how many folders stay different."""
    return "1 folder stays different" if folders == 1 else f"{folders} folders stay different"


def _shown(name: Name) -> str:
    return "/".join(name)[:TOLD_CHARACTERS_MAX]
