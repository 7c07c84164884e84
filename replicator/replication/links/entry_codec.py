"""Converts log entries and errors to protocol commands and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import assert_never

from protocol.commands import (
    Annotate,
    Copy,
    Create,
    Delete,
    EntryCommand,
    EntryHeader,
    Expunge,
    Merge,
    Parts,
    Raise,
    RefusalCode,
    Refused,
    Remote,
    Rename,
    Save,
    Store,
    Subscribe,
    Text,
)
from protocol.stream_codec import ProtocolError
from protocol.values import Dot, UidSet
from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidNameError,
    MailboxFullError,
    MailError,
    UnavailableError,
)
from replicator.mail.annotations import BYTES_AT_ONCE_MAX
from replicator.store.bodies.body_rows import StoredBody, memory_of, size_of
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged
from resync import entry as entries
from resync.entry import (
    Change,
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
    tree_id,
)

MAX_CHANGES = 100_000  # of one entry: enough for a mailbox that is copied by one command
MAX_ENTRY_BYTES = 66 << 20  # of the message bodies of one entry: a large message, or several small ones

ANNOTATE_BYTES_MAX = 2 * BYTES_AT_ONCE_MAX  # packed

HEAVY_ROWS = 1000  # of a merge, or changes: a digest of so many takes 2 ms
HEAVY_BYTES = 64 << 10  # of a merge's rows: to unpack so many takes 5 ms

CHANGED_ON_THE_WAY = "the connection changes what it carries, or a node is faulty"

_ERRORS: dict[str, type[MailError]] = {
    RefusalCode.NOT_FOUND: FolderNotFoundError,
    RefusalCode.EXISTS: FolderExistsError,
    RefusalCode.INVALID: InvalidNameError,
    RefusalCode.UNAVAILABLE: UnavailableError,
    RefusalCode.DURABILITY: DurabilityError,
    RefusalCode.DISK_FULL: DiskFullError,
    RefusalCode.LIMIT: MailboxFullError,
    RefusalCode.NO_CONTENT: ContentUnavailableError,
}
_CODES = {error: code for code, error in _ERRORS.items()}


def refusal(error: MailError) -> Refused:
    """Return the reply that reports an error."""
    return Refused(_CODES.get(type(error), RefusalCode.UNAVAILABLE), str(error))


def error_of(refused: Refused) -> MailError:
    """Return the error that a reply reports."""
    return _ERRORS.get(refused.code, UnavailableError)(refused.text)


def is_heavy(entry: Entry) -> bool:
    """Return True if `entry_commands` takes more than some milliseconds, mostly for the digest."""
    rows = sum(len(change.rows) for change in entry.changes if isinstance(change, entries.Merge))
    return len(entry.changes) + rows > HEAVY_ROWS


def is_heavy_to_add(command: EntryCommand) -> bool:
    """Return True if `EntryAssembler.add` takes more than some milliseconds: for rows, or for the entry's digest."""
    packed = command.rows if isinstance(command, Merge) else command.values if isinstance(command, Annotate) else b""
    if len(packed) > HEAVY_BYTES:
        return True
    header = command.entry
    return header is not None and header.changes > HEAVY_ROWS and header.change + 1 == header.changes


def entry_commands(logged: Logged, number: Callable[[MailboxKey], int]) -> Iterator[EntryCommand]:
    """Yield one command for each change of an entry. `number` returns the mailbox's number on the link."""
    entry = logged.entry
    key = MailboxKey.of(entry)
    mailbox = 0 if entry.is_tree else number(key)
    digest = entry.digest()
    for at, change in enumerate(entry.changes):
        header = _header(entry, digest, at)
        match change:
            case MailAdd():
                yield _add_command(change, logged.bodies.get(change.content_hash), mailbox, header)
            case MailDel(uids):
                yield Expunge(mailbox, uids, entry=header)
            case FlagAdd(uids, flags):
                yield Store(mailbox, uids, flags, (), entry=header)
            case FlagDel(uids, flags):
                yield Store(mailbox, uids, (), flags, entry=header)
            case entries.Merge() | entries.TreeMerge():
                yield Merge(mailbox or number(key), header, entries.pack_change(change))
            case entries.Raise(uidnext):
                yield Raise(mailbox, uidnext, entry=header)
            case FolderCreate(mailbox_id, name, uidvalidity):
                yield Create(entry.user, name, mailbox_id, uidvalidity, header)
            case FolderRename(mailbox_id, name):
                yield Rename(entry.user, mailbox_id, name, header)
            case FolderDelete(mailbox_id):
                yield Delete(entry.user, mailbox_id, header)
            case FolderSubscribe(name, subscribed):
                yield Subscribe(entry.user, name, subscribed, header)
            case FolderAnnotate(mailbox_id, values):
                yield Annotate(entry.user, mailbox_id, entries.pack_values(values), header)


def remote_command(entry: Entry, number: Callable[[MailboxKey], int], name: str) -> Remote:
    """Return the REMOTE for an entry that is in the object store under this name."""
    mailbox = number(MailboxKey.of(entry))
    return Remote(mailbox, _header(entry, entry.digest(), 0), name)


def _header(entry: Entry, digest: bytes, change: int) -> EntryHeader:
    return EntryHeader(
        entry.dot, entry.predecessors, entry.time, entry.modseq, digest, change, len(entry.changes), entry.histories,
        entry.dated,
    )  # fmt: skip


def message_of(stored: StoredBody) -> Text | Parts:
    """Return a message's body as a SAVE brings it."""
    message = stored.message
    return message if isinstance(message, Parts) else Text(stored.content_hash, message)


def _add_command(add: MailAdd, body: StoredBody | None, mailbox: int, header: EntryHeader) -> Save | Copy:
    if body is not None and not add.copied:
        return Save((mailbox,), add.received_ms, add.guid, add.flags, message_of(body), add.uid, header)
    return Copy(
        source=0, destination=mailbox, source_uids=UidSet(), guids=(add.guid,), received_ms=add.received_ms,
        flags=add.flags, uid=add.uid, content_hash=add.content_hash, size=add.size_bytes, entry=header,
    )  # fmt: skip


@dataclass(slots=True)
class Arrived:
    """A complete entry with its message bodies: `bodies` can be stored, `large` have yet to get their attachments.

    The receiver sets `arrived_s`, a time of trio's clock.
    """

    entry: Entry
    bodies: list[StoredBody] = field(repr=False)
    large: list[Parts] = field(default_factory=list, repr=False)
    arrived_s: float = -inf

    @property
    def dot(self) -> Dot:
        """The entry's dot."""
        return self.entry.dot

    def completed(self, taken: Mapping[bytes, StoredBody]) -> Arrived:
        """Return the entry with those large bodies that could be obtained (`taken`: content hash -> body).

        The changes of the other messages become like those of a COPY, without a body.
        """
        bodies = [*self.bodies, *(taken[parts.content_hash] for parts in self.large if parts.content_hash in taken)]
        lost = {parts.content_hash for parts in self.large} - taken.keys()
        changes = (
            change._replace(copied=True) if isinstance(change, MailAdd) and change.content_hash in lost else change
            for change in self.entry.changes
        )
        return Arrived(replace(self.entry, changes=tuple(changes)) if lost else self.entry, bodies)

    @property
    def memory_bytes(self) -> int:
        """Memory that the bodies take, in octets."""
        return sum(body.memory_bytes for body in self.bodies) + sum(map(memory_of, self.large))


@dataclass(frozen=True, slots=True)
class Announced:
    """An entry that is to be read from the object store."""

    header: EntryHeader
    key: MailboxKey

    @property
    def dot(self) -> Dot:
        """The entry's dot."""
        return self.header.dot

    @property
    def memory_bytes(self) -> int:
        """Memory that bodies take, in octets: none came."""
        return 0

    def entry(self, changes: tuple[Change, ...]) -> Entry:
        """Return the entry with these changes. Raises ValueError if it is not the entry that was announced."""
        entry = _entry(self.header, self.key, changes)
        if entry.digest() != self.header.digest:
            raise ValueError(f"the object of {self.dot} holds another entry than announced")
        return entry


def _entry(header: EntryHeader, key: MailboxKey, changes: tuple[Change, ...]) -> Entry:
    return Entry(
        header.dot, header.predecessors, header.time, header.modseq, *key, changes, header.histories, header.dated
    )


class EntryAssembler:
    """An assembler of entries from the commands of one link. An entry's commands follow each other directly."""

    def __init__(self, key_of: Callable[[int], MailboxKey]) -> None:
        self._key_of = key_of
        self._header: EntryHeader | None = None
        self._key: MailboxKey | None = None
        self._changes: list[Change] = []
        self._bodies: list[StoredBody] = []
        self._large: list[Parts] = []
        self._memory_bytes = 0

    def add(self, command: EntryCommand) -> Arrived | None:
        """Add the next command; return the entry if this was its last command. Raises ProtocolError."""
        header = command.entry
        if header is None:
            raise ProtocolError(f"a {type(command).__name__.upper()} without a tag must carry an entry")
        key = self._mailbox(command)
        if header.change == 0:
            self._begin(header, key)
        elif self._header is None or (header.dot, header.change) != (self._header.dot, len(self._changes)):
            raise ProtocolError(f"entry {header.dot}: change {header.change} arrived out of order")
        if key != self._key:
            raise ProtocolError(f"entry {header.dot}: its changes belong to different mailboxes")
        self._changes.append(self._change(command))
        if len(self._changes) < header.changes:
            return None
        self._header = None
        entry = _entry(header, key, tuple(self._changes))
        if entry.digest() != header.digest:
            origin, seq = header.dot
            raise ProtocolError(f"entry {seq} of {origin} does not match its digest: {CHANGED_ON_THE_WAY}")
        return Arrived(entry, self._bodies, self._large)

    def announce(self, remote: Remote) -> Announced:
        """Take an entry that comes as a REMOTE instead of command by command. Raises ProtocolError."""
        key = self._mailbox(remote)
        if remote.entry.change != 0:
            raise ProtocolError(f"entry {remote.entry.dot}: a REMOTE must announce change 0, not {remote.entry.change}")
        self._begin(remote.entry, key)
        self._header = None
        return Announced(remote.entry, key)

    def _begin(self, header: EntryHeader, key: MailboxKey) -> None:
        if self._header is not None:
            raise ProtocolError(f"entry {self._header.dot} was interrupted by {header.dot}")
        if not 0 < header.changes <= MAX_CHANGES:
            raise ProtocolError(f"entry {header.dot} has {header.changes} changes; it must have 1 to {MAX_CHANGES}")
        self._header, self._key = header, key
        self._changes, self._bodies, self._large, self._memory_bytes = [], [], [], 0

    def expect_whole(self) -> None:
        """Raise ProtocolError if other entries come before the last command of an entry."""
        if self._header is not None:
            raise ProtocolError(f"entry {self._header.dot} was interrupted by ENTRIES")

    def _mailbox(self, command: EntryCommand | Remote) -> MailboxKey:
        match command:
            case Create() | Rename() | Delete() | Subscribe() | Annotate():
                return MailboxKey(command.user, tree_id(command.user), 0)
            case Save(mailboxes=(number,)):
                pass
            case Save():
                raise ProtocolError("a SAVE that carries an entry must name one mailbox")
            case Copy():
                number = command.destination
            case Expunge() | Store() | Raise() | Merge() | Remote():
                number = command.mailbox
            case _:
                assert_never(command)
        return self._key_of(number)

    def _take(self, message: Text | Parts) -> int:
        """Keep a message's body and return its size in octets.

        Raises ProtocolError if the body does not match its hash, or the entry's bodies are too large together.
        """
        came = message.octets if isinstance(message, Text) else message
        self._memory_bytes += memory_of(came)
        if self._memory_bytes > MAX_ENTRY_BYTES:
            raise ProtocolError(f"the bodies of one entry exceed {MAX_ENTRY_BYTES} bytes")
        if isinstance(came, Parts):
            self._large.append(came)
        else:
            stored = StoredBody.of(came)
            if stored.content_hash != message.content_hash:
                raise ProtocolError(f"a message does not match its hash: {CHANGED_ON_THE_WAY}")
            self._bodies.append(stored)
        return size_of(came)

    def _change(self, command: EntryCommand) -> Change:
        match command:
            case Save(uid=int(uid), message=message):
                return MailAdd(
                    uid, command.guid, command.received_ms, command.flags, self._take(message), message.content_hash,
                    copied=False,
                )  # fmt: skip
            case Copy(guids=(guid,), uid=int(uid), content_hash=bytes(digest), size=int(size)):
                return MailAdd(uid, guid, command.received_ms, command.flags, size, digest, copied=True)
            case Expunge():
                return MailDel(command.uids)
            case Store(added=added, removed=()):
                return FlagAdd(command.uids, added)
            case Store(added=(), removed=removed):
                return FlagDel(command.uids, removed)
            case Raise(modseq=None):
                return entries.Raise(command.uidnext)
            case Merge():
                return _unpacked(command.rows)
            case Create() | Rename() | Delete() | Subscribe() | Annotate():
                return _tree_change(command)
            case _:
                raise ProtocolError(
                    f"a {type(command).__name__.upper()} that carries an entry lacks values that the master assigns"
                )


def _tree_change(command: Create | Rename | Delete | Subscribe | Annotate) -> Change:
    match command:
        case Create():
            return FolderCreate(command.mailbox_id, command.name, command.uidvalidity)
        case Rename():
            return FolderRename(command.mailbox_id, command.name)
        case Delete():
            return FolderDelete(command.mailbox_id)
        case Subscribe():
            return FolderSubscribe(command.name, command.subscribed)
        case Annotate():
            return FolderAnnotate(command.mailbox_id, values_of(command))


def values_of(annotate: Annotate) -> tuple[tuple[str, bytes | None], ...]:
    """Return the values of an ANNOTATE. Raises ProtocolError."""
    if len(annotate.values) > ANNOTATE_BYTES_MAX:
        raise ProtocolError(f"an ANNOTATE of {len(annotate.values)} bytes; the limit is {ANNOTATE_BYTES_MAX}")
    try:
        return entries.unpack_values(annotate.values)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _unpacked(packed: bytes) -> Change:
    try:
        change = entries.unpack_change(packed)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if not isinstance(change, entries.Merge | entries.TreeMerge):
        raise ProtocolError(f"a MERGE cannot hold a {type(change).__name__}")
    return change
