"""A mailbox in memory, as this node shows it now.

Sorted maps UID -> message and flag -> UIDs make ranges, sequence numbers and counts cost O(log n), without a replay. A
view belongs to the event loop: it is changed only between two awaits of the task that applies commits, so readers need
no lock but must not keep an iterator over it across an await. A large change takes several such steps, after each of
which the view is whole in itself.

Sessions do not poll: each has a `Subscription`, which gathers changes until the session may tell its client (RFC 3501
section 7.4.1).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, repeat
from types import TracebackType
from typing import NamedTuple, Self, cast

from sortedcontainers import SortedDict, SortedSet

from protocol.values import Dot
from replicator.runtime.signals import Signal
from resync.row import Placement

SEEN = "\\Seen"

STEP_WORK = 1000  # messages that change, and flags that they get or lose, shown in a step of some milliseconds
CHANGES_KEPT = 250  # at least, for clients that come back and ask what has changed; in 6 KiB

_NO_FLAGS: frozenset[str] = frozenset()


class Message(NamedTuple):
    """A message in a mailbox, as a client may see it. Immutable: a change creates a new object."""

    uid: int
    guid: bytes  # 16 bytes; EMAILID of RFC 8474
    modseq: int
    flags: frozenset[str]  # flags that are set
    received_ms: int
    size_bytes: int
    content_hash: bytes  # SHA-256 of the body
    dot: Dot  # with `change`, the placement: survives renumbering
    change: int
    also: tuple[Placement, ...] = ()  # other placements that merges have joined with it
    saved_ms: int | None = None  # save date of RFC 8514; None: placed by an earlier version


@dataclass(frozen=True, slots=True)
class ViewChange:
    """Changes that one entry made to one mailbox, in the order of its MODSEQ; `changed` and `expunged` by UID.

    Sessions are told new UIDs in ascending order, and a large change is shown in steps.
    """

    mailbox_id: bytes
    modseq: int
    uidnext: int
    changed: tuple[Message, ...] = ()
    expunged: tuple[int, ...] = ()
    head: Dot | None = None  # dot of the entry


class Subscription:
    """Changes in a view since the last call of `take`. Leave the `with` block to end the subscription.

    Bounded: it holds sets of UIDs, never more than the mailbox has or had while subscribed.
    """

    def __init__(self, view: MailboxView) -> None:
        self._view = view
        self._changed: set[int] = set()
        self._expunged: set[int] = set()
        self._wakeup = Signal()

    def __enter__(self) -> Self:
        self._view.subscribers.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.subscribers.discard(self)

    def note(self, changed: AbstractSet[int], expunged: AbstractSet[int]) -> None:
        """Record a change, by UIDs. Called by the view."""
        self._changed |= changed
        self._changed -= expunged
        self._expunged |= expunged
        self.wake()

    def wake(self) -> None:
        """Wake the subscriber. Called by the view."""
        self._wakeup.set()

    def take(self) -> tuple[set[int], set[int]]:
        """Return the UIDs of messages new or changed, and of those expunged, since the last call."""
        changed, expunged = self._changed, self._expunged
        self._changed, self._expunged = set(), set()
        self._wakeup.clear()
        return changed, expunged

    async def wait(self) -> None:
        """Return once there are changes that were not taken yet. Safe to cancel."""
        await self._wakeup.wait()


class LatestChanges:
    """The UIDs of the messages that changed last, by the HIGHESTMODSEQ that each change made."""

    def __init__(self, modseq: int) -> None:
        """`modseq`: changes up to this one are not kept."""
        self._complete_above = modseq
        self._modseqs = array("Q")  # ascending
        self._uids = array("I")

    def note(self, modseq: int, uid: int) -> None:
        """Note that a message came or changed."""
        self._modseqs.append(modseq)
        self._uids.append(uid)
        if len(self._uids) > 2 * CHANGES_KEPT:
            self._complete_above = self._modseqs[CHANGES_KEPT - 1]
            del self._modseqs[:CHANGES_KEPT], self._uids[:CHANGES_KEPT]

    def above(self, modseq: int) -> set[int] | None:
        """Return the UIDs of the messages that changed above this MODSEQ; None if not all such changes are kept."""
        if modseq < self._complete_above:
            return None
        return {*self._uids[bisect_right(self._modseqs, modseq) :]}


@dataclass(slots=True, eq=False, weakref_slot=True)
class MailboxView:
    """The live state of one mailbox at this node. `uidvalidity` and `own` as in a `Folder`."""

    mailbox_id: bytes
    user: str
    uidvalidity: int
    uidnext: int
    highestmodseq: int
    messages: SortedDict[int, Message] = field(default_factory=SortedDict)
    by_flag: dict[str, SortedSet[int]] = field(default_factory=dict)
    head: Dot | None = None  # the entry whose state this is, which defines the meaning of its UIDs
    deleted: bool = False
    changing: bool = False  # a change is shown in steps: some messages have a MODSEQ above HIGHESTMODSEQ
    subscribers: set[Subscription] = field(default_factory=set)
    recent_from: int = 0
    r"""Messages from this UID on are `\Recent` in the next session; 0 if none has claimed since the view was built."""
    own: int | None = None
    uids: array[int] | None = None
    """The UIDs, ascending, which all sessions share that select the mailbox, so the array never changes; None if nobody
    has gathered them since a message came or went."""
    _latest: LatestChanges = field(init=False)

    def __post_init__(self) -> None:
        self._latest = LatestChanges(self.highestmodseq)

    @classmethod
    def build(
        cls,
        *,
        mailbox_id: bytes,
        user: str,
        uidvalidity: int,
        uidnext: int,
        highestmodseq: int,
        rows: Iterable[Message],
        head: Dot | None = None,
        own: int | None = None,
    ) -> MailboxView:
        """Build a view over these rows."""
        messages = SortedDict((row.uid, row) for row in rows)
        view = cls(mailbox_id, user, uidvalidity, uidnext, highestmodseq, messages)
        flagged: dict[str, list[int]] = {}
        for row in view.messages.values():
            for flag in row.flags:
                flagged.setdefault(flag, []).append(row.uid)
        view.by_flag = {flag: SortedSet(uids) for flag, uids in flagged.items()}
        view.head, view.own = head, own
        return view

    @property
    def unseen(self) -> int:
        r"""Number of messages without `\Seen`."""
        return len(self.messages) - len(self.by_flag.get(SEEN, ()))

    def changed_above(self, modseq: int) -> set[int] | None:
        """Return the UIDs of some messages, among them all that are here and have a MODSEQ above this one.

        At most 2 * CHANGES_KEPT; None if only a look at all messages tells.
        """
        return self._latest.above(modseq)

    def snapshot(self) -> list[Message]:
        """Return all messages, in any order, ten times as fast as in the order of their UIDs."""
        return [*dict.values(cast("dict[int, Message]", self.messages))]

    def subscribe(self) -> Subscription:
        """Return a new subscription, to be used as a context manager."""
        return Subscription(self)

    def end(self) -> None:
        """Mark the folder as deleted and wake all subscribers; the view no longer changes."""
        self.deleted = True
        for subscriber in self.subscribers:
            subscriber.wake()

    def apply(self, change: ViewChange) -> None:
        """Show the changes of an entry at once. Changes that the view already shows are ignored."""
        for _ in self.apply_in_steps(change):
            pass

    def apply_in_steps(self, change: ViewChange) -> Iterator[None]:
        """Show the changes of an entry, and pause after every few messages: others may use the view then.

        The head is the entry's from the beginning: with another one, a UID that the entry has given might name another
        message at a master on another branch, while a UID that the entry has taken away names none. UIDNEXT and
        HIGHESTMODSEQ are the entry's only at the end: no message may come below a UIDNEXT that a client has seen
        (design section 3), and no change at or below a HIGHESTMODSEQ (RFC 7162 section 3.2).
        """
        if change.modseq <= self.highestmodseq:
            return
        self.head, self.changing = change.head, True
        step = _Step()
        for uid, after in chain(zip(change.expunged, repeat(None)), ((one.uid, one) for one in change.changed)):
            if step.work >= STEP_WORK:
                self._finish(step)
                yield
                step = _Step()
            if after is None:
                before = self.messages.pop(uid, None)
            else:
                before = self.messages.get(uid)
                self.messages[uid] = after
                self.uidnext = max(self.uidnext, uid + 1)
                self._latest.note(change.modseq, uid)
            if before is None or after is None:
                self.uids = None
                if not self.messages:
                    self.messages.clear()  # else it keeps the memory of all that it had
            step.note(uid, before, after)
        self.uidnext = max(self.uidnext, change.uidnext)
        self.highestmodseq, self.changing = change.modseq, False
        self._finish(step)

    def _finish(self, step: _Step) -> None:
        """Bring the index by flag up to date, and tell the subscribers."""
        self._flag(step.gained, step.lost)
        for subscriber in self.subscribers:
            subscriber.note(step.changed, step.expunged)

    def _flag(self, gained: Mapping[str, list[int]], lost: Mapping[str, list[int]]) -> None:
        """Note the flags that UIDs got and lost. A UID may have lost a flag and got it again, with another message."""
        for flag, uids in lost.items():
            self.by_flag[flag].difference_update(uids)
        for flag, uids in gained.items():
            self.by_flag.setdefault(flag, SortedSet()).update(uids)
        for flag in lost:
            if not self.by_flag[flag]:
                del self.by_flag[flag]


class _Step:
    """Effect of a part of a change on messages and flags. `work` counts both."""

    def __init__(self) -> None:
        self.work = 0
        self.changed: set[int] = set()
        self.expunged: set[int] = set()
        self.gained: dict[str, list[int]] = {}
        self.lost: dict[str, list[int]] = {}

    def note(self, uid: int, before: Message | None, after: Message | None) -> None:
        """Note that a message changes, comes or goes."""
        (self.expunged if after is None else self.changed).add(uid)
        had = before.flags if before is not None else _NO_FLAGS
        has = after.flags if after is not None else _NO_FLAGS
        self.work += 1
        if had != has:
            self.work += _note_flags(self.lost, had - has, uid) + _note_flags(self.gained, has - had, uid)


def _note_flags(noted: dict[str, list[int]], flags: frozenset[str], uid: int) -> int:
    for flag in flags:
        noted.setdefault(flag, []).append(uid)
    return len(flags)
