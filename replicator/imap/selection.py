"""The selected mailbox of one session: the live view, and the part of it that the client has been told.

Changes gather until `announce`, which is called where RFC 3501 sections 5.5 and 7.4.1 let the client be told.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import trio

from protocol.values import UidSet
from replicator.errors import FolderNotFoundError, MailError
from replicator.imap.sequence_numbers import Numbering
from replicator.imap.wire.fetch_items import Atom, Value
from replicator.imap.wire.responses import (
    FlagFormatter,
    fetch_response,
    status_line,
    untagged,
    vanished_response,
    without_body,
)
from replicator.mail.flags import MAX_KEYWORDS, RECENT, SYSTEM_FLAGS, keywords
from replicator.mail.mailstore import Folder, MailStore
from replicator.mail.view import SEEN, MailboxView, Message

NUMBERED_AT_ONCE = 50_000  # messages of a mailbox that is opened, in a millisecond
LOOKED_AT_ONCE = 5000  # changed messages whose flags are compared, in a millisecond
ANNOUNCED_AT_ONCE = 500  # changed or expunged messages, in a millisecond or two

_RECENT_FLAGS = frozenset({RECENT})


class MailboxGoneError(Exception):
    """The selected mailbox was deleted, or its UIDs are void: the client must select again."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.name)
        self.folder = folder

    async def reason(self, mail: MailStore) -> tuple[str, str | None]:
        """Return the text of BYE and its response code, if one applies (RFC 9051 section 7.1.5, RFC 5530)."""
        try:
            await mail.folder(self.folder.user, self.folder.name)
        except FolderNotFoundError:
            return f"Mailbox {self.folder.name!r} was deleted", "NONEXISTENT"
        except MailError:
            return f"Mailbox {self.folder.name!r} was replaced by another one; connect again", None
        return f"Mailbox {self.folder.name!r} has a new UIDVALIDITY; connect and select it again", None


@dataclass(slots=True)
class Aware:
    """Extensions that the client has shown to understand. Belongs to the session, and lasts as long.

    `condstore` and `qresync`: RFC 7162; `utf8`: mailbox names, and header fields of messages, in UTF-8 (RFC 6855);
    `rev2`: IMAP4rev2 (RFC 9051), which includes the latter.
    """

    condstore: bool = False
    qresync: bool = False
    utf8: bool = False
    rev2: bool = False


class Selection:
    """An open mailbox. `close` ends it."""

    def __init__(
        self, mail: MailStore, folder: Folder, view: MailboxView, *, read_only: bool, aware: Aware | None = None
    ) -> None:
        self._mail = mail
        self._exit = ExitStack()
        self._subscription = self._exit.enter_context(view.subscribe())
        self._changed: set[int] = set()
        self._expunged: set[int] = set()
        self._withheld: set[int] = set()  # messages with changes of which the client does not want to hear now
        self._own: set[int] = set()  # messages that the client has put here and that are not announced yet
        self._keywords: list[str] = []
        self._flags_in_use = frozenset[str]()  # when `_keywords` was determined
        self._told_modseq = view.highestmodseq  # the client has been told all changes up to this one
        self._clients_modseq: int | None = None  # its HIGHESTMODSEQ, as it was told
        self._aware = aware or Aware()
        self._unclaimed = 1  # announced messages from this UID on may be recent; not determined yet
        self._print_flags = FlagFormatter()
        self.folder = folder
        self.view = view
        self.uidvalidity = view.uidvalidity
        self.read_only = read_only
        self.numbering = Numbering()
        self.saved: Sequence[int] = ()
        """UIDs that `$` means, ascending (RFC 5182)."""

    @classmethod
    async def open(cls, mail: MailStore, folder: Folder, *, read_only: bool, aware: Aware | None = None) -> Selection:
        """Open the folder, with all its messages announced. Raises MailError."""
        view = await mail.open_mailbox(folder)
        claimed = view.uidnext
        recent_from = await _recent_from(mail, folder, view, read_only=read_only)
        selection = cls(mail, folder, view, read_only=read_only, aware=aware)
        with ExitStack() as undo:
            undo.callback(selection.close)
            selection.numbering = Numbering(await _uids(view))
            selection.numbering.mark_recent(recent_from, claimed - 1)
            selection._unclaimed = claimed
            selection._note_keywords()
            undo.pop_all()
        return selection

    def close(self) -> None:
        """End the subscription to the mailbox."""
        self._exit.close()

    # ---- responses to the client ----

    def flag_lines(self) -> list[bytes]:
        """Return FLAGS and PERMANENTFLAGS (RFC 3501 sections 7.2.6 and 7.1)."""
        flags = " ".join([*SYSTEM_FLAGS, *self._keywords])
        new = " \\*" if len(self._keywords) < MAX_KEYWORDS else ""  # RFC 9051 section 7.1: whether there may be more
        permanent = "()" if self.read_only else f"({flags}{new})"
        return [
            untagged(f"FLAGS ({flags})"),
            status_line("OK", "Permanent flags", f"PERMANENTFLAGS {permanent}"),
        ]

    def exists_line(self) -> bytes:
        """Return EXISTS."""
        return untagged(f"{len(self.numbering)} EXISTS")

    def recent_lines(self) -> list[bytes]:
        """Return RECENT, which IMAP4rev2 does not have."""
        return [] if self._aware.rev2 else [untagged(f"{self.numbering.recent_count} RECENT")]

    def first_unseen(self) -> int | None:
        """Return the sequence number of the first unseen message."""
        uids, seen = self.view.messages.keys(), self.view.by_flag.get(SEEN, ())
        low, high = 0, len(uids)
        while low < high:  # below the first unseen message, the n-th message is the n-th seen one
            middle = (low + high) // 2
            if middle < len(seen) and seen[middle] == uids[middle]:
                low = middle + 1
            else:
                high = middle
        return self.numbering.number(uids[low]) if low < len(uids) else None

    def printed_flags(self, message: Message) -> Atom:
        """Return the message's flags as this session shows them."""
        marked = self.numbering.recent  # mostly nothing: the session that comes first takes them all
        recent = bool(marked.ranges) and not self._aware.rev2 and message.uid in marked  # RFC 9051 has no such flag
        return self._print_flags(message.flags | _RECENT_FLAGS if recent else message.flags)

    def flag_texts(self, messages: Sequence[Message]) -> list[bytes]:
        """Return `printed_flags` of each message, encoded."""
        if self.numbering.recent.ranges:
            return [self.printed_flags(message).encode("ascii") for message in messages]
        texts = {flags: self._print_flags(flags).encode("ascii") for flags in {message.flags for message in messages}}
        return [texts[message.flags] for message in messages]

    def unheard_keywords(self, messages: Iterable[Message]) -> list[bytes]:
        """Return FLAGS if the client must hear of a keyword before it hears of these messages' flags."""
        are_heard = all(flags <= self._flags_in_use for flags in {message.flags for message in messages})
        return [] if are_heard else self._keyword_lines()

    def _keyword_lines(self) -> list[bytes]:
        if self.view.by_flag.keys() == self._flags_in_use:
            return []
        before = self._keywords
        self._note_keywords()
        return self.flag_lines() if self._keywords != before else []

    def _note_keywords(self) -> None:
        self._keywords, self._flags_in_use = keywords(self.view.by_flag), frozenset(self.view.by_flag)

    def changed_message(
        self, number: int, message: Message, *, with_uid: bool = False, with_flags: bool = True
    ) -> list[bytes]:
        """Return FETCH with what has changed of a message.

        A client that is aware of CONDSTORE gets UID and MODSEQ, whatever caused the change (RFC 7162 section 3.2.4),
        and one of IMAP4rev2 the UID (RFC 9051 section 7.5.2).
        """
        values: list[tuple[bytes, Value]] = []
        if with_uid or self._aware.condstore or self._aware.rev2:
            values.append((b"UID", message.uid))
        if with_flags:
            values.append((b"FLAGS", self.printed_flags(message)))
        if self._aware.condstore:
            values.append((b"MODSEQ", (message.modseq,)))
        return [*self.unheard_keywords((message,)), *without_body(fetch_response(number, values))]

    def announce(
        self, *, expunges: bool, arrivals: bool = True, flags: bool = True, with_uid: bool = False
    ) -> Iterator[list[bytes]]:
        """Gather changes now, and return an iterator of their responses; without `expunges`, expunged messages wait.

        So do new messages without `arrivals`, and changed ones without `flags` (RFC 5465 section 3.1).

        `with_uid`: changed messages have UIDs in any case, as during a UID command (RFC 3501 section 6.4.8).

        It yields some at a time, so that the caller can pause before each of them. All must be sent, in this order,
        before a command runs: the client's sequence numbers are those of the responses so far. `claim_recent` completes
        the announcement. Raises MailboxGoneError, now and later.
        """
        self.check()
        self.gather()
        told = partial(self._told, self.view.highestmodseq, self.view.uidnext - 1)
        return told(expunges=expunges, arrivals=arrivals, flags=flags, with_uid=with_uid)

    def _told(
        self, reached: int, last: int, *, expunges: bool, arrivals: bool, flags: bool, with_uid: bool
    ) -> Iterator[list[bytes]]:
        """Yield responses for the gathered changes. `reached` was HIGHESTMODSEQ then, and `last` the last UID."""
        if expunges:
            expunged, self._expunged = sorted(self._expunged, reverse=True), set()
            for some in self._in_parts(expunged):
                yield self._expunge(some)
        lines = self._keyword_lines() if arrivals or flags else []
        known = self.numbering.last
        if arrivals and last > known and self.numbering.append(self.view.messages.irange(known + 1, last)):
            lines.append(self.exists_line())
        if lines:
            yield lines
        changed, self._changed = self._changed, set()
        if flags:
            changed |= self._withheld
            self._withheld = set()
            for some in self._in_parts(sorted(changed)):
                yield [line for uid in some if uid <= known for line in self._changed_line(uid, with_uid=with_uid)]
        else:
            self._withheld |= {uid for uid in changed if uid <= known}
        if arrivals and not self._expunged and not self._withheld:
            self._told_modseq = reached

    def put_here(self, folder: Folder, uids: Iterable[int]) -> None:
        """Note messages that the client has put into a folder, in case that it is this one."""
        if folder.mailbox_id == self.folder.mailbox_id:
            self._own.update(uids)

    def news(self, known: int) -> Sequence[int]:
        """Return the announced UIDs above UID `known`, but those of messages that the client has put here itself."""
        new, own = self.numbering.uids[bisect_right(self.numbering.uids, known) :], self._own
        self._own = set()
        return [uid for uid in new if uid not in own] if own else new

    def _expunge(self, uids: Iterable[int]) -> list[bytes]:
        """Return EXPUNGE, or VANISHED for a client that wants that (RFC 7162 section 3.2.10), of announced UIDs."""
        if not self._aware.qresync:
            return [untagged(f"{number} EXPUNGE") for number in self.numbering.expunge(uids)]
        gone = [uid for uid in uids if self.numbering.number(uid) is not None]
        self.numbering.expunge(gone)
        self._clients_modseq = None  # RFC 7162 section 3.2.7: HIGHESTMODSEQ must follow
        return [vanished_response(UidSet.of(gone))] if gone else []

    def _in_parts(self, uids: Sequence[int]) -> Iterator[Sequence[int]]:
        for start in range(0, len(uids), ANNOUNCED_AT_ONCE):
            self.check()
            yield uids[start : start + ANNOUNCED_AT_ONCE]

    def check(self) -> None:
        """Check that the UIDs still have their meaning. Raises MailboxGoneError."""
        if self.view.deleted or self.view.uidvalidity != self.uidvalidity:
            raise MailboxGoneError(self.folder)

    async def claim_recent(self) -> list[bytes]:
        r"""Find out which newly announced messages are `\Recent` here; return RECENT if there were new messages.

        Separate from `announce`, because it waits for the disk, and clients should hear of new mail before that.
        """
        if self._unclaimed > self.numbering.last:
            return []
        first, last = self._unclaimed, self.numbering.last
        self._unclaimed = last + 1
        recent_from = await _recent_from(self._mail, self.folder, self.view, read_only=self.read_only)
        self.numbering.mark_recent(max(first, recent_from), last)
        return self.recent_lines()

    def _changed_line(self, uid: int, *, with_uid: bool) -> list[bytes]:
        number, message = self.numbering.number(uid), self.view.messages.get(uid)
        if number is None or message is None:
            return []
        return self.changed_message(number, message, with_uid=with_uid)

    # ---- HIGHESTMODSEQ (RFC 7162 sections 3.1.2.1 and 6) ----

    def modseq_line(self) -> bytes:
        """Return HIGHESTMODSEQ."""
        return status_line("OK", "Highest MODSEQ", self._modseq_code())

    def modseq_code_due(self) -> str | None:
        """Return the code HIGHESTMODSEQ if the client must hear it before the next command, else None.

        A client that is told nothing takes the highest MODSEQ that it has seen in a FETCH (RFC 7162 section 6). So it
        must be told a lower one as long as it does not know all earlier changes.
        """
        if not self._aware.condstore:
            return None
        knows_all = self.view.highestmodseq == self._told_modseq and not self.view.changing
        return None if knows_all and self._clients_modseq == self._told_modseq else self._modseq_code()

    def forget_modseq(self) -> None:
        """Tell HIGHESTMODSEQ again at the end of this command: the client has just become aware of it."""
        self._clients_modseq = None

    def _modseq_code(self) -> str:
        self._clients_modseq = self._told_modseq
        return f"HIGHESTMODSEQ {shown_modseq(self._told_modseq)}"

    # ---- changes that the client learns in other ways ----

    def gather(self) -> None:
        """Collect the changes from the view."""
        changed, expunged = self._subscription.take()
        self._changed |= changed
        self._expunged |= expunged

    def untold_changes(self) -> frozenset[int]:
        """Collect the changes from the view; return UIDs of changed messages of which the client has yet to hear."""
        self.gather()
        return frozenset(self._changed)

    def forget_changes(self, uids: Iterable[int]) -> None:
        """Skip these messages at the next announcement: the client is told their flags in another way."""
        self.gather()
        self._changed.difference_update(uids)
        self._withheld.difference_update(uids)

    async def forget_expected(self, expected: Mapping[int, frozenset[str]]) -> None:
        """Skip changes since the last `gather` that left a message with the flags that its client expects.

        Pauses if there are many. What changes meanwhile is gathered later.
        """
        changed, expunged = self._subscription.take()
        self._expunged |= expunged
        for looked_at, uid in enumerate(changed):
            message = self.view.messages.get(uid)
            if message is not None and message.flags != expected.get(uid):
                self._changed.add(uid)
            if looked_at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()

    async def wait(self) -> None:
        """Return once the view has changed. Safe to cancel."""
        await self._subscription.wait()


def shown_modseq(highestmodseq: int) -> int:
    """Return a mailbox's HIGHESTMODSEQ for a client, to whom 0 would mean that there is none (RFC 7162, 3.1.7)."""
    return max(1, highestmodseq)


async def _uids(view: MailboxView) -> array[int]:
    """Return the UIDs of all messages, gathered some at a time, and of those that are expunged meanwhile.

    The array never changes: sessions share it, until a message comes or goes.
    """
    if view.uids is not None:
        return view.uids
    messages, uids = view.messages, array("I")
    while True:
        start = messages.bisect_right(uids[-1] if uids else 0)
        some = messages.keys()[start : start + NUMBERED_AT_ONCE]  # a third of the time that `irange` takes
        uids.extend(some)
        if len(some) < NUMBERED_AT_ONCE:
            break
        await trio.lowlevel.checkpoint()
    if len(uids) == len(messages):
        view.uids = uids
    return uids


async def _recent_from(mail: MailStore, folder: Folder, view: MailboxView, *, read_only: bool) -> int:
    r"""Return the UID from which on new messages are `\Recent` here."""
    try:
        if not read_only:
            return await mail.claim_recent(view)
        recent = await mail.count_recent(folder)
    except MailError:  # a full disk or a lost link does not prevent reading
        return view.uidnext
    uids = view.messages.keys()
    return uids[len(uids) - recent] if 0 < recent <= len(uids) else view.uidnext
