"""IMAP commands as typed values: what the parser makes and the session acts on.

Mailbox names are Unicode, INBOX in capitals; flags are as the client spelled them; texts of a SEARCH are octets.
`by_uid` marks the UID form of a command (RFC 3501 section 6.4.8), whose numbers are UIDs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.large_literal import IncomingLiteral
from replicator.imap.wire.search_keys import SearchProgram
from replicator.imap.wire.sequence_set import SequenceSet


@dataclass(frozen=True, slots=True)
class Capability:
    """RFC 3501 section 6.1.1."""


@dataclass(frozen=True, slots=True)
class Noop:
    """RFC 3501 section 6.1.2."""


@dataclass(frozen=True, slots=True)
class Logout:
    """RFC 3501 section 6.1.3."""


@dataclass(frozen=True, slots=True)
class Id:
    """RFC 2971. What a client says of itself is read and forgotten."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """RFC 3501 section 6.2.1."""


@dataclass(frozen=True, slots=True)
class Authenticate:
    """RFC 3501 section 6.2.2; `initial` is the initial response as it came, in base64 (RFC 4959)."""

    mechanism: str
    initial: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """RFC 3501 section 6.2.3."""

    user: bytes
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Namespace:
    """RFC 2342."""


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT and, if `read_only`, EXAMINE (RFC 3501 sections 6.3.1 and 6.3.2)."""

    mailbox: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """RFC 3501 section 6.3.3."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Delete:
    """RFC 3501 section 6.3.4."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Rename:
    """RFC 3501 section 6.3.5."""

    mailbox: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE and UNSUBSCRIBE (RFC 3501 sections 6.3.6 and 6.3.7)."""

    mailbox: str
    subscribed: bool = True


@dataclass(frozen=True, slots=True)
class ListMailboxes:
    """LIST and, if `subscribed`, LSUB (RFC 3501 sections 6.3.8 and 6.3.9)."""

    reference: str
    pattern: str
    subscribed: bool = False


class StatusItem(Enum):
    """What STATUS can ask for."""

    MESSAGES = "MESSAGES"
    RECENT = "RECENT"
    UIDNEXT = "UIDNEXT"
    UIDVALIDITY = "UIDVALIDITY"
    UNSEEN = "UNSEEN"
    SIZE = "SIZE"  # RFC 8438
    MAILBOXID = "MAILBOXID"  # RFC 8474 section 4.3


@dataclass(frozen=True, slots=True)
class Status:
    """RFC 3501 section 6.3.10."""

    mailbox: str
    items: tuple[StatusItem, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """RFC 3501 section 6.3.11. A large message comes in while the command is served."""

    mailbox: str
    flags: tuple[str, ...]
    received_ms: int | None
    text: bytes | IncomingLiteral = field(repr=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """RFC 2177."""


@dataclass(frozen=True, slots=True)
class Check:
    """RFC 3501 section 6.4.1."""


@dataclass(frozen=True, slots=True)
class Close:
    """RFC 3501 section 6.4.2."""


@dataclass(frozen=True, slots=True)
class Unselect:
    """RFC 3691."""


@dataclass(frozen=True, slots=True)
class Expunge:
    """RFC 3501 section 6.4.3; `uids` is UID EXPUNGE's (RFC 4315 section 2.1)."""

    uids: SequenceSet | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """RFC 3501 section 6.4.4."""

    program: SearchProgram
    by_uid: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """RFC 3501 section 6.4.5."""

    numbers: SequenceSet
    items: tuple[FetchItem, ...]
    by_uid: bool = False


class StoreAction(Enum):
    """What STORE does with the flags that it names."""

    REPLACE = "FLAGS"
    ADD = "+FLAGS"
    REMOVE = "-FLAGS"


@dataclass(frozen=True, slots=True)
class Store:
    """RFC 3501 section 6.4.6."""

    numbers: SequenceSet
    action: StoreAction
    flags: tuple[str, ...]
    silent: bool = False
    by_uid: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY and, if `remove`, MOVE (RFC 3501 section 6.4.7, RFC 6851)."""

    numbers: SequenceSet
    mailbox: str
    remove: bool = False
    by_uid: bool = False


Command = (
    Capability | Noop | Logout | Id | StartTls | Authenticate | Login | Namespace | Select | Create | Delete | Rename
    | Subscribe | ListMailboxes | Status | Append | Idle | Check | Close | Unselect | Expunge | Search | Fetch | Store
    | Copy
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tagged:
    """A command with the tag that its answer carries."""

    tag: str
    command: Command
