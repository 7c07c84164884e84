"""Log entries, of which a mailbox's history consists (design sections 2 and 6).

An entry is an ordered batch of changes to one mailbox, or to one user's folder tree, which is a chain of its own under
an id that follows from the user's name. Entries name messages by UID: an entry applies only on its predecessor, and
there a UID names one message.

Shapes: ids and GUIDs are 16 bytes, content hashes 32, times milliseconds since the epoch, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgpack

from protocol.values import Dot, Stamp, UidSet, context_of
from resync.row import Placement, Row

T = TypeVar("T")

ID_BYTES = 16
DIGEST_BYTES = 16
NOWHERE = b""
"""In place of a mailbox id: an annotation belongs to the user's account, not to a folder."""

_CHECKED = b"\xc1"
"""First byte of a packed entry with a check; MessagePack has no value that begins with it."""
_CHECK_END = len(_CHECKED) + DIGEST_BYTES


def tree_id(user: str) -> bytes:
    """Return the id of the chain that holds a user's folder tree, which every node computes alike."""
    return blake2b(b"tree:" + user.encode(), digest_size=ID_BYTES).digest()


class MailAdd(NamedTuple):
    """A message gets a UID. Its body travels beside the entry, or is a copy of one that the mailbox's nodes have."""

    uid: int
    guid: bytes
    received_ms: int
    flags: tuple[str, ...]
    size_bytes: int
    content_hash: bytes
    copied: bool


class MailDel(NamedTuple):
    """Messages are expunged."""

    uids: UidSet


class FlagAdd(NamedTuple):
    """Messages get flags."""

    uids: UidSet
    flags: tuple[str, ...]


class FlagDel(NamedTuple):
    """Messages lose flags."""

    uids: UidSet
    flags: tuple[str, ...]


class Merge(NamedTuple):
    """A merge of two branches: the absolute rows of all that the heads show differently, and the GUIDs that are gone.

    A very large merge is split into several such changes, which are equal except for `rows` and `removed`.
    """

    uidnext: int
    risen: int  # amount by which merges have raised the UIDVALIDITY above the folder's own
    context: tuple[Dot, ...]  # of both heads
    rows: tuple[Row, ...]
    removed: tuple[bytes, ...]  # GUIDs that one of the heads shows and the merge does not


class FolderCreate(NamedTuple):
    """A folder appears in the tree."""

    mailbox_id: bytes
    name: str
    uidvalidity: int


class FolderRename(NamedTuple):
    """A folder gets another name."""

    mailbox_id: bytes
    name: str


class FolderDelete(NamedTuple):
    """A folder leaves the tree. It stays visible as long as it holds mail that no client has expunged."""

    mailbox_id: bytes


class FolderSubscribe(NamedTuple):
    """A subscription to a name is set or cleared."""

    name: str
    subscribed: bool


class FolderAnnotate(NamedTuple):
    """Annotations of a folder or, with `NOWHERE`, of the account get values; None removes one. Each name comes once."""

    mailbox_id: bytes
    values: tuple[tuple[str, bytes | None], ...]


class FolderState(NamedTuple):
    """A folder as a tree shows it. `time` and `sid` are the stamp of its last change."""

    mailbox_id: bytes
    user: str
    name: str
    uidvalidity: int
    deleted: bool
    time: int
    sid: str


class SubscriptionState(NamedTuple):
    """A subscription, set or cleared, as a tree shows it."""

    user: str
    name: str
    subscribed: bool
    time: int
    sid: str


class AnnotationState(NamedTuple):
    """An annotation of a folder or, with `NOWHERE`, of the account, as a tree shows it. `value` None: it is removed."""

    user: str
    mailbox_id: bytes
    name: str
    value: bytes | None
    time: int
    sid: str


TreeRow: TypeAlias = FolderState | SubscriptionState | AnnotationState


class TreeMerge(NamedTuple):
    """A merge of two branches of a folder tree: the absolute rows of all that the heads show differently.

    A folder that is deleted loses its annotations.
    """

    context: tuple[Dot, ...]  # of both heads
    folders: tuple[FolderState, ...]
    subscriptions: tuple[SubscriptionState, ...]
    annotations: tuple[AnnotationState, ...] = ()

    @classmethod
    def of(cls, context: tuple[Dot, ...], rows: Iterable[object]) -> TreeMerge:
        """Return the merge with those of the rows that a tree has."""
        found = [*rows]
        return cls(
            context,
            tuple(row for row in found if isinstance(row, FolderState)),
            tuple(row for row in found if isinstance(row, SubscriptionState)),
            tuple(row for row in found if isinstance(row, AnnotationState)),
        )

    def rows(self) -> tuple[TreeRow, ...]:
        """Return the rows of all kinds."""
        return (*self.folders, *self.subscriptions, *self.annotations)


Change: TypeAlias = (
    MailAdd | MailDel | FlagAdd | FlagDel | Merge
    | FolderCreate | FolderRename | FolderDelete | FolderSubscribe | FolderAnnotate | TreeMerge
)  # fmt: skip

_CLASSES: dict[str, type[Change]] = {
    "MAIL_ADD": MailAdd,
    "MAIL_DEL": MailDel,
    "FLAG_ADD": FlagAdd,
    "FLAG_DEL": FlagDel,
    "MERGE": Merge,
    "FOLDER_CREATE": FolderCreate,
    "FOLDER_RENAME": FolderRename,
    "FOLDER_DELETE": FolderDelete,
    "FOLDER_SUBSCRIBE": FolderSubscribe,
    "FOLDER_ANNOTATE": FolderAnnotate,
    "FOLDER_MERGE": TreeMerge,
}
_KINDS = {change: kind for kind, change in _CLASSES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `modseq` is the mailbox's HIGHESTMODSEQ after it; a tree has UIDVALIDITY 0.

    `histories` are those of the predecessors, in their order; None: an earlier version has numbered the entry. `dated`:
    the messages that it adds have a save date; False: an earlier version has numbered it, and they have none.
    """

    dot: Dot
    predecessors: tuple[Dot, ...]
    time: int
    modseq: int
    user: str
    mailbox_id: bytes
    uidvalidity: int
    changes: tuple[Change, ...]
    histories: tuple[bytes, ...] | None = None
    dated: bool = False
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _packed: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def history(self) -> bytes:
        """The hash that names the entry and all that it stands on (design section 6)."""
        return anchor(self.dot) if self.histories is None else self.digest()

    @property
    def saved_ms(self) -> int | None:
        """The save date of the messages that the entry adds (RFC 8514): the time of its stamp, if it is `dated`."""
        return self.stamp.ms if self.dated else None

    @property
    def stamp(self) -> Stamp:
        """Time at which the entry was numbered, and the SID of the node that numbered it."""
        return Stamp(self.time, self.dot.sid)

    @property
    def is_merge(self) -> bool:
        """True if the entry holds absolute rows: it is a merge, or an adoption, which is in no log."""
        return isinstance(self.changes[0], Merge | TreeMerge)

    @property
    def joined_context(self) -> dict[str, int]:
        """The context that a merge has seen; empty for other entries."""
        merges = (change for change in self.changes if isinstance(change, Merge | TreeMerge))
        return context_of(dot for merge in merges for dot in merge.context)

    @property
    def bodies_bytes(self) -> int:
        """Size of the bodies that come with the entry."""
        adds = (change for change in self.changes if isinstance(change, MailAdd) and not change.copied)
        return sum({add.content_hash: add.size_bytes for add in adds}.values())

    @property
    def is_tree(self) -> bool:
        """True if the entry changes a folder tree rather than a mailbox."""
        return self.uidvalidity == 0

    def pack(self) -> bytes:
        """Return the entry without its dot for the log: a check of the dot and the rest, and then MessagePack."""
        if self._packed is None:
            packed = self._message_pack()
            self._keep_packed(_CHECKED + _check(self.dot, packed) + packed)
        assert self._packed is not None
        return self._packed

    def _keep_packed(self, packed: bytes) -> None:
        object.__setattr__(self, "_packed", packed)  # the store and each link need it, and the entry never changes

    def is_packed_as(self, packed: bytes) -> bool:
        """Return True if these are the bytes that `pack` makes of the entry, or made of it before there were checks."""
        anew = self._message_pack()
        return packed in {anew, _CHECKED + _check(self.dot, anew) + anew}

    def _message_pack(self) -> bytes:
        changes = [_packed(change) for change in self.changes]
        fields = (self.predecessors, self.time, self.modseq, self.user, self.mailbox_id, self.uidvalidity, changes)
        return cast("bytes", msgpack.packb(fields + self._later_fields()))

    def _later_fields(self) -> tuple[object, ...]:
        """Return the fields that earlier versions did not know, as far as the entry has them."""
        if self.dated:
            return self.histories, True
        return () if self.histories is None else (self.histories,)

    def digest(self) -> bytes:
        """Return `DIGEST_BYTES` over the whole entry with its dot: the same at every node that has the entry.

        `MailAdd.copied` is left out: it differs at a node that has lost a body, which then no longer travels with the
        entry.
        """
        if self._digest is None:
            changes = [_packed(_without_copied(change)) for change in self.changes]
            fields = (
                self.dot, self.predecessors, self.time, self.modseq, self.user, self.mailbox_id, self.uidvalidity,
                changes, *self._later_fields(),
            )  # fmt: skip
            digest = blake2b(cast("bytes", msgpack.packb(fields)), digest_size=DIGEST_BYTES).digest()
            object.__setattr__(self, "_digest", digest)  # the store and each link need it, and the entry never changes
        assert self._digest is not None
        return self._digest

    def stands_on(self, head: Dot, history: bytes) -> bool:
        """Return True if the entry follows from a head with this history.

        One that names no histories can only follow from one that names none: leaving them out proves nothing.
        """
        if self.histories is None:
            return head in self.predecessors and history == anchor(head)
        return (head, history) in zip(self.predecessors, self.histories, strict=True)

    @classmethod
    def unpack(cls, dot: Dot, packed: bytes) -> Entry:
        """Return the entry that `pack` packed. Raises ValueError if the bytes do not match their check.

        Entries that earlier versions packed have no check.
        """
        whole, is_checked = packed, packed.startswith(_CHECKED)
        if is_checked:
            check, packed = packed[len(_CHECKED) : _CHECK_END], packed[_CHECK_END:]
            if check != _check(dot, packed):
                raise ValueError(f"the log has altered the entry {dot.seq} of {dot.origin}")
        predecessors, time, modseq, user, mailbox_id, uidvalidity, changes, *also = msgpack.unpackb(
            packed, use_list=False
        )
        entry = cls(
            dot,
            tuple(Dot(origin, seq) for origin, seq in predecessors),
            time,
            modseq,
            user,
            mailbox_id,
            uidvalidity,
            tuple(_change(kind, values) for kind, *values in changes),
            *also,
        )
        if is_checked:
            entry._keep_packed(whole)
        return entry


def anchor(dot: Dot) -> bytes:
    """Return the history of an entry that names no histories: a hash of its name alone, which every node computes.

    So histories begin anew at the last entry that an earlier version has numbered.
    """
    return blake2b(b"history:%b:%d" % (dot.origin.encode(), dot.seq), digest_size=DIGEST_BYTES).digest()


def _check(dot: Dot, packed: bytes) -> bytes:
    return blake2b(b"%b:%d:%b" % (dot.origin.encode(), dot.seq, packed), digest_size=DIGEST_BYTES).digest()


def pack_change(change: Change) -> bytes:
    """Return one change as MessagePack."""
    return cast("bytes", msgpack.packb(_packed(change)))


def unpack_change(packed: bytes) -> Change:
    """Return the change that `pack_change` packed. Raises ValueError for any other bytes."""
    try:
        kind, *values = msgpack.unpackb(packed, use_list=False)
        return _change(kind, values)
    except (msgpack.UnpackException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{len(packed)} bytes are not a change of an entry: {error!r}") from error


def pack_values(values: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the values of annotations, by their names, as MessagePack."""
    return cast("bytes", msgpack.packb([*values]))


def unpack_values(packed: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Return the values that `pack_values` packed. Raises ValueError for any other bytes."""
    try:
        return _values(msgpack.unpackb(packed, use_list=False))
    except (msgpack.UnpackException, TypeError, ValueError) as error:
        raise ValueError(f"{len(packed)} bytes are not values of annotations: {error!r}") from error


def _values(values: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(checked((name, value), str, bytes if value is not None else type(None)) for name, value in values)


def _packed(change: Change) -> tuple[object, ...]:
    if isinstance(change, Merge):
        uidnext, risen, context, rows, removed = change
        return _KINDS[Merge], uidnext, risen, context, [row.packed() for row in rows], removed
    if isinstance(change, TreeMerge) and not change.annotations:
        return (_KINDS[TreeMerge], *change[:-1])  # as before there were annotations
    values = (value.ranges if isinstance(value, UidSet) else value for value in change)
    return (_KINDS[type(change)], *values)


def _without_copied(change: Change) -> Change:
    return change._replace(copied=False) if isinstance(change, MailAdd) and change.copied else change


def _change(kind: str, values: list[Any]) -> Change:
    change = _CLASSES[kind]
    if change in {MailDel, FlagAdd, FlagDel}:
        values[0] = UidSet(cast("tuple[tuple[int, int], ...]", values[0]))
    elif change is Merge:
        uidnext, risen, context, rows, removed = values
        checked((uidnext, risen, *removed), int, int, *(bytes for _ in removed))
        return Merge(uidnext, risen, _dots(context), tuple(map(row_from, rows)), removed)
    elif change is TreeMerge:
        context, folders, subscriptions, *also = values
        (annotations,) = also or ((),)
        return TreeMerge(
            _dots(context),
            tuple(checked(FolderState(*folder), bytes, str, str, int, bool, int, str) for folder in folders),
            tuple(checked(SubscriptionState(*one), str, str, bool, int, str) for one in subscriptions),
            tuple(map(annotation_from, annotations)),
        )
    elif change is FolderAnnotate:
        mailbox_id, named = values
        return FolderAnnotate(*checked((mailbox_id,), bytes), _values(named))
    return change._make(values)


def _dots(values: Any) -> tuple[Dot, ...]:
    return tuple(checked(Dot(origin, seq), str, int) for origin, seq in values)


def annotation_from(values: Any) -> AnnotationState:
    """Return the row of an annotation that was packed as a tuple. Raises TypeError for any other value."""
    annotation = AnnotationState(*values)
    value = bytes if annotation.value is not None else type(None)
    return checked(annotation, str, bytes, str, value, int, str)


def placements_from(values: Any) -> tuple[Placement, ...]:
    """Return placements that were packed as tuples. Raises TypeError or ValueError for any other value."""
    return tuple((*_dots([dot]), *checked((change,), int)) for dot, change in values)


def row_from(values: Any) -> Row:
    """Return the row that was packed as a tuple. Raises TypeError, ValueError or AttributeError for any other value."""
    uid, dot, change, guid, claim, modseq, flags, received_ms, size_bytes, content_hash, *more = values
    states = {flag: checked(tuple(state), int, str, bool) for flag, state in flags.items()}
    checked(tuple(states), *(str for _ in states))
    placement, claimed = _dots((dot, claim))
    also = placements_from(more[0]) if more else ()
    saved_ms = more[1] if len(more) > 1 else None
    row = Row(
        uid, placement, change, guid, claimed, modseq, states, received_ms, size_bytes, content_hash, also, saved_ms
    )
    if len(values) != len(row.packed()):
        raise ValueError("a row has too many values")
    saved = int if saved_ms is not None else type(None)
    return checked(row, int, Dot, int, bytes, Dot, int, dict, int, int, bytes, tuple, saved)


def checked(values: T, *types: type) -> T:
    """Return the tuple if its members have these types, since it may come from another node. Raises TypeError."""
    if not isinstance(values, tuple) or [type(value) for value in values] != list(types):
        raise TypeError(f"{str(values)[:80]} has values of wrong types")
    return values
