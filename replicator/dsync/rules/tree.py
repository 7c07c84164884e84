"""Folders: which ones this side deletes, renames, creates and subscribes to, so that both sides have the same.

A folder is known by the id of its mailbox, whatever its name. Times are in seconds; where a side has none, it is 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from itertools import count
from typing import TypeAlias

from replicator.dsync.rules.moves import Name, moves
from replicator.dsync.wire.fields import UID_MAX
from replicator.dsync.wire.items import Deletions, TreeNode

INBOX: Name = ("INBOX",)


@dataclass(frozen=True, slots=True)
class Tree:
    """Folders of one side, and what it remembers of those that were deleted.

    `hidden`: names of folders that the sync is not about, which no other folder can have.
    """

    nodes: Mapping[Name, TreeNode]
    deletions: Deletions
    hidden: Collection[Name] = ()

    def boxes(self) -> dict[bytes, TreeNode]:
        """Return the nodes that have a mailbox, by its id."""
        return {node.mailbox_id: node for node in self.nodes.values() if node.mailbox_id is not None}

    def renamed_s(self, name: Name) -> int:
        """Return when a folder, or one above it, was renamed last."""
        above = (self.nodes.get(name[:levels]) for levels in range(1, len(name) + 1))
        return max((node.renamed_s for node in above if node is not None), default=0)

    def subscription(self, name: Name) -> tuple[int, bool]:
        """Return when a subscription was changed last, and whether there is one. The greater of two sides' wins."""
        node = self.nodes.get(name)
        changed_s = node.subscription_s if node is not None else 0
        if node is not None and node.subscribed:
            return changed_s, True
        return max(changed_s, self.deletions.unsubscribed.get(name_hash(name, self.deletions.separator), 0)), False


@dataclass(frozen=True, slots=True)
class Delete:
    """A folder to delete with its mail, by its mailbox, whatever its name is by then; those below it stay.

    Mail above `common_uid`, which the peer has never seen, stays, too.
    """

    name: Name
    mailbox_id: bytes
    common_uid: int = 0


@dataclass(frozen=True, slots=True)
class Rename:
    """A folder to rename, with all below it, if it still has the old name."""

    old: Name
    new: Name
    mailbox_id: bytes


@dataclass(frozen=True, slots=True)
class Create:
    """A folder to create for a mailbox of the peer's."""

    name: Name
    mailbox_id: bytes
    uidvalidity: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """A folder whose mailbox is to get the id of the peer's, and its UIDVALIDITY if it has had no mail."""

    name: Name
    mailbox_id: bytes
    uidvalidity: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscription to set or clear."""

    name: Name
    subscribed: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """A name that its mailbox gets by the next sync only, as this one has renamed many folders."""

    name: Name
    mailbox_id: bytes


Step: TypeAlias = Delete | Rename | Create | Adopt | Subscribe | Leave


def name_hash(name: Name, separator: str) -> bytes:
    """Return the 16 bytes by which deletions call a name."""
    return sha1(separator.join(name).encode(errors="surrogateescape"), usedforsecurity=False).digest()[:16]


def merging_steps(own: Tree, peer: Tree) -> Iterator[Step]:
    """Yield the changes on this side by which both trees become one, in their order."""
    yield from _deletions(own, peer)
    deleted = peer.deletions.mailboxes.keys() | own.deletions.mailboxes.keys()
    ours = {one: node.name for one, node in own.boxes().items() if one not in deleted or node.name == INBOX}
    theirs = {one: node for one, node in peer.boxes().items() if one not in deleted or node.name == INBOX}
    targets = _targets({one: _names_of(name, theirs.get(one), own, peer) for one, name in ours.items()}, own, peer)
    names = {name: one for one, name in targets.items()}
    gone = {one: node for one, node in peer.boxes().items() if one in own.deletions.mailboxes and one not in theirs}
    kept = {one: node for one, node in gone.items() if node.name in names and names[node.name] not in theirs}
    new = [*_creations(names, theirs | kept, ours, _used(own, peer))]
    naming = [*_naming_steps(ours, names, [one for one in new if isinstance(one, Create)], _used(own, peer))]
    yield from naming
    left = {step.name for step in naming if isinstance(step, Leave)}
    yield from (one for one in new if isinstance(one, Adopt) and one.name not in left)
    yield from _subscriptions(own, peer)


def replacing_steps(own: Tree, peer: Tree) -> Iterator[Step]:
    """Yield the changes on this side by which its tree becomes the peer's, which is the source of a backup.

    INBOX is never renamed: where the peer's is known here by another name, this side's INBOX takes its place.
    """
    theirs = peer.boxes()
    ours = dict[bytes, Name]()
    for one, node in own.boxes().items():
        if node.name == INBOX or (one in theirs and theirs[one].name != INBOX):
            ours[one] = node.name
        else:
            yield Delete(node.name, one, UID_MAX)
    names = {INBOX if name == INBOX else theirs[one].name: one for one, name in ours.items()}
    created = [Create(node.name, one, node.uidvalidity) for one, node in theirs.items() if one not in ours]
    yield from _naming_steps(ours, names, [one for one in created if one.name not in names], _used(own, peer))
    yield from (Adopt(one.name, one.mailbox_id, one.uidvalidity) for one in created if one.name in names)
    for name in own.nodes.keys() | peer.nodes.keys():
        wanted = peer.subscription(name)[1]
        if own.subscription(name)[1] != wanted:
            yield Subscribe(name, wanted)


def deleted_here(own: Tree, peer: Tree) -> list[TreeNode]:
    """Return the peer's folders that this side has deleted, for the peer to delete them with all their mail.

    Where another folder here has the name by now, both become one.
    """
    taken = {INBOX, *(name for name, node in own.nodes.items() if node.mailbox_id is not None)}
    boxes = peer.boxes().items()
    return [node for one, node in boxes if one in own.deletions.mailboxes and node.name not in taken]


def uidvalidities_to_take(own: Tree, peer: Tree) -> list[tuple[bytes, int]]:
    """Return the mailboxes that have had no mail here, and have another UIDVALIDITY at the peer, with that."""
    found, known = list[tuple[bytes, int]](), peer.boxes()
    for mailbox_id, node in own.boxes().items():
        other = known.get(mailbox_id) or peer.nodes.get(node.name)
        if node.uidnext == 1 and other is not None and other.uidvalidity not in {0, node.uidvalidity}:
            found.append((mailbox_id, other.uidvalidity))
    return found


def without_deletions(own: Tree, kept: Collection[TreeNode]) -> Tree:
    """Return a tree of this side that says nothing of the deletion of these folders of the peer's."""
    deletions = own.deletions
    ids = {node.mailbox_id for node in kept}
    names = {name_hash(node.name, deletions.separator) for node in kept}
    mailboxes = {one: at_s for one, at_s in deletions.mailboxes.items() if one not in ids}
    directories = {one: at_s for one, at_s in deletions.directories.items() if one not in names}
    return replace(own, deletions=replace(deletions, mailboxes=mailboxes, directories=directories))


def renamed_last(own: Tree, peer: Tree) -> Tree:
    """Return this side's tree, with each name that the peer has otherwise told as given after all of the peer's.

    Dovecot takes over the name that was given last. Between two of one second it decides by rules of its own, and its
    clock may be ahead.
    """
    theirs = {one: node.name for one, node in peer.boxes().items()}
    after_s = 1 + max((node.renamed_s for node in peer.nodes.values()), default=0)
    nodes = {
        name: replace(node, renamed_s=max(node.renamed_s, after_s))
        for name, node in own.nodes.items()
        if node.mailbox_id is not None and theirs.get(node.mailbox_id, name) != name
    }
    return replace(own, nodes={**own.nodes, **nodes})


def _deletions(own: Tree, peer: Tree) -> Iterator[Step]:
    for one, node in own.boxes().items():
        if one in peer.deletions.mailboxes and node.name != INBOX:
            yield Delete(node.name, one)


def _names_of(name: Name, other: TreeNode | None, own: Tree, peer: Tree) -> list[tuple[int, Name]]:
    """Return the names of a mailbox at both sides with the times when it was given them, the last one first.

    If the name here lies below the one there, that is the first: Dovecot moves no folder below a name that it has.
    """
    ours = (own.renamed_s(name), name)
    if other is None or INBOX in {name, other.name}:
        return [ours]
    theirs = (peer.renamed_s(other.name), other.name)
    is_below = name[: len(other.name)] == other.name
    return [theirs, ours] if is_below else sorted((ours, theirs), reverse=True)


def _targets(names: Mapping[bytes, Sequence[tuple[int, Name]]], own: Tree, peer: Tree) -> dict[bytes, Name]:
    """Return the name that each mailbox of this side has after the sync: the one that it was given last.

    Where two want one name, the one that was given it last has it. The other one keeps the name that it has on the
    other side, or gets a new one. `names`: see `_names_of`.
    """
    taken = dict[Name, bytes]()
    used = _used(own, peer)
    for one in sorted(names, key=lambda one: (names[one][0][1] == INBOX, names[one][0][0], one), reverse=True):
        wanted = [name for _, name in names[one]]
        free = next((name for name in wanted if name not in taken), None)
        name = free or _beside(wanted[0], used)
        taken[name] = one
        used.add(name)
    return {one: name for name, one in taken.items()}


def _beside(name: Name, used: Collection[Name]) -> Name:
    """Return a name that no folder has, for one that cannot have this name."""
    return next(new for number in count(1) if (new := (*name[:-1], f"{name[-1]}-{number}")) not in used)


def _used(own: Tree, peer: Tree) -> set[Name]:
    """Return the names that folders have at either side, those included that the sync is not about."""
    return {*own.nodes, *peer.nodes, *own.hidden}


def _naming_steps(
    now: Mapping[bytes, Name], names: Mapping[Name, bytes], created: Sequence[Create], used: Collection[Name]
) -> Iterator[Rename | Create | Leave]:
    """Yield the steps after which each mailbox has its name. See `moves`."""
    new = {step.name: step for step in created}
    wanted = dict(names) | {name: step.mailbox_id for name, step in new.items()}
    found, left = moves(now, wanted, used)
    for move in found:
        yield new[move.new] if move.old is None else Rename(move.old, move.new, move.mailbox_id)
    yield from (Leave(name, wanted[name]) for name in left)


def _creations(
    taken: Mapping[Name, bytes],
    theirs: Mapping[bytes, TreeNode],
    ours: Mapping[bytes, Name],
    used: Collection[Name],
) -> Iterator[Create | Adopt]:
    """Yield what is to be created. Where both sides have created a folder, the greater id stays, with all mail.

    So it is where this side has deleted a folder and created another one of that name: Dovecot keeps its own then.
    """
    for one, node in theirs.items():
        if one in ours:
            continue
        rival = taken.get(node.name)
        if rival is None:
            yield Create(node.name, one, node.uidvalidity)
        elif rival in theirs:
            name = (*node.name[:-1], f"{node.name[-1]}-{one.hex()[:8]}")
            yield Create(_beside(name, used) if name in used else name, one, node.uidvalidity)
        elif one > rival:
            yield Adopt(node.name, one, node.uidvalidity)


def _subscriptions(own: Tree, peer: Tree) -> Iterator[Step]:
    for name in sorted(own.nodes.keys() | peer.nodes.keys()):
        ours, theirs = own.subscription(name), peer.subscription(name)
        if theirs > ours and theirs[1] != ours[1]:
            yield Subscribe(name, theirs[1])
