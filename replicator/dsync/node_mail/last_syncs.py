"""A node's memory of the last sync of each mailbox of a user with each Dovecot, in a file of that user's.

The file also says when all mails were last compared with a Dovecot that the node calls, and which names syncs have
given to folders.

Changes before that sync are known to the Dovecot, and those by it are the Dovecot's own. Where nothing is remembered, a
sync compares all mails, and takes changes of flags from MODSEQs alone. So a file that is damaged or lost costs work.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import cast

import msgpack

from protocol.values import UID_MAX
from replicator.dsync.rules.given_names import GivenName
from replicator.mail.compact_uids import CompactUids
from replicator.mail.last_changes import Purge
from replicator.runtime.environment import run_in_thread
from resync.entry import ID_BYTES

log = logging.getLogger(__name__)

VERSION = 3
"""Version 1 had the rows alone; its rows, and the first ones of version 2, end before `gone`. The first
files of version 2 have no names. Both have sets of UIDs as pairs of numbers.

A node takes a file of a later version for a damaged one.
"""

DETAILS_MAX = 100_000
"""Ranges of UIDs that are remembered of all syncs of a user: 800 kB of memory."""

PEERS_MAX = 8
"""Dovecots whose syncs with a user are remembered: those that have synced last."""

NO_UIDS = CompactUids()

FlagUids = Mapping[tuple[str, bool], CompactUids]
"""UIDs of messages whose flag was set (True) or cleared, by the flag."""


@dataclass(frozen=True, slots=True)
class LastSync:
    """The last sync of a mailbox with a peer: the mailbox as the sync began, `at_ms`, and what it did.

    `folder`: the id of the node's folder; where branches join, another one may get the GUID by which the peer knows it.
    `head`, `annotated`: the newest entry of the mailbox, and the last change of its annotations, then; while they still
    are, nothing has changed here. `common_uid`, `common_modseq`: up to where both sides were equal in the end. With 0
    that is not known, so the next sync compares all; and so it does if there were `copies` (`rules.mails.copies`),
    since what is told of changes since a state does not tell their sources.
    `own_flags`, `own_annotations` (see `annotated`): changes by the sync itself. `expunged`: UIDs that were known to be
    expunged as it began; a peer that remembers this sync has been told of them, unless `common_modseq` is 0.
    `uids`: those that the peer has been told, up to the common one. `gone`: GUIDs of mails that a user here
    expunged while the sync was about to give them other UIDs, by these UIDs: the peer has them under these.
    """

    folder: bytes
    uidvalidity: int
    modseq: int
    at_ms: int
    head: str = ""
    annotated: int = 0
    common_uid: int = 0
    common_modseq: int = 0
    messages: int = 0
    copies: bool = False
    own_flags: FlagUids = field(default_factory=dict)
    own_annotations: frozenset[str] = frozenset()
    expunged: CompactUids = field(default_factory=CompactUids)
    uids: CompactUids = field(default_factory=CompactUids)
    gone: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def details(self) -> int:
        """Number of things that are remembered of it besides."""
        flags = sum(uids.range_count for uids in self.own_flags.values())
        uids = self.expunged.range_count + self.uids.range_count + len(self.gone)
        return flags + len(self.own_annotations) + uids


def annotated(name: str, value: bytes | None, *, of_account: bool) -> str:
    """Return a change of an annotation, of the account or of a folder: another value is another change."""
    digest = "removed" if value is None else sha256(value).hexdigest()
    return f"{'account' if of_account else 'folder'} {digest} {name}"


class LastSyncs:
    """The last syncs of one user's mailboxes, by peer and mailbox, and the last full ones, by addresses of Dovecots.

    `given_names`: the names that syncs have given to folders, with whichever Dovecot, by their mailboxes.
    """

    def __init__(
        self,
        known: Iterable[tuple[str, bytes, LastSync]] = (),
        full: Iterable[tuple[str, int]] = (),
        given_names: Iterable[tuple[bytes, GivenName]] = (),
    ) -> None:
        """`known`: those that are longest ago first. `full`: the times at which full syncs ended, in the same order."""
        self.given_names = dict(given_names)
        self._peers: OrderedDict[str, OrderedDict[bytes, LastSync]] = OrderedDict()
        self._full = OrderedDict(full)
        self._details = 0
        self.is_changed = False
        for peer, mailbox_id, sync in known:
            self._peers.setdefault(peer, OrderedDict())[mailbox_id] = sync
            self._details += sync.details

    def note(self, peer: str, mailbox_id: bytes, sync: LastSync) -> None:
        """Note a sync. The mailboxes and peers that were synced longest ago are forgotten where there are too many."""
        self._peers.setdefault(peer, OrderedDict())
        self._peers.move_to_end(peer)
        self.forget(peer, mailbox_id)
        self._peers[peer][mailbox_id] = sync
        self._details += sync.details
        while len(self._peers) > PEERS_MAX:
            self.forget(next(iter(self._peers)))
        while self._details > DETAILS_MAX:
            oldest = next(iter(self._peers))
            self.forget(oldest, next(iter(self._peers[oldest]), None))

    def find(self, peer: str, mailbox_id: bytes, folder: bytes) -> LastSync | None:
        """Return the last sync, if it is known, and was one of this folder."""
        found = self._peers.get(peer, OrderedDict[bytes, LastSync]()).get(mailbox_id)
        return found if found is not None and found.folder == folder else None

    def forget(self, peer: str, mailbox_id: bytes | None = None) -> None:
        """Forget the last sync of a mailbox; with None, of all mailboxes with this peer."""
        boxes = self._peers.get(peer, OrderedDict())
        gone = [*boxes] if mailbox_id is None else [mailbox_id]
        self._details -= sum(boxes.pop(one).details for one in gone if one in boxes)
        if mailbox_id is None:
            self._peers.pop(peer, None)
        self.is_changed = True

    def forget_former(self, purge: Purge, inbox: bytes | None) -> None:
        """Forget syncs of a former user, with whichever peer. `inbox`: the mailbox that no purge removes."""
        for peer, one, sync in self.all():
            if (
                purge.uidnext is None
                or sync.at_ms <= purge.changed_ms
                or (one == inbox and sync.common_uid < purge.uidnext)
            ):
                self.forget(peer, one)

    def keep_only(self, mailbox_ids: AbstractSet[bytes]) -> None:
        """Forget syncs of mailboxes that exist no longer."""
        for peer, mailbox_id, _ in self.all():
            if mailbox_id not in mailbox_ids:
                self.forget(peer, mailbox_id)
        for mailbox_id in self.given_names.keys() - mailbox_ids:
            del self.given_names[mailbox_id]
            self.is_changed = True

    def note_given_names(self, names: Mapping[bytes, GivenName]) -> None:
        """Note names that a sync has given."""
        self.is_changed = self.is_changed or any(self.given_names.get(one) != name for one, name in names.items())
        self.given_names |= names

    def note_full(self, dovecot: str, at_ms: int) -> None:
        """Note when a sync ended that has compared all mails. Those that are longest ago are forgotten."""
        self._full[dovecot] = at_ms
        self._full.move_to_end(dovecot)
        while len(self._full) > PEERS_MAX:
            self._full.popitem(last=False)
        self.is_changed = True

    @property
    def full(self) -> Mapping[str, int]:
        """The times in ms at which syncs ended that have compared all mails, by the addresses of the Dovecots."""
        return self._full

    def all(self) -> list[tuple[str, bytes, LastSync]]:
        """Return all syncs that are known, those that are longest ago first."""
        return [(peer, one, sync) for peer, boxes in self._peers.items() for one, sync in boxes.items()]


class LastSyncFiles:
    """The files of all users, in a directory. What they hold is written without a wait for the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def load(self, user: str) -> LastSyncs:
        """Return what is remembered of a user; nothing if the file cannot be read."""
        return await run_in_thread(partial(_load, self._path(user)))

    async def save(self, user: str, syncs: LastSyncs) -> None:
        """Write it down, if it has changed."""
        if syncs.is_changed:
            await run_in_thread(partial(_save, self._path(user), syncs))

    def name_of(self, user: str) -> str:
        """Return the name of a user's file, which does not tell who that is."""
        return sha256(user.encode(errors="surrogateescape")).hexdigest()

    async def names(self) -> set[str]:
        """Return the names of all files. Raises OSError."""
        return await run_in_thread(partial(_names, self._directory))

    async def remove(self, names: Collection[str]) -> None:
        """Remove files by their names. Raises OSError."""
        await run_in_thread(partial(_remove, [self._place(name) for name in names]))

    def _path(self, user: str) -> Path:
        return self._place(self.name_of(user))

    def _place(self, name: str) -> Path:
        return self._directory / name[:2] / name[2:]


def _names(directory: Path) -> set[str]:
    """Return the names of all files, those included that were being written as the node crashed."""
    return {path.parent.name + path.stem for path in directory.glob("??/*")}


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        for one in (path, _temporary(path)):
            one.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """Return where a file is written before it takes the place of the last one."""
    return path.with_suffix(".new")


def _load(path: Path) -> LastSyncs:
    try:
        return _unpacked(path.read_bytes())
    except FileNotFoundError:
        return LastSyncs()
    except (OSError, ValueError, TypeError, OverflowError) as error:  # the last two: what it holds has another form
        log.warning("%s: cannot be read, so the next sync compares all mails of this user: %s", path, error)
        return LastSyncs()


def _save(path: Path, syncs: LastSyncs) -> None:
    temporary = _temporary(path)
    try:
        for directory in (path.parent.parent, path.parent):  # a data directory that is away does not come back empty
            directory.mkdir(exist_ok=True)
        temporary.write_bytes(_packed(syncs))
        temporary.replace(path)
    except OSError as error:
        log.warning("%s: cannot be written, so what was synced is forgotten: %s", path, error)


def _packed(syncs: LastSyncs) -> bytes:
    rows = [
        (
            peer,
            mailbox_id,
            (sync.folder, sync.uidvalidity, sync.modseq, sync.at_ms, sync.head, sync.annotated),
            (sync.common_uid, sync.common_modseq, sync.messages, sync.copies),
            [(flag, is_set, uids.packed()) for (flag, is_set), uids in sync.own_flags.items()],
            sorted(sync.own_annotations),
            sync.expunged.packed(),
            sync.uids.packed(),
            [*sync.gone.items()],
        )
        for peer, mailbox_id, sync in syncs.all()
    ]
    names = [(one, given.name, given.here_s, given.at_s) for one, given in syncs.given_names.items()]
    content = rows, [*syncs.full.items()], names
    packed = cast("bytes", msgpack.packb((VERSION, content), unicode_errors="surrogateescape"))
    return zlib.crc32(packed).to_bytes(4) + packed


def _unpacked(data: bytes) -> LastSyncs:
    """Return what a file holds. Raises ValueError."""
    if zlib.crc32(data[4:]) != int.from_bytes(data[:4]):
        raise ValueError("its checksum is wrong")
    version, content = msgpack.unpackb(data[4:], use_list=False, unicode_errors="surrogateescape")
    if version not in range(1, VERSION + 1):
        raise ValueError(f"it is of version {version}, and this node knows {VERSION} at most")
    rows, full, names = (content, (), ()) if version == 1 else (*content, ())[:3]
    return LastSyncs(
        ((peer, mailbox_id, _sync((*row, ())[:7])) for peer, mailbox_id, *row in rows),
        full,
        ((mailbox_id, GivenName(*given)) for mailbox_id, *given in names),
    )


Packed = bytes | tuple[tuple[int, int], ...]
Row = tuple[
    tuple[bytes, int, int, int, str, int],  # the mailbox as the sync began
    tuple[int, int, int, bool],  # what was common in the end
    Iterable[tuple[str, bool, Packed]],
    Iterable[str],
    Packed,
    Packed,
    Iterable[tuple[int, bytes]],
]


def _sync(row: Row) -> LastSync:
    before, common, flags, annotations, expunged, uids, gone = row
    own_flags = {(flag, is_set): _uids(uids) for flag, is_set, uids in flags}
    guids = dict(gone)
    if not all(0 < uid <= UID_MAX and len(guid) == ID_BYTES for uid, guid in guids.items()):
        raise ValueError("it has a mail without a UID or a GUID")
    return LastSync(*before, *common, own_flags, frozenset(annotations), _uids(expunged), _uids(uids), guids)


def _uids(packed: Packed) -> CompactUids:
    if not isinstance(packed, bytes):
        bounds = (*(low for low, _ in packed), *(high for _, high in packed))
        packed = b"".join(bound.to_bytes(4, "little") for bound in bounds)
    return CompactUids.unpacked(packed)
