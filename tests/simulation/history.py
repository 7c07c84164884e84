"""The one true history: what was numbered where, which disks hold it, and what clients were told is safe.

Nodes tell it at each commit. An origin's entries come to a disk in order, so what a disk holds of them is a number.
From all this follows, by rules that know nothing of chains and merges, what must be there in the end.
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
    """A placement."""

    user: str
    mailbox_id: bytes
    guid: bytes
    content_hash: bytes
    copied: bool


class FlagChange(NamedTuple):
    """One flag of one placement; ordered by stamp."""

    stamp: Stamp
    dot: Dot
    value: bool


class TreeChange(NamedTuple):
    """One change to a user's folders."""

    stamp: Stamp
    dot: Dot
    user: str
    change: FolderCreate | FolderRename | FolderDelete | FolderSubscribe


@dataclass
class History:
    unnoticed_s: float  # how long a node may be gone before others know
    has_limits: bool = False  # logs are cut while clients wait: limits are hurried, and clients are not
    entries: dict[Dot, bytes] = field(default_factory=dict)  # a hash of each
    chain_of: dict[Dot, bytes] = field(default_factory=dict)  # the mailbox or tree of each
    added: dict[Placement, Added] = field(default_factory=dict)
    brought: dict[Dot, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))  # an entry's texts
    expunged: dict[Placement, list[Dot]] = field(default_factory=lambda: defaultdict(list))
    flagged: dict[tuple[Placement, str], list[FlagChange]] = field(default_factory=lambda: defaultdict(list))
    merges: set[Dot] = field(default_factory=set)
    moved: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))  # GUID -> where nodes put it
    emptied: set[bytes] = field(default_factory=set)  # folders that a merge took out of the tree: mail leaves them
    tree: list[TreeChange] = field(default_factory=list)
    acknowledged: dict[Dot, str] = field(default_factory=dict)  # and what it was
    lost: set[Dot] = field(default_factory=set)  # acknowledged, and then every disk was lost that held it
    abandoned: dict[Dot, bytes] = field(default_factory=dict)  # entry -> chain: it stood on what lost disks had alone
    shown: dict[tuple[bytes, int, int], set[tuple[Placement, Dot]]] = field(default_factory=lambda: defaultdict(set))
    _held: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # SID -> origin -> seq
    _passed: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # as `_held`
    _losses: list[tuple[float, str, dict[str, int]]] = field(default_factory=list)  # when, whose disk, what it held

    # ---- what nodes do

    def on_disk(self, sid: str, entry: Entry) -> None:
        """A node has synced an entry."""
        fingerprint = blake2b(_without_texts(entry).pack(), digest_size=16).digest()
        assert self.entries.setdefault(entry.dot, fingerprint) == fingerprint, f"{entry.dot} names two entries"
        held = self._held[sid]
        held[entry.dot.origin] = max(held.get(entry.dot.origin, 0), entry.dot.seq)

    def passed_over(self, sid: str, context: Mapping[str, int]) -> None:
        """A node shows what these entries did, and takes them for its own."""
        self._passed[sid].update(context)

    def abandons(self, sid: str, chains: Mapping[Dot, bytes]) -> None:
        """A node will never apply these entries, each of a chain."""
        assert self.has_lost_disks or not chains, f"{sid} abandons {sorted(chains)}, although no disk was lost"
        self.abandoned.update(chains)

    def revives(self, dots: Iterable[Dot]) -> None:
        """What these entries stand on has come after all."""
        for dot in dots:
            self.abandoned.pop(dot, None)

    def numbered(self, entry: Entry, placements: Mapping[int, Placement]) -> None:
        """A node has numbered an entry where UIDs meant these placements."""
        self.chain_of[entry.dot] = entry.mailbox_id
        for number, change in enumerate(entry.changes):
            match change:
                case MailAdd():
                    placement = (entry.dot, number)
                    self.added[placement] = Added(
                        entry.user, entry.mailbox_id, change.guid, change.content_hash, change.copied
                    )
                    if not change.copied:
                        self.brought[entry.dot][number] = change.content_hash
                    self._flag(entry, [placement], change.flags, value=True)
                case FlagAdd(uids, flags) | FlagDel(uids, flags):
                    named = [placements[uid] for uid in uids]
                    self._flag(entry, named, flags, value=isinstance(change, FlagAdd))
                case FolderCreate() | FolderRename() | FolderDelete() | FolderSubscribe():
                    self.tree.append(TreeChange(entry.stamp, entry.dot, entry.user, change))
                case MailDel(uids):
                    for uid in uids:
                        self.expunged[placements[uid]].append(entry.dot)
                case TreeMerge(folders=folders):
                    self.merges.add(entry.dot)
                    self.emptied |= {folder.mailbox_id for folder in folders if folder.deleted}
                case Merge():
                    self.merges.add(entry.dot)

    def _flag(self, entry: Entry, placements: Iterable[Placement], flags: Iterable[str], *, value: bool) -> None:
        for placement in placements:
            for flag in flags:
                self.flagged[placement, flag].append(FlagChange(entry.stamp, entry.dot, value))

    def disk_is(self, sid: str, context: Mapping[str, int]) -> None:
        """What a disk holds as its node starts."""
        gone = {origin: seq for origin, seq in self._held[sid].items() if context.get(origin, 0) < seq}
        assert not gone, f"{sid} had {gone} on its disk and does not any more"
        self._held[sid] = dict(context)

    def disk_replaced(self, sid: str, context: Mapping[str, int]) -> None:
        """The disk is another one, or an older copy, that holds this."""
        self._losses.append((trio.current_time(), sid, self._held[sid]))
        self._held[sid] = dict(context)
        self._passed.pop(sid, None)
        self.lost |= {dot for dot in self.acknowledged if not self.holders(dot)}

    @property
    def has_lost_disks(self) -> bool:
        """Whether any disk was replaced."""
        return bool(self._losses)

    # ---- what clients are told

    def acknowledge(
        self,
        dot: Dot,
        needed: int,
        what: str,
        began: float,
        *,
        holds_texts: Callable[[str, list[bytes]], bool],
        showing: Callable[[bytes, Dot], set[str]],
    ) -> None:
        """A client hears that it is safe. `holds_texts`: whether these texts are whole on a node's disk.

        `showing`: whose disks show what an entry of a mailbox or tree did, be it by a state that was taken over.

        A disk counts that was lost during the request, or so shortly before that nobody can have noticed: it is one
        of the losses that the other copies are for.
        """
        since = began - self.unnoticed_s
        texts = self._texts_of(dot)
        have = {*self.holders(dot), *showing(self.chain_of[dot], dot)}
        holders = {sid for sid in have if holds_texts(sid, texts)}
        holders |= {sid for at, sid, held in self._losses if at >= since and held.get(dot.origin, 0) >= dot.seq}
        if self.has_limits:
            holders |= {sid for sid, passed in self._passed.items() if passed.get(dot.origin, 0) >= dot.seq}
        at = (", ".join(sorted(holders)) or "no disk") + (" with its text" if texts else "")
        assert len(holders) >= needed, f"{what}: OK for {dot}, which is on {at}, and {needed} copies were asked for"
        self.acknowledged[dot] = what
        if not self.holders(dot):
            self.lost.add(dot)

    def _texts_of(self, dot: Dot) -> list[bytes]:
        """Those of its messages that nobody has expunged."""
        brought = self.brought.get(dot, {})
        return [text for number, text in brought.items() if not self.expunged.get((dot, number))]

    def holders(self, dot: Dot) -> list[str]:
        """Whose disks hold an entry now."""
        return [sid for sid, held in self._held.items() if held.get(dot.origin, 0) >= dot.seq]

    def flag_changes(self, mailbox_id: bytes, guid: bytes, flags: Iterable[str]) -> list[FlagChange]:
        """All changes of these flags of a message, under whatever placement."""
        placements = [
            placement for placement, one in self.added.items() if (one.mailbox_id, one.guid) == (mailbox_id, guid)
        ]
        return [change for placement in placements for flag in flags for change in self.flagged[placement, flag]]


def _without_texts(entry: Entry) -> Entry:
    """As it is where its texts are not: one that goes without them says so, and is the same entry."""
    changes = (change._replace(copied=True) if isinstance(change, MailAdd) else change for change in entry.changes)
    return replace(entry, changes=tuple(changes))
