"""IMAP commands as typed values: the parser's output and the session's input.

Mailbox names are Unicode, INBOX in capitals; flags are spelled as by the client; texts of a SEARCH are octets. `by_uid`
marks the UID form of a command (RFC 3501 section 6.4.8), whose numbers are UIDs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from protocol.values import UidSet
from replicator.imap.wire.event_groups import EventGroup
from replicator.imap.wire.fetch_items import FetchItem
from replicator.imap.wire.large_literal import IncomingLiteral
from replicator.imap.wire.search_keys import Returns, SearchProgram
from replicator.imap.wire.sequence_set import MessageSet
from replicator.imap.wire.sort_keys import SortCriterion


@dataclass(frozen=True, slots=True)
class Capability:
    """CAPABILITY (RFC 3501 section 6.1.1)."""


@dataclass(frozen=True, slots=True)
class Noop:
    """NOOP (RFC 3501 section 6.1.2)."""


@dataclass(frozen=True, slots=True)
class Logout:
    """LOGOUT (RFC 3501 section 6.1.3)."""


@dataclass(frozen=True, slots=True)
class Id:
    """ID (RFC 2971). The client's parameters are parsed and ignored."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """STARTTLS (RFC 3501 section 6.2.1)."""


@dataclass(frozen=True, slots=True)
class Compress:
    """COMPRESS (RFC 4978 section 3)."""

    mechanism: str


@dataclass(frozen=True, slots=True)
class Authenticate:
    """AUTHENTICATE (RFC 3501 section 6.2.2); `initial` is the initial response in base64, as received (RFC 4959)."""

    mechanism: str
    initial: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """LOGIN (RFC 3501 section 6.2.3)."""

    user: bytes
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Namespace:
    """NAMESPACE (RFC 2342)."""


@dataclass(frozen=True, slots=True)
class Enable:
    """ENABLE (RFC 5161), with the names of extensions in capitals."""

    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatchData:
    """Some sequence numbers with the UIDs that the client knows for them (RFC 7162 section 3.2.5.2), both ascending."""

    numbers: UidSet
    uids: UidSet


@dataclass(frozen=True, slots=True)
class Resync:
    """The QRESYNC parameter of SELECT (RFC 7162 section 3.2.5): what the client knows from an earlier session."""

    uidvalidity: int
    modseq: int
    known: UidSet | None = None
    sample: MatchData | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT and, if `read_only`, EXAMINE (RFC 3501 sections 6.3.1 and 6.3.2), with the parameters of RFC 7162."""

    mailbox: str
    read_only: bool = False
    condstore: bool = False
    resync: Resync | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """CREATE (RFC 3501 section 6.3.3), with special uses (RFC 6154 section 3)."""

    mailbox: str
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE (RFC 3501 section 6.3.4)."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Rename:
    """RENAME (RFC 3501 section 6.3.5)."""

    mailbox: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE and UNSUBSCRIBE (RFC 3501 sections 6.3.6 and 6.3.7)."""

    mailbox: str
    subscribed: bool = True


class StatusItem(Enum):
    """Items that STATUS can ask for."""

    MESSAGES = "MESSAGES"
    RECENT = "RECENT"
    UIDNEXT = "UIDNEXT"
    UIDVALIDITY = "UIDVALIDITY"
    UNSEEN = "UNSEEN"
    SIZE = "SIZE"  # RFC 8438
    MAILBOXID = "MAILBOXID"  # RFC 8474 section 4.3
    HIGHESTMODSEQ = "HIGHESTMODSEQ"  # RFC 7162 section 3.1.7
    DELETED = "DELETED"  # RFC 9208 section 4.1.4, like the next one
    DELETED_STORAGE = "DELETED-STORAGE"
    APPENDLIMIT = "APPENDLIMIT"  # RFC 7889 section 3.2: the same for all mailboxes


class ListSelection(Enum):
    """Selection options of LIST (RFC 5258 section 3.1, RFC 6154 section 2)."""

    SUBSCRIBED = "SUBSCRIBED"
    REMOTE = "REMOTE"
    RECURSIVEMATCH = "RECURSIVEMATCH"
    SPECIAL_USE = "SPECIAL-USE"


LIST_CRITERIA = frozenset({ListSelection.SUBSCRIBED, ListSelection.SPECIAL_USE})
"""The options that folders can meet; RFC 5258 section 6 calls them list-select-base-opt."""


class ListReturn(Enum):
    """Return options of LIST (RFC 5258 section 3.2, RFC 6154 section 2)."""

    SUBSCRIBED = "SUBSCRIBED"
    CHILDREN = "CHILDREN"
    SPECIAL_USE = "SPECIAL-USE"


@dataclass(frozen=True, slots=True)
class ListMailboxes:
    """LIST (RFC 3501 section 6.3.8, RFC 5258). If not `extended`, it has the syntax of RFC 3501.

    `status`: what to tell of each folder (RFC 5819).
    """

    reference: str
    patterns: tuple[str, ...]
    selection: frozenset[ListSelection] = frozenset()
    returned: frozenset[ListReturn] = frozenset()
    status: tuple[StatusItem, ...] = ()
    extended: bool = False


@dataclass(frozen=True, slots=True)
class ListSubscriptions:
    """LSUB (RFC 3501 section 6.3.9)."""

    reference: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Status:
    """STATUS (RFC 3501 section 6.3.10)."""

    mailbox: str
    items: tuple[StatusItem, ...]


@dataclass(frozen=True, slots=True)
class Notify:
    """NOTIFY (RFC 5465 section 3.1). NOTIFY NONE has no groups. `status`: tell what is in each watched mailbox now."""

    groups: tuple[EventGroup, ...] = ()
    status: bool = False


@dataclass(frozen=True, slots=True)
class GetQuota:
    """GETQUOTA (RFC 9208 section 4.1.1)."""

    root: bytes


@dataclass(frozen=True, slots=True)
class GetQuotaRoot:
    """GETQUOTAROOT (RFC 9208 section 4.1.2). The mailbox need not exist."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class SetQuota:
    """SETQUOTA (RFC 9208 section 4.1.3). Its limits are parsed and ignored: no client may set any."""

    root: bytes


@dataclass(frozen=True, slots=True)
class GetMetadata:
    """GETMETADATA (RFC 5464 section 4.2). An empty `mailbox` stands for the account; `entries` are in lower case."""

    mailbox: str
    entries: tuple[str, ...]
    max_size: int | None = None
    depth: float = 0


@dataclass(frozen=True, slots=True)
class SetMetadata:
    """SETMETADATA (RFC 5464 section 4.3). An empty `mailbox` stands for the account; a value of None removes."""

    mailbox: str
    values: tuple[tuple[str, bytes | None], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A message, or a part of one, that the store has (RFC 4469 section 3)."""

    url: bytes


@dataclass(frozen=True, slots=True)
class AppendedMessage:
    """A message of an APPEND, with the parts of which it consists: octets that the client sends, and stored ones."""

    flags: tuple[str, ...]
    received_ms: int | None
    parts: tuple[bytes | StoredPart, ...] = field(repr=False)


class Within(Enum):
    """The place of the last literal of an APPEND. The value is a command up to such a literal, which is empty."""

    NOTHING = b"t APPEND m {0+}\r\n"
    UTF8 = b"t APPEND m UTF8 (~{0+}\r\n"
    CATENATE = b"t APPEND m CATENATE (TEXT {0+}\r\n"
    CATENATE_UTF8 = b"t APPEND m CATENATE (UTF8 (~{0+}\r\n"


@dataclass(frozen=True, slots=True)
class Append:
    """APPEND (RFC 3501 section 6.3.11) of one or more messages (RFC 3502), or what has arrived of it.

    `within`: what has arrived ends in there. While the command runs, `arriving` gives the last literal, which is empty
    here, and then what follows.
    """

    mailbox: str
    messages: tuple[AppendedMessage, ...]
    within: Within = Within.NOTHING
    arriving: IncomingLiteral | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """IDLE (RFC 2177)."""


@dataclass(frozen=True, slots=True)
class Check:
    """CHECK (RFC 3501 section 6.4.1)."""


@dataclass(frozen=True, slots=True)
class Close:
    """CLOSE (RFC 3501 section 6.4.2)."""


@dataclass(frozen=True, slots=True)
class Unselect:
    """UNSELECT (RFC 3691)."""


@dataclass(frozen=True, slots=True)
class Expunge:
    """EXPUNGE (RFC 3501 section 6.4.3) and, with `uids`, UID EXPUNGE (RFC 4315 section 2.1)."""

    uids: MessageSet | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """SEARCH (RFC 3501 section 6.4.4). If `returns` is None, the client wants a SEARCH response, else ESEARCH."""

    program: SearchProgram
    returns: Returns | None = None
    by_uid: bool = False


@dataclass(frozen=True, slots=True)
class Sort:
    """SORT (RFC 5256 section 3). If `returns` is None, the client wants a SORT response, else ESEARCH (RFC 5267)."""

    criteria: tuple[SortCriterion, ...]
    program: SearchProgram
    returns: Returns | None = None
    by_uid: bool = False


@dataclass(frozen=True, slots=True)
class CancelUpdate:
    """CANCELUPDATE (RFC 5267 section 4.3.5), with the tags of the commands that asked for updates."""

    tags: tuple[str, ...]


class ThreadAlgorithm(Enum):
    """Algorithms that put messages into threads (RFC 5256 section 3; REFS: draft-ietf-morg-inthread)."""

    ORDEREDSUBJECT = "ORDEREDSUBJECT"
    REFERENCES = "REFERENCES"
    REFS = "REFS"


@dataclass(frozen=True, slots=True)
class Thread:
    """THREAD (RFC 5256 section 3)."""

    algorithm: ThreadAlgorithm
    program: SearchProgram
    by_uid: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """FETCH (RFC 3501 section 6.4.5), with the modifiers of RFC 7162, sections 3.1.4.1 and 3.2.6."""

    numbers: MessageSet
    items: tuple[FetchItem, ...]
    changed_since: int | None = None
    vanished: bool = False
    by_uid: bool = False


class StoreAction(Enum):
    """Effect of STORE on the flags that it names."""

    REPLACE = "FLAGS"
    ADD = "+FLAGS"
    REMOVE = "-FLAGS"


@dataclass(frozen=True, slots=True)
class Store:
    """STORE (RFC 3501 section 6.4.6), with the modifier of RFC 7162 section 3.1.3."""

    numbers: MessageSet
    action: StoreAction
    flags: tuple[str, ...]
    silent: bool = False
    unchanged_since: int | None = None
    by_uid: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY and, if `remove`, MOVE (RFC 3501 section 6.4.7, RFC 6851)."""

    numbers: MessageSet
    mailbox: str
    remove: bool = False
    by_uid: bool = False


Command = (
    Capability | Noop | Logout | Id | StartTls | Authenticate | Login | Namespace | Enable | Select | Create | Delete
    | Rename | Subscribe | ListMailboxes | ListSubscriptions | Status | Notify | GetQuota | GetQuotaRoot | SetQuota
    | GetMetadata | SetMetadata | Append | Idle | Check | Compress | Close | Unselect | Expunge | Search | Sort | Thread
    | CancelUpdate | Fetch | Store | Copy
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tagged:
    """A command with the tag that its answer carries.

    `bad_name`: what is wrong with a mailbox name in it, which is empty in the command then.
    """

    tag: str
    command: Command
    bad_name: str | None = None
