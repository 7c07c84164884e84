"""The history of a cluster: where each entry was numbered, which disks hold it, and what clients were told is safe.

Nodes report to it at each commit. An origin's entries come to a disk in order, so one number says which of them a disk
holds. From this follows, by rules that know nothing of chains and merges, what must be there in the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

import trio

from protocol.values import Dot, Stamp
from resync.entry import (
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    TreeMerge,
)

Placement = tuple[Dot, int]


class Added(NamedTuple):
    """A placement that was added."""

    user: str
    mailbox_id: bytes
    guid: bytes
    content_hash: bytes
    copied: bool
    saved_ms: int


class FlagChange(NamedTuple):
    """A change of one flag of one placement; ordered by stamp."""

    stamp: Stamp
    dot: Dot
    value: bool


class TreeChange(NamedTuple):
    """A change to a user's folders."""

    stamp: Stamp
    dot: Dot
    user: str
    change: FolderCreate | FolderRename | FolderDelete | FolderSubscribe | FolderAnnotate


@dataclass
class History:
    """The entries that nodes have reported, their effects, and the answers to clients."""

    unnoticed_s: float  # time for which a node may be gone before others know
    has_short_log: bool = False  # entries may leave the logs while clients still wait for copies
    entries: dict[Dot, bytes] = field(default_factory=dict)  # hash of each entry
    chain_of: dict[Dot, bytes] = field(default_factory=dict)  # mailbox or tree of each entry
    added: dict[Placement, Added] = field(default_factory=dict)
    brought: dict[Dot, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))  # an entry's bodies
    expunged: dict[Placement, list[Dot]] = field(default_factory=lambda: defaultdict(list))
    flagged: dict[tuple[Placement, str], list[FlagChange]] = field(default_factory=lambda: defaultdict(list))
    merges: set[Dot] = field(default_factory=set)
    mismatches: int = 0  # entries that named another history than a node had
    moved: dict[bytes, set[tuple[bytes, bytes]]] = field(default_factory=lambda: defaultdict(set))
    """GUID -> mailboxes between which nodes, not clients, have moved the message: from and to."""
    emptied: set[bytes] = field(default_factory=set)  # folders that a merge took out of the tree: mail leaves them
    tree: list[TreeChange] = field(default_factory=list)
    acknowledged: dict[Dot, str] = field(default_factory=dict)  # entry -> its description for messages
    lost: set[Dot] = field(default_factory=set)  # acknowledged, but later every disk that held it was lost
    abandoned: dict[Dot, bytes] = field(default_factory=dict)  # entry -> chain: its predecessor was on lost disks alone
    shown: dict[tuple[bytes, int, int], set[tuple[bytes, Dot]]] = field(default_factory=lambda: defaultdict(set))
    _held: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # SID -> origin -> seq
    _passed: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # as `_held`
    _losses: list[tuple[float, str, dict[str, int]]] = field(default_factory=list)  # time, SID, what the disk held

    # ---- what nodes do

    def on_disk(self, sid: str, entry: Entry) -> None:
        """Record that a node has synced an entry."""
        fingerprint = blake2b(_without_bodies(entry).pack(), digest_size=16).digest()
        assert self.entries.setdefault(entry.dot, fingerprint) == fingerprint, f"{entry.dot} names two entries"
        held = self._held[sid]
        held[entry.dot.origin] = max(held.get(entry.dot.origin, 0), entry.dot.seq)

    def passed_over(self, sid: str, context: Mapping[str, int]) -> None:
        """Record that a node shows the effects of these entries, which it has or has passed over in its log."""
        self._passed[sid].update(context)

    def abandons(self, sid: str, chains: Mapping[Dot, bytes]) -> None:
        """Record that a node will never apply these entries, each of a chain."""
        assert self.has_lost_disks or not chains, f"{sid} abandons {sorted(chains)}, although no disk was lost"
        self.abandoned.update(chains)

    def revives(self, dots: Iterable[Dot]) -> None:
        """Record that the missing predecessors of these entries have come after all."""
        for dot in dots:
            self.abandoned.pop(dot, None)

    def numbered(self, entry: Entry, placements: Mapping[int, tuple[Placement, ...]]) -> None:
        """Record that a node has numbered an entry at which UIDs meant these placements."""
        self.chain_of[entry.dot] = entry.mailbox_id
        for number, change in enumerate(entry.changes):
            match change:
                case MailAdd():
                    placement = (entry.dot, number)
                    self.added[placement] = Added(
                        entry.user, entry.mailbox_id, change.guid, change.content_hash, change.copied, entry.stamp.ms
                    )
                    if not change.copied:
                        self.brought[entry.dot][number] = change.content_hash
                    self._flag(entry, [placement], change.flags, value=True)
                case FlagAdd(uids, flags) | FlagDel(uids, flags):
                    named = [one for uid in uids for one in placements[uid]]
                    self._flag(entry, named, flags, value=isinstance(change, FlagAdd))
                case FolderCreate() | FolderRename() | FolderDelete() | FolderSubscribe() | FolderAnnotate():
                    self.tree.append(TreeChange(entry.stamp, entry.dot, entry.user, change))
                case MailDel(uids):
                    for uid in uids:
                        for one in placements[uid]:
                            self.expunged[one].append(entry.dot)
                case TreeMerge(folders=folders):
                    self.merges.add(entry.dot)
                    self.emptied |= {folder.mailbox_id for folder in folders if folder.deleted}
                case Merge():
                    self.merges.add(entry.dot)

    def merges_of(self, mailbox_id: bytes) -> set[Dot]:
        """Return the merges of a mailbox's branches."""
        return {dot for dot in self.merges if self.chain_of[dot] == mailbox_id}

    def _flag(self, entry: Entry, placements: Iterable[Placement], flags: Iterable[str], *, value: bool) -> None:
        for placement in placements:
            for flag in flags:
                self.flagged[placement, flag].append(FlagChange(entry.stamp, entry.dot, value))

    def disk_is(self, sid: str, context: Mapping[str, int]) -> None:
        """Record the contents of a disk when its node starts."""
        gone = {origin: seq for origin, seq in self._held[sid].items() if context.get(origin, 0) < seq}
        assert not gone, f"{sid} had {gone} on its disk and does not any more"
        self._held[sid] = dict(context)

    def disk_replaced(self, sid: str, context: Mapping[str, int]) -> None:
        """Record that the disk was replaced by another one, or by an older copy, with these contents."""
        self._losses.append((trio.current_time(), sid, self._held[sid]))
        self._held[sid] = dict(context)
        self._passed.pop(sid, None)
        self.lost |= {dot for dot in self.acknowledged if not self.holders(dot)}

    @property
    def has_lost_disks(self) -> bool:
        """True if any disk was replaced."""
        return bool(self._losses)

    # ---- what clients are told

    def acknowledge(
        self,
        dot: Dot,
        needed: int,
        what: str,
        began: float,
        *,
        saves: frozenset[bytes],
        holds_bodies: Callable[[str, list[bytes]], bool],
        showing: Callable[[bytes, Dot], set[str]],
    ) -> None:
        """Record that a client hears that an entry is safe, and check that enough disks have it.

        `saves`: the hashes of the bodies that the request brought. Where disks were lost, only these must be there: a
        request that changes nothing rests on the newest entry, whose body a node with a new disk may still be fetching.

        `holds_bodies`: returns True if these bodies are whole on a node's disk. `showing`: returns the nodes whose
        disks show the effect of an entry on a mailbox or tree, even if by a state that was taken over.

        A disk that was lost during the request, or so shortly before that no node can have noticed, counts as having
        the entry: it is one of the losses against which the other copies protect.
        """
        since = began - self.unnoticed_s
        bodies = [body for body in self._bodies_of(dot) if body in saves or not self.has_lost_disks]
        have = {*self.holders(dot), *showing(self.chain_of[dot], dot)}
        holders = {sid for sid in have if holds_bodies(sid, bodies)}
        holders |= {sid for at, sid, held in self._losses if at >= since and held.get(dot.origin, 0) >= dot.seq}
        if self.has_short_log:
            holders |= {sid for sid, passed in self._passed.items() if passed.get(dot.origin, 0) >= dot.seq}
        at = (", ".join(sorted(holders)) or "no disk") + (" with its body" if bodies else "")
        assert len(holders) >= needed, f"{what}: OK for {dot}, which is on {at}, and {needed} copies were asked for"
        self.acknowledged[dot] = what
        if not self.holders(dot):
            self.lost.add(dot)

    def _bodies_of(self, dot: Dot) -> list[bytes]:
        """Return the hashes of the bodies of the entry's messages that no client has expunged."""
        brought = self.brought.get(dot, {})
        return [body for number, body in brought.items() if not self.expunged.get((dot, number))]

    def holders(self, dot: Dot) -> list[str]:
        """Return the nodes whose disks hold an entry now."""
        return [sid for sid, held in self._held.items() if held.get(dot.origin, 0) >= dot.seq]

    def flag_changes(self, mailbox_id: bytes, guid: bytes, flags: Iterable[str]) -> list[FlagChange]:
        """Return all changes of these flags of a message, under any placement."""
        placements = [
            placement for placement, one in self.added.items() if (one.mailbox_id, one.guid) == (mailbox_id, guid)
        ]
        return [change for placement in placements for flag in flags for change in self.flagged[placement, flag]]


def _without_bodies(entry: Entry) -> Entry:
    """Return the entry as a node without its bodies has it: it says so, but is the same entry."""
    changes = (change._replace(copied=True) if isinstance(change, MailAdd) else change for change in entry.changes)
    return replace(entry, changes=tuple(changes))
