"""The stories of mailboxes and mails that a node tells: the data behind `mailbox show`, `log show` and `explain`.

Names of entries are `origin seq`, times milliseconds since the epoch, ids, GUIDs and hashes hexadecimal. What a node
does not know is None or left out, and never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from resync.story.deeds import Deed
from resync.story.lives import Event, FolderEvent

LAST_MAX = 10_000
"""Most entries of a `LoggedHistory`: some megabytes of JSON."""
LAST_DEFAULT = 50

EntryState: TypeAlias = Literal["shown", "waiting", "abandoned"]
Absence: TypeAlias = Literal["left", "missing", "unreadable"]
"""The reason why an entry is not there to be told: checkpoints have taken its place in the log, it has not arrived or
was lost, or the disk has altered it."""


@dataclass(frozen=True, slots=True)
class AbsentEntry:
    """An entry that the log does not have, although one that it has stands on it, or the mailbox's head is that one."""

    entry: str
    why: Absence


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """An entry of a mailbox's or tree's history, as a node's log has it. `node` has numbered it at `time_ms`."""

    entry: str
    predecessors: tuple[str, ...]
    node: str
    time_ms: int
    modseq: int
    state: EntryState
    deeds: tuple[Deed, ...]


@dataclass(frozen=True, slots=True)
class LoggedHistory:
    """A mailbox's history, or that of a folder tree (`mailbox` None), from the log of `node`: the newest entry first.

    Each entry comes after all entries that stand on it. `head`: the entry that the node shows. `is_cut`: the log has
    more that was not asked for, or would be too much.
    """

    node: str
    user: str
    mailbox: str | None
    mailbox_id: str
    head: str | None
    entries: tuple[LoggedEntry, ...]
    absent: tuple[AbsentEntry, ...]
    is_cut: bool


Agreement: TypeAlias = Literal["same", "behind", "ahead", "forked", "differs", "nothing", "unreachable"]
"""The way another node shows a mailbox: the same, a state that this node's came after or the reverse, another branch,
what cannot be though both have seen the same entries, nothing yet, or not known."""


@dataclass(frozen=True, slots=True)
class ShownElsewhere:
    """The answer of another node. `why`: why it is unreachable."""

    node: str
    shows: Agreement
    head: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingEntry:
    """An entry that waits. `lacks`: a predecessor that is not here; None: its branch is to be joined."""

    entry: str
    node: str
    time_ms: int
    lacks: str | None


MasterHow: TypeAlias = Literal["named", "told", "taken", "given"]
"""The way a node came to know of a master: the root named the node itself, or another one, when it asked; it asked the
master before it, for its clients or for an operator; or it was the master, and another node asked it."""


@dataclass(frozen=True, slots=True)
class MailboxStory:
    """All that `node` knows of a folder's mailbox, at `clock_ms`.

    `uidvalidity` is as clients see it, `risen` the part of it that merges have added. `is_deleted`: the folder is; it
    is still shown as long as it has mail.
    """

    node: str
    clock_ms: int
    user: str
    mailbox: str
    mailbox_id: str
    is_deleted: bool
    uidvalidity: int
    risen: int
    uidnext: int
    highestmodseq: int
    messages: int
    unseen: int
    size_bytes: int
    digest: str
    head: str | None
    head_ms: int | None  # when it was numbered
    is_head_logged: bool  # its entry is in this node's log
    master: str | None
    master_since_ms: int | None  # since when this node knows of that, in this term
    master_how: MasterHow | None
    term: int
    waiting: int  # entries of the log that the node does not show
    branches: int  # with how many ends
    waiting_since_ms: int | None  # when the first of them was numbered
    waiting_entries: tuple[WaitingEntry, ...]  # the first ones
    why_apart: str | None  # why this node, which is the master, could not join a branch
    abandoned: int  # entries that can never be shown
    is_unproven: bool  # neither log nor checkpoint leads to the head
    is_postponed: bool  # a state transfer has left it different from a peer's
    checkpoint: str | None  # the head that the newest checkpoint has
    checkpoint_ms: int | None  # when that was numbered
    kept_messages: int  # expunged, and kept for `undelete`
    kept_bytes: int
    kept_since_ms: int | None  # when the first of them was expunged
    keep_expunged_s: float
    nodes: tuple[ShownElsewhere, ...]


Sameness: TypeAlias = Literal["asked", "guid", "body", "message_id"]
"""The likeness of a mail to the one that was asked for: it is that one, or a copy of it in another folder; it has the
same body; or the same Message-ID."""


@dataclass(frozen=True, slots=True)
class AskedMail:
    """The mail that is asked for: by the UID that it has or had in the folder, by its GUID, or by its Message-ID.

    One of them is given. A Message-ID has no angle brackets.
    """

    uid: int | None = None
    guid: bytes | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class FlagState:
    """A flag as it was last changed, by an entry that `node` has numbered. `is_set` False: it was cleared."""

    flag: str
    is_set: bool
    node: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class ShownMail:
    """A mail as the folder shows it. `placements`: the entries that put it there; `saved_ms` is the time of the first.

    `saved_ms` None: an earlier version has put it there.
    """

    uid: int
    flags: tuple[FlagState, ...]
    placements: tuple[str, ...]
    placed_at: tuple[str, ...]  # the nodes that have numbered them
    saved_ms: int | None


@dataclass(frozen=True, slots=True)
class KeptMail:
    """A mail that was expunged and is kept, so that `undelete` can bring it back until `until_ms`.

    `uid` and `expunged_ms`: as the folder showed it last. `has_body`: the body is here; else other nodes are asked.
    """

    uid: int
    expunged_ms: int
    until_ms: int
    has_body: bool


@dataclass(frozen=True, slots=True)
class MailLife:
    """The life of one mail in one folder, as one node tells it.

    `shown`, `kept`: as it is there now, or was; both None: the node knows of it from its log only. `events` are of this
    node's log, the first comes first; `events_left`: so many more are not told, changes of flags before all others, and
    older ones before newer ones; `unshown`: those of their entries that the node does not show. `log_since_ms`: time
    of the folder's oldest entry that was looked at, when it was numbered; None: there was none. `is_whole`: nothing of
    the folder's history has left the log.
    """

    same: Sameness
    guid: str
    mailbox_id: str
    folder: str
    is_deleted: bool
    shown: ShownMail | None
    kept: KeptMail | None
    message_id: str | None
    sha256: str | None
    size_bytes: int | None
    received_ms: int | None
    events: tuple[Event, ...]
    events_left: int
    unshown: tuple[str, ...]
    log_since_ms: int | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Two entries that put mails of this story into one folder.

    `are_apart`: neither node had the other's entry; then `joined_by` is the merge, if there is one yet.
    """

    one: str
    other: str
    are_apart: bool
    joined_by: str | None
    joined_ms: int | None


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Counts of what a node looked at: entries of logs, messages (for the same body), headers (for the Message-ID).

    `entries_left`: the log has more entries of the folders. `messages_left`, `headers_left`: messages of the user that
    were not looked at. `headers_unread`: those of which no header is here.
    """

    entries: int
    entries_left: bool
    messages: int
    messages_left: int
    headers: int
    headers_left: int
    headers_unread: int


@dataclass(frozen=True, slots=True)
class MailStory:
    """All that one node knows of a mail, and of others like it. No lives: it knows nothing of such a mail.

    `peers`: other nodes of the cluster. `lives_left`: so many more like it are not told.
    """

    node: str
    clock_ms: int
    user: str
    mailbox: str
    peers: tuple[str, ...]
    lives: tuple[MailLife, ...]
    lives_left: int
    arrivals: tuple[Arrivals, ...]
    folders: tuple[FolderEvent, ...]
    looked_at: LookedAt
