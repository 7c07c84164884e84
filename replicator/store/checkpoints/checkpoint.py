"""A checkpoint: the state of one mailbox or folder tree at one head, as an object (format: `container`).

The first frame is the head, its context and its history, which earlier versions have left out. Each further frame is a
change as in a MERGE entry (`resync.entry`); together they would take an empty chain to the state, except for its
context, which is in the first frame only. So rows from a checkpoint must satisfy the rules for rows in entries, and can
be used like them. There is at least one change; rows come in the order of their UIDs.

An object's name tells a reader its user, node and time; the newest of a chain is the last by name. All nodes that show
a head show the same state there, so an object's content never changes under its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgpack

from protocol.parser import LIST_MAX, terminal
from protocol.values import Dot, context_of
from replicator.store.checkpoints.container import ContainerKind, Unsealer, seal
from replicator.store.db.entry_validation import NUMBER_MAX, NamedHead, is_well_formed, why_not_head
from resync import state
from resync.entry import DIGEST_BYTES, Merge, TreeMerge, TreeRow, anchor, pack_change, unpack_change
from resync.folder_tree import TreeState, tree_difference
from resync.ranges import ITEMS_MAX
from resync.row import Row
from resync.state import MailboxState

T = TypeVar("T")

ROWS_AT_ONCE = 1000  # in a frame: some 200 KiB
STAMPS_AT_ONCE = 20_000  # of flags and further placements, in a frame: some 2 MiB
NAMES_MAX = 1 << 20  # of a tree: a hundred times a user's limit, to include deleted ones
LABEL_CHARS = 80  # per level of a name: file systems limit one to 255 bytes; three times what most users' names need

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Home(NamedTuple):
    """The owner of checkpoints: one node of a cluster. Nodes share none, so none deletes what another one needs."""

    cluster: str
    sid: str


def checkpoint_name(home: Home, head: NamedHead) -> str:
    """Return the object's name: `CLUSTER/checkpoints/SID/USER/MAILBOX ID/MODSEQ_DATE_ORIGIN_SEQ.mailbox`, or `.tree`.

    The user's name and the origin are percent-encoded, and cut if they are long.
    """
    origin, seq = head.dot
    file = f"{head.modseq:019}_{date(head.time >> 16)}_{_label(origin)}_{seq}.{'tree' if head.is_tree else 'mailbox'}"
    return f"{home.cluster}/checkpoints/{home.sid}/{_label(head.user)}/{head.mailbox_id.hex()}/{file}"


def checkpoints_of(home: Home) -> str:
    """Return the prefix of the names of all of a node's checkpoints."""
    return f"{home.cluster}/checkpoints/{home.sid}"


def chain_of(name: str) -> bytes | None:
    """Return the id of the mailbox or tree in a checkpoint's name, or None for any other name."""
    levels = name.split("/")
    try:
        return bytes.fromhex(levels[-2]) if name.endswith((".tree", ".mailbox")) else None
    except (IndexError, ValueError):
        return None


def date(ms: int) -> str:
    """Format a time for a name, such as 20261121T093005.123Z."""
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y%m%dT%H%M%S}.{ms % 1000:03}Z"


def ms_of(text: str) -> int:
    """Parse a time from `date`, into ms. Raises ValueError for any other text."""
    return (datetime.strptime(text, "%Y%m%dT%H%M%S.%f%z") - _EPOCH) // timedelta(milliseconds=1)


def _label(text: str) -> str:
    encoded = quote(text, safe="@+=")[:LABEL_CHARS]
    return f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded  # never ".", ".." or a hidden file


def write_mailbox(head: NamedHead, history: bytes, shown: state.Head, rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the object in pieces.

    `rows`: all rows shown at the head, by UID; they are consumed along with the pieces.
    """
    some = _in_frames(rows)
    changes = (Merge(shown.uidnext, shown.risen, (), frame, ()) for frame in chain([next(some, ())], some))
    return _write(head, history, shown.context, changes)


def _in_frames(rows: Iterable[Row]) -> Iterator[tuple[Row, ...]]:
    """Yield the rows in groups of a frame each. Rows keep the stamps of removed flags, so their sizes vary."""
    frame, stamps = list[Row](), 0
    for row in rows:
        frame.append(row)
        stamps += len(row.flags) + len(row.also)
        if len(frame) >= ROWS_AT_ONCE or stamps >= STAMPS_AT_ONCE:
            yield tuple(frame)
            frame, stamps = [], 0
    if frame:
        yield tuple(frame)


def write_tree(head: NamedHead, history: bytes, tree: TreeState) -> Iterator[bytes]:
    """Yield the object in pieces."""
    changes = (change._replace(context=()) for change in tree_difference(tree, [TreeState()]))
    return _write(head, history, tree.context, changes)


def _write(
    head: NamedHead, history: bytes, context: Mapping[str, int], changes: Iterable[Merge | TreeMerge]
) -> Iterator[bytes]:
    packed = cast("bytes", msgpack.packb((head, sorted(context.items()), history)))
    return seal(ContainerKind.CHECKPOINT, chain([packed], map(pack_change, changes)))


def state_of(head: NamedHead, changes: Iterable[Merge | TreeMerge]) -> MailboxState | TreeState:
    """Build the whole state in memory from the changes that a reader yielded."""
    mailbox, tree, tree_rows = MailboxState(modseq=head.modseq), TreeState(modseq=head.modseq), list[TreeRow]()
    for change in changes:
        context = context_of(change.context)
        if isinstance(change, Merge):
            mailbox.uidnext, mailbox.risen, mailbox.context = change.uidnext, change.risen, context
            for row in change.rows:
                mailbox.put(row)
        else:
            tree_rows += change.rows()
            tree = TreeState.of(head.modseq, context, tree_rows)
    return tree if head.is_tree else mailbox


class CheckpointReader:
    """The reader of one object: `receive` its bytes in order, then `finish`. Raises UnreadableError.

    `head` is the head that the object must have; `history` is known with the first change. The reader keeps GUIDs and
    names, 100 bytes a row, and nothing else of its output. `plain_bytes_max`: see `Unsealer`.
    """

    def __init__(self, name: str, head: NamedHead, *, plain_bytes_max: int | None = None) -> None:
        self._sealed = Unsealer(name, ContainerKind.CHECKPOINT, plain_bytes_max=plain_bytes_max)
        self._head = head
        self.history = anchor(head.dot)
        self._context: tuple[Dot, ...] | None = None
        self._content: _Rows | _Names | None = None

    def receive(self, data: bytes) -> Iterator[Merge | TreeMerge]:
        """Yield the changes that take an empty chain to the state; exhaust it before the next call."""
        for frame in self._sealed.receive(data):
            if self._content is None:
                self._content = self._begin(frame)
                continue
            try:
                change = unpack_change(frame)
            except ValueError as error:
                raise self._sealed.refusal(str(error)) from None
            problem = self._content.problem(change)
            if problem:
                raise self._sealed.refusal(problem)
            assert isinstance(change, Merge | TreeMerge)
            assert self._context is not None
            yield change._replace(context=self._context)

    def finish(self) -> None:
        """End the object. On return, the changes yielded are proved to be the state."""
        self._sealed.finish()
        if self._content is None or not self._content.has_begun:
            raise self._sealed.refusal("it contains no state")

    def _begin(self, frame: bytes) -> _Rows | _Names:
        try:
            parts = unpack_fields(frame)
            fields, context, history = parts if len(parts) > 2 else (*unpack_fields(frame, 2), self.history)
            head, self._context = head_from(fields), context_from(context)
            self.history = _history_from(history)
        except ValueError as error:
            raise self._sealed.refusal(str(error)) from None
        if head != self._head:
            raise self._sealed.refusal(f"it belongs to {head.dot} of {head.user}, contrary to its name")
        seen = dict(self._context)
        if seen.get(self._head.dot.origin) != self._head.dot.seq:
            raise self._sealed.refusal("its context does not end at its head")
        return _Names(self._head) if self._head.is_tree else _Rows(self._head, seen)


class _Rows:
    """Checks of a mailbox's rows against each other."""

    def __init__(self, head: NamedHead, context: Mapping[str, int]) -> None:
        self._head, self._context = head, context
        self._first: Merge | None = None
        self._last_uid = 0
        self._guids: set[bytes] = set()

    @property
    def has_begun(self) -> bool:
        return self._first is not None

    def problem(self, change: object) -> str | None:
        if not isinstance(change, Merge) or change.context or change.removed or not is_well_formed(change):
            return "it has a change that does not belong to a mailbox, or a value out of range"
        self._first = self._first or change
        if (change.uidnext, change.risen) != (self._first.uidnext, self._first.risen):
            return "its changes disagree about UIDNEXT"
        if len(self._guids) + len(change.rows) > ITEMS_MAX:
            return f"it has more than {ITEMS_MAX} messages"
        return next((problem for row in change.rows if (problem := self._next(row))), None)

    def _next(self, row: Row) -> str | None:
        if row.uid <= self._last_uid:
            return "its UIDs are not in order"
        if row.guid in self._guids:
            return "it lists a GUID twice"
        if row.modseq > self._head.modseq:
            return "a message has a MODSEQ above its head's"
        if any(self._context.get(dot.origin, 0) < dot.seq for dot in row.dots()):
            return "its context does not cover one of its messages"
        self._last_uid = row.uid
        self._guids.add(row.guid)
        return None


class _Names:
    """Checks of a tree's rows against each other."""

    def __init__(self, head: NamedHead) -> None:
        self._user = head.user
        self.has_begun = False
        self._ids: set[bytes] = set()
        self._living: set[str] = set()
        self._subscriptions: set[str] = set()
        self._annotations: set[tuple[bytes, str]] = set()

    def problem(self, change: object) -> str | None:
        if not isinstance(change, TreeMerge) or change.context or not is_well_formed(change):
            return "it has a change that does not belong to a tree, or a value out of range"
        self.has_begun = True
        if not {row.user for row in change.rows()} <= {self._user}:
            return "it has a folder, a subscription or an annotation of another user"
        return (
            _add(self._ids, [folder.mailbox_id for folder in change.folders])
            or _add(self._living, [folder.name for folder in change.folders if not folder.deleted])
            or _add(self._subscriptions, [subscription.name for subscription in change.subscriptions])
            or _add(self._annotations, [(one.mailbox_id, one.name) for one in change.annotations])
        )


def _add(names: set[T], new: list[T]) -> str | None:
    count = len(names) + len(new)
    names.update(new)
    if len(names) != count:
        return "it lists a folder, a name, a subscription or an annotation twice"
    return f"it has more than {NAMES_MAX} names" if count > NAMES_MAX else None


def unpack_fields(packed: bytes, count: int | None = None) -> tuple[object, ...]:
    """Unpack a MessagePack array, of `count` fields or any number. Raises ValueError if it is none."""
    try:
        fields = msgpack.unpackb(packed, use_list=False)
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError(f"{len(packed)} bytes are not MessagePack: {error!r}") from None
    if not isinstance(fields, tuple) or (count is not None and len(fields) != count):
        raise ValueError(f"a part of it is not an array of {count or 'any number of'} fields")
    return fields


def head_from(fields: object) -> NamedHead:
    """Return a head that was packed as a tuple. Raises ValueError if it cannot be one."""
    match fields:
        case (str(user), bytes(mailbox_id), int(uidvalidity), (str(origin), int(seq)), int(modseq), int(time)):
            head = NamedHead(user, mailbox_id, uidvalidity, Dot(origin, seq), modseq, time)
            problem = why_not_head(head)
            if problem:
                raise ValueError(f"its head {problem}")
            if not _is_origin(origin):
                raise ValueError("its head is of no origin")
            return head
        case _:
            raise ValueError("its head has values of wrong types")


def _history_from(history: object) -> bytes:
    """Return the history of a head. Raises ValueError if it cannot be one."""
    if not isinstance(history, bytes) or len(history) != DIGEST_BYTES:
        raise ValueError("its history is malformed")
    return history


def context_from(fields: object) -> tuple[Dot, ...]:
    """Return a context that was packed as ordered pairs. Raises ValueError if it cannot be one."""
    dots: list[Dot] = []
    for pair in fields if isinstance(fields, tuple) and len(fields) <= LIST_MAX else (None,):
        match pair:
            case (str(origin), int(seq)) if 0 < seq < NUMBER_MAX and (not dots or origin > dots[-1].origin):
                dots.append(Dot(origin, seq))
            case _:
                raise ValueError("its context is malformed")
    if not all(_is_origin(dot.origin) for dot in dots):
        raise ValueError("its context names what is no origin")
    return tuple(dots)


def _is_origin(text: str) -> bool:
    """Return True for what links can carry as an origin."""
    return terminal("ORIGIN").fullmatch(text) is not None
