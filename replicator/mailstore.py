r"""What the doors may ask of the node: the one interface between IMAP, LMTP, HTTP and replication.

Every change goes to the mailbox's master, wherever that is; a method returns when the change is on the disks of
`durability.copies` nodes and this node shows it. What is named by UID means the messages that the view shows at the
time of the call, also if a merge gives them other UIDs before the change is made. Everything here has a deadline
inside; cancelling is safe, and then the change may or may not happen. Errors are those of `replicator.errors`.

Folder names are Unicode (the IMAP door translates modified UTF-7), levels separated by `/`; INBOX is always
spelled in capitals here and exists for every user from the first time that anyone asks.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Protocol

from protocol.units import KIB, MIB
from protocol.values import UidSet
from replicator.errors import InvalidNameError
from replicator.mime.skeleton import Skeleton
from replicator.view import MailboxView, Message

INBOX = "INBOX"
SEPARATOR = "/"
MAX_NAME_BYTES = 1000  # of a folder's whole name: shown in lines of the wire, of IMAP and of logs
MAX_LEVELS = 32
MESSAGE_BYTES_MAX = 128 * MIB  # by LMTP and IMAP: 90 MiB of files in base64, more than large mail providers accept
SLOWEST_BYTES_S = 256 * KIB  # a second, of a line that large messages cross
PAUSES_S = 30 * 60.0  # that a client may make while it sends one


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a user."""

    user: str
    name: str
    mailbox_id: bytes
    uidvalidity: int


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


class ReceivedText(Protocol):
    """A message text that has come in whole; good for `MailStore.save` within the block that received it."""

    @property
    def size_bytes(self) -> int:
        """Octets of the text."""
        ...


class TextSink(Protocol):
    """A message text on its way in. What is large goes to disk as it comes."""

    async def write(self, data: bytes) -> None:
        """Take the next octets; wait while the disk does. Raises MailError, DiskFullError among them."""
        ...

    async def finish(self) -> ReceivedText:
        """That was all. Raises MailError."""
        ...


class Text(Protocol):
    """A message text that is kept, wherever its octets lie."""

    @property
    def skeleton(self) -> Skeleton:
        """Its structure: all of it but its attachments; see `needs_whole` for what it does not tell."""
        ...

    async def check(self, start: int, end: int) -> None:
        """See whether each part can be read of which some of these octets are. Raises ContentUnavailableError.

        The beginnings are read: what is damaged further on shows when it is read.
        """
        ...

    def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Octets from `start` up to `end`, in chunks of at most 128 KiB. Raises ContentUnavailableError.

        That may come late, after some chunks: a length that was promised cannot be kept then.
        """
        ...


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be stored. `received_ms` None: now."""

    text: bytes | ReceivedText = field(repr=False)
    flags: frozenset[str] = frozenset()
    received_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """Where a message went (RFC 4315 APPENDUID).

    Not `shown`: this node does not show it yet, and may show another one under that UID. No client is to be told.
    """

    uidvalidity: int
    uid: int
    shown: bool = True


@dataclass(frozen=True, slots=True)
class CopiedMessages:
    """Pairs (source UID as it was named, destination UID), ascending by source (RFC 4315 COPYUID).

    Not `shown`: as for `SavedMessage`.
    """

    uidvalidity: int
    uids: tuple[tuple[int, int], ...]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class StoreResult:
    """UIDs that UNCHANGEDSINCE kept from changing, or that had gone by then (RFC 7162 section 3.1.3)."""

    refused: UidSet


class MailStore(Protocol):
    """The node's mail, as doors see it.

    Anything here raises NotReadyError where this node does not have yet what the cluster has.
    """

    async def wait_ready(self) -> None:
        """Return if this node serves anybody, be it soon; else raises NotReadyError: log-ins are refused."""
        ...

    async def folders(self, user: str) -> Sequence[Folder]:
        """All folders of the user, INBOX first, the rest by name."""
        ...

    async def folder(self, user: str, name: str) -> Folder:
        """One folder. INBOX is created if need be. Raises FolderNotFoundError."""
        ...

    async def subscriptions(self, user: str) -> frozenset[str]:
        """Names that the user has subscribed to; the folders need not exist."""
        ...

    async def create_folder(self, user: str, name: str) -> Folder:
        """Create, with missing parents. Raises FolderExistsError, InvalidNameError."""
        ...

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        """Rename with all folders below it. INBOX's mail moves to the new name and INBOX is empty afterwards.

        Raises FolderNotFoundError, FolderExistsError, InvalidNameError.
        """
        ...

    async def delete_folder(self, user: str, name: str) -> None:
        """Delete the folder and its mail; folders below it stay. Raises FolderNotFoundError, InvalidNameError."""
        ...

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """Set or clear a subscription. Raises InvalidNameError."""
        ...

    async def status(self, folder: Folder) -> FolderStatus:
        """Counters, without loading the mailbox."""
        ...

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        """The live view of a mailbox. Held in memory at least while it has subscribers or is referred to."""
        ...

    async def claim_recent(self, folder: Folder) -> int:
        r"""Messages with UIDs at or above the answer are `\Recent` in this session and in no later one.

        Counted at each node on its own: RFC 9051 has dropped `\Recent`, and a promise over all nodes is not worth a
        round trip.
        """
        ...

    def receive(self) -> AbstractAsyncContextManager[TextSink]:
        """Take in one text of any size. What was not saved within the block is forgotten on leaving it."""
        ...

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """Store one message. Raises FolderNotFoundError if the folder was deleted meanwhile, and storage errors."""
        ...

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """Copy those of the messages that exist, all or none; nothing to copy gives no pairs."""
        ...

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """Copy, then expunge from the source what was copied (RFC 6851): an interruption leaves two, never none."""
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
        """Set and clear flags of those of the messages that exist."""
        ...

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        """Remove those of the messages that exist, whatever their flags."""
        ...

    async def read_text(self, message: Message) -> Text:
        """The message text, byte for byte as it came. Raises ContentUnavailableError."""
        ...


async def read_all(text: Text) -> bytes:
    """A text as a whole, for those who must have it in memory. Raises ContentUnavailableError."""
    async with aclosing(text.read(0, text.skeleton.size_bytes)) as chunks:
        return b"".join([chunk async for chunk in chunks])


def needs_whole(text: Text, *, with_structure: bool) -> bool:
    """Whether only the whole text tells the structure, as of thousands of small parts; or the header, of a huge one."""
    skeleton = text.skeleton
    return skeleton.lacks_header or (with_structure and skeleton.header_only)


def sending_s(size_bytes: int) -> float:
    """How long a client may take to send a message of that size, with pauses and on a slow line."""
    return PAUSES_S + size_bytes / SLOWEST_BYTES_S


def canonical_name(name: str) -> str:
    """INBOX is the same in any case (RFC 9051 section 5.1); so is it above folders of its own."""
    first, separator, rest = name.partition(SEPARATOR)
    return INBOX + separator + rest if first.upper() == INBOX else name


def check_folder_name(name: str) -> None:
    """Raises InvalidNameError for a name that no folder can have."""
    levels = name.split(SEPARATOR)
    if not all(levels):
        raise InvalidNameError("a folder name has no empty levels")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in name):
        raise InvalidNameError("a folder name has no control characters")
    if len(levels) > MAX_LEVELS or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidNameError(f"a folder name has at most {MAX_LEVELS} levels and {MAX_NAME_BYTES} bytes")
    if name != INBOX and levels[0].upper() == INBOX and levels[0] != INBOX:
        raise InvalidNameError("INBOX is spelled in capitals")
