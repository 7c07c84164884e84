"""The interface of the node's mail that the doors (IMAP, LMTP, HTTP) use, and behind which replication works.

Every change goes to the mailbox's master, on whichever node that is; a method returns when the change is on the disks
of `durability.copies` nodes and this node shows it. UIDs name the messages that the view shows at the time of the call,
even if a merge renumbers them before the change is made. Every method has its own deadline. Cancelling is safe; the
change may or may not happen then. Errors are those of `replicator.errors`.

Folder names are Unicode (the IMAP door translates modified UTF-7), with levels separated by `/`. INBOX is always
spelled in capitals here and is created for every user on first access.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple, Protocol

from protocol.units import KIB, MIB
from protocol.values import UidSet
from replicator.errors import InvalidNameError
from replicator.mail.changed_users import ChangedUsers
from replicator.mail.folder_watch import FolderSubscription
from replicator.mail.last_changes import AnnotationChange, MailboxChanges, TreeChanges
from replicator.mail.view import MailboxView, Message
from replicator.mime.skeleton import BEGIN_BYTES, Gap, Skeleton
from replicator.users import QuotaLimits

INBOX = "INBOX"
SEPARATOR = "/"
MAX_NAME_BYTES = 1000  # of a folder's full name, which is shown in lines of the peer protocol, of IMAP and of logs
MAX_LEVELS = 32
MESSAGE_BYTES_MAX = 128 * MIB  # by LMTP and IMAP: 90 MiB of files in base64, more than large mail providers accept
SLOWEST_BYTES_S = 256 * KIB  # bytes a second: the slowest line over which large messages are supported
PAUSES_S = 30 * 60.0  # total pauses that a client may make while it sends a message


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a user. `uidvalidity` is as clients see it; `own`: that of the tree, if clients see another one."""

    user: str
    name: str
    mailbox_id: bytes
    uidvalidity: int
    own: int | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """Contents of all folders of a user, as this node shows them, and the most that they may hold (RFC 9208)."""

    storage_bytes: int
    messages: int
    limits: QuotaLimits


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """Counters of a folder (RFC 3501 section 6.3.10, RFC 8438)."""

    folder: Folder
    messages: int
    unseen: int
    uidnext: int
    highestmodseq: int
    size_bytes: int
    recent: int


class ReceivedBody(Protocol):
    """A message body received completely, valid for `MailStore.save` within the block that received it."""

    @property
    def size_bytes(self) -> int:
        """Size of the body in octets."""
        ...


class BodySink(Protocol):
    """Receiver of one message body. A large body is written to disk as it arrives."""

    async def write(self, data: bytes) -> None:
        """Take the next octets; wait for the disk if need be. Raises MailError, DiskFullError among them."""
        ...

    async def finish(self) -> ReceivedBody:
        """End the body and return it. Raises MailError."""
        ...


class BodyReader(Protocol):
    """A stored message body, wherever its octets lie."""

    @property
    def skeleton(self) -> Skeleton:
        """The message's structure: the body without its attachments. See `needs_whole` for its limits."""
        ...

    async def check(self, start: int, end: int) -> None:
        """Check that each attachment overlapping these octets can be read. Raises ContentUnavailableError.

        Only the beginning of each is read: damage further on is found when the rest is read.
        """
        ...

    def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the octets from `start` up to `end`, in pieces of at most 128 KiB. Raises ContentUnavailableError.

        The error may come after some pieces were yielded: a length already announced cannot be kept then.
        """
        ...


@dataclass(frozen=True, slots=True)
class Outliner:
    """Maker of outlines: the data of bodies that a door wants to be kept, so that it can answer without reading them.

    `outline` returns the outline of a body, or nothing if the body is always to be read. `wanted` returns the gap of
    the skeleton whose beginning the outline also needs. Both run in a thread, keep no state, and raise
    nothing. `version` rises with each change of what `outline` returns.
    """

    version: int
    outline: Callable[[Skeleton], bytes]
    wanted: Callable[[Skeleton], Gap | None]


@dataclass(frozen=True, slots=True)
class SearchTextMaker:
    """Maker of search texts: data of bodies that a door wants to be kept, so that it can search without reading them.

    `lacks_text` returns True if a skeleton lacks a part that the search text is made of. `make` returns the search text
    of a skeleton that lacks nothing; or nothing if the body is always to be read. They run in a thread, keep no state,
    and raise nothing. `version` rises with each change of what `make` returns.
    """

    version: int
    lacks_text: Callable[[Skeleton], bool]
    make: Callable[[Skeleton], bytes]


@dataclass(frozen=True, slots=True)
class MessageIdReader:
    """Reads the Message-ID of a message (RFC 5322 section 3.6.4), without its angle brackets; None if it has none.

    `of_outline` takes an outline of this `version`, `of_skeleton` any message. Both run in a thread, keep no state, and
    raise nothing.
    """

    version: int
    of_outline: Callable[[bytes], str | None]
    of_skeleton: Callable[[Skeleton], str | None]


class SearchTextSlice(NamedTuple):
    """The search texts of the first `messages` requested messages, by content hash. A message without one is read."""

    texts: Mapping[bytes, bytes]
    messages: int


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be stored. If `received_ms` is None, it is received now.

    `uid`: the UID that it has at another server; it gets this one, unless UIDNEXT is above it. `guid` is its EMAILID
    (RFC 8474); with None, one follows from the UID and the body, or, without a UID, it gets a new one. A message whose
    GUID the folder holds is not stored again.
    """

    body: bytes | ReceivedBody = field(repr=False)
    flags: frozenset[str] = frozenset()
    received_ms: int | None = None
    uid: int | None = None
    guid: bytes | None = None


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """UIDVALIDITY and UID of a stored message (RFC 4315 APPENDUID).

    If not `shown`, this node does not show the message yet and may show another one under that UID: the client must not
    be told the UID. `entry`: the name of the entry that has brought it, by which the logs of all nodes call it.
    """

    uidvalidity: int
    uid: int
    shown: bool = True
    entry: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CopiedMessages:
    """Pairs (source UID as the caller named it, destination UID), ascending by source (RFC 4315 COPYUID).

    `shown` as in `SavedMessage`.
    """

    uidvalidity: int
    uids: tuple[tuple[int, int], ...]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class StoreResult:
    """UIDs that UNCHANGEDSINCE protected from the change, or that were gone by then (RFC 7162 section 3.1.3)."""

    refused: UidSet


class MailStore(Protocol):
    """The node's mail, as doors see it.

    Any method raises NotReadyError while this node lacks the cluster's state that it needs.
    """

    async def wait_ready(self) -> None:
        """Return if this node serves clients now or soon. Raises NotReadyError otherwise: log-ins are refused."""
        ...

    async def folders(self, user: str) -> Sequence[Folder]:
        """Return all folders of the user: INBOX first, the rest by name."""
        ...

    async def folder(self, user: str, name: str) -> Folder:
        """Return one folder, creating INBOX if needed. Raises FolderNotFoundError."""
        ...

    async def subscriptions(self, user: str) -> Sequence[str]:
        """Return the names that the user has subscribed to, in their order; the folders need not exist."""
        ...

    async def annotations(self, user: str, folder: Folder | None) -> Mapping[str, bytes]:
        """Return the annotations of a folder or, with None, of the user's account: values by names, in their order."""
        ...

    async def annotated(self, user: str, name: str) -> Mapping[bytes, bytes]:
        """Return the values of one annotation of all the user's folders that have it, by mailbox ids."""
        ...

    async def annotate(self, user: str, folder: Folder | None, values: Mapping[str, bytes | None]) -> None:
        """Set annotations of a folder or, with None, of the user's account; a value of None removes one.

        All are changed or none. Raises FolderNotFoundError, InvalidNameError, MailboxFullError.
        """
        ...

    async def create_folder(self, user: str, name: str, use: str | None = None) -> Folder:
        """Create a folder, with these special uses (RFC 6154), and its missing parents.

        Raises FolderExistsError, InvalidNameError, MailboxFullError.
        """
        ...

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        """Rename a folder with all folders below it. INBOX itself stays, empty: its mail moves to the new name.

        Raises FolderNotFoundError, FolderExistsError, InvalidNameError.
        """
        ...

    async def delete_folder(self, user: str, name: str) -> None:
        """Delete the folder and its mail; folders below it stay. Raises FolderNotFoundError, InvalidNameError."""
        ...

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """Set or clear a subscription. Raises InvalidNameError."""
        ...

    async def catch_up(self, user: str, name: str | None = None) -> bool:
        """Wait until this node shows what clients of the nodes in reach have heard OK for.

        That is: the user's folders, and the mail of the folder of this name, if there is one. Return False if it is not
        here after a short while.
        """
        ...

    async def watch_folders(self, user: str) -> FolderSubscription:
        """Watch the user's folders, subscriptions and counters of folders from now on. The caller closes it.

        No mailbox is loaded for that.
        """
        ...

    async def status(self, folder: Folder) -> FolderStatus:
        """Return the folder's counters without loading the mailbox."""
        ...

    async def quota(self, user: str) -> Quota:
        """Return usage and limits of the user's mail. Looks at all folders at the first call for a user only."""
        ...

    async def check_quota(self, user: str, messages: int, size_bytes: int) -> None:
        """Raise QuotaExceededError if the user has no room for messages that a client is about to send."""
        ...

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        """Return the live view of a mailbox, kept in memory at least while it has subscribers or references."""
        ...

    async def claim_recent(self, view: MailboxView) -> int:
        r"""Return the UID at and above which messages are `\Recent` in this session, and in no later session.

        Each node counts on its own: RFC 9051 has dropped `\Recent`, and a cluster-wide guarantee is not worth a round
        trip.
        """
        ...

    def receive(self) -> AbstractAsyncContextManager[BodySink]:
        """Receive one body of any size. Whatever was not saved within the block is discarded on leaving it."""
        ...

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """Store one message.

        Raises FolderNotFoundError if the folder was deleted meanwhile, QuotaExceededError, and storage errors.
        """
        ...

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """Store one message in the user's INBOX, creating INBOX if needed. Raises as `save`."""
        ...

    async def save_all(self, folder: Folder, messages: Sequence[NewMessage]) -> Sequence[SavedMessage]:
        """Store these messages in their order, all or none. Raises as `save`."""
        ...

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """Copy the messages that exist, all or none. If there are none, the result has no pairs.

        Raises FolderNotFoundError, QuotaExceededError, and storage errors.
        """
        ...

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """Copy the messages, then expunge the copied ones (RFC 6851): an interruption leaves two copies, never none.

        No quota is in its way.
        """
        ...

    async def store_flags(
        self,
        mailbox: MailboxView,
        uids: UidSet,
        *,
        added: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
        unchanged_since: int | None = None,
    ) -> StoreResult:
        """Set and clear flags of the messages that exist."""
        ...

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        """Remove the messages that exist, whatever their flags."""
        ...

    async def read_body(self, message: Message) -> BodyReader:
        """Return the message's body, byte for byte as received. Raises ContentUnavailableError."""
        ...

    async def read_bodies(self, messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
        """Return bodies of the first of these messages, by content hash, together at most so many octets.

        Each thread switch costs more than reading a small body, so small ones are read together. Those that are left
        out, such as large ones, are for `read_body`.
        """
        ...

    async def outlines(self, messages: Iterable[Message], version: int) -> Mapping[bytes, bytes]:
        """Return the outlines of this version that this node has for these messages, by content hash.

        A message without one must be read.
        """
        ...

    async def search_texts(self, messages: Sequence[Message]) -> SearchTextSlice:
        """Return the search texts that this node has for the first of these messages: for as many as fit in memory."""
        ...


class CoreMailStore(MailStore, Protocol):
    """A `MailStore`, and what imports and Dovecot's dsync need besides: to keep what clients know of a mailbox.

    Design section 3, "Numbers of another server", has the rules.
    """

    async def raise_numbers(self, folder: Folder, uidnext: int, modseq: int) -> None:
        """Raise a folder's UIDNEXT and HIGHESTMODSEQ to at least these. UIDs that are left out are never used.

        HIGHESTMODSEQ is to be raised before mail and flags come: clients ask for the changes above it. Raises
        FolderNotFoundError, MailboxFullError; UnavailableError also while a neighbour runs a version that does not know
        raised numbers.
        """
        ...

    async def renumber(self, mailbox: MailboxView, wanted: Mapping[int, int]) -> None:
        """Give messages, by the UIDs that the view shows, other UIDs; each keeps its GUID, and has a new placement.

        A message whose new UID is below UIDNEXT gets the next one; the order of UIDs is that of the old ones. One that
        has another UID by then keeps that. Raises as `raise_numbers` does.
        """
        ...

    async def know_as(self, folder: Folder, guid: bytes) -> None:
        """Let Dovecots know a folder by a GUID of theirs, which stands for one folder of the user at a time.

        Raises FolderNotFoundError, MailboxFullError; UnavailableError as `raise_numbers` does.
        """
        ...

    def watch_users(self) -> ChangedUsers:
        """Watch which users' mail changes from now on, until the node ends."""
        ...

    def has_seen(self, entry: str) -> bool:
        """Return True if the entry with this name, `ORIGIN:SEQ`, is or was in this node's log."""
        ...

    async def users_after(self, user: str, most: int) -> Sequence[str]:
        """Return the next users with mail or folders here whose names come after this one, in their order."""
        ...

    async def tree_changes(self, user: str) -> TreeChanges:
        """Return the user's folders and subscriptions, and what was deleted of them, each with its last change."""
        ...

    async def annotation_changes(self, user: str, folder: Folder | None) -> Sequence[AnnotationChange]:
        """Return annotations as `annotations` does, removed ones included, each with its last change."""
        ...

    async def mailbox_changes(self, folder: Folder, above: int) -> MailboxChanges:
        """Return which messages this node remembers as expunged, and flags of messages with a MODSEQ above this one."""
        ...

    async def keep_uidvalidity(self, folder: Folder, uidvalidity: int | None) -> Folder:
        """Give a folder that never had mail the UIDVALIDITY of another server; with None, its own again. Return it.

        Raises FolderNotFoundError, InvalidNameError; FolderExistsError if the folder has had mail, or another folder of
        the user has had the UIDVALIDITY. Raises UnavailableError as `raise_numbers` does.
        """
        ...


async def read_all(body: BodyReader) -> bytes:
    """Return a whole body in memory. Raises ContentUnavailableError."""
    whole = BytesIO()  # takes pieces as they come, and gives its octets away: nothing copies all of them at once
    async with aclosing(body.read(0, body.skeleton.size_bytes)) as chunks:
        async for chunk in chunks:
            whole.write(chunk)
    return whole.getvalue()


async def read_begin(body: BodyReader, gap: Gap) -> Skeleton:
    """Return the body's skeleton with the beginning of a gap. Raises ContentUnavailableError."""
    begin, start = bytearray(), body.skeleton.start(gap.at)
    async with aclosing(body.read(start, start + min(gap.size_bytes, BEGIN_BYTES))) as chunks:
        async for chunk in chunks:
            begin += chunk
    return body.skeleton.knowing(gap, bytes(begin))


def needs_whole(body: BodyReader, *, with_structure: bool) -> bool:
    """Return True if the skeleton lacks what is needed, so that the whole body must be read.

    A skeleton lacks the structure of a message with thousands of small parts, and the header if that is huge.
    """
    skeleton = body.skeleton
    return skeleton.lacks_header or (with_structure and skeleton.header_only)


def sending_s(size_bytes: int) -> float:
    """Return the seconds that a client may take to send a message of that size, with pauses and on a slow line."""
    return PAUSES_S + size_bytes / SLOWEST_BYTES_S


def canonical_name(name: str) -> str:
    """Return the name with INBOX in capitals, also as the first level of a name (RFC 9051 section 5.1)."""
    first, separator, rest = name.partition(SEPARATOR)
    return INBOX + separator + rest if first.upper() == INBOX else name


def check_folder_name(name: str) -> None:
    """Raise InvalidNameError for a name that no folder can have."""
    levels = name.split(SEPARATOR)
    if not all(levels):
        raise InvalidNameError("a folder name has no empty levels")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in name):
        raise InvalidNameError("a folder name has no control characters")
    if len(levels) > MAX_LEVELS or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidNameError(f"a folder name has at most {MAX_LEVELS} levels and {MAX_NAME_BYTES} bytes")
    if name != INBOX and levels[0].upper() == INBOX and levels[0] != INBOX:
        raise InvalidNameError("INBOX is spelled in capitals")


def check_new_name(name: str) -> None:
    """Raise InvalidNameError for a new name that is not Net-Unicode (RFC 6855 section 3, RFC 9051 section 5.1).

    Folders that have such a name already stay as they are.
    """
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidNameError("a new folder's name must be in Unicode's normal form C: letters with their accents")
    if any(unicodedata.category(character) in {"Zl", "Zp"} for character in name):
        raise InvalidNameError("a folder name has no line or paragraph separators")
