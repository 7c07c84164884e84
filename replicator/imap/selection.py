"""The selected mailbox of one session: the live view, and the part of it that the client has been told.

Changes gather until `announce`, which is called where RFC 3501 sections 5.5 and 7.4.1 let the client be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice

import trio

from replicator.errors import FolderNotFoundError, MailError
from replicator.flags import RECENT, SYSTEM_FLAGS, keywords
from replicator.imap.sequence_numbers import Numbering
from replicator.imap.wire.fetch_items import Atom
from replicator.imap.wire.responses import (
    FlagFormatter,
    fetch_response,
    status_line,
    untagged,
    without_body,
)
from replicator.mailstore import Folder, MailStore
from replicator.view import SEEN, MailboxView, Message

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


class Selection:
    """An open mailbox. `close` ends it."""

    def __init__(self, mail: MailStore, folder: Folder, view: MailboxView, *, read_only: bool) -> None:
        self._mail = mail
        self._exit = ExitStack()
        self._subscription = self._exit.enter_context(view.subscribe())
        self._changed: set[int] = set()
        self._expunged: set[int] = set()
        self._keywords: list[str] = []
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
    async def open(cls, mail: MailStore, folder: Folder, *, read_only: bool) -> Selection:
        """Open the folder, with all its messages announced. Raises MailError."""
        view = await mail.open_mailbox(folder)
        claimed = view.uidnext
        recent_from = await _recent_from(mail, folder, view, read_only=read_only)
        selection = cls(mail, folder, view, read_only=read_only)
        with ExitStack() as undo:
            undo.callback(selection.close)
            await selection._number_up_to(claimed - 1)
            selection.numbering.mark_recent(recent_from)
            await selection._number_up_to(None)
            selection._unclaimed = claimed
            selection._keywords = keywords(view)
            undo.pop_all()
        return selection

    async def _number_up_to(self, last: int | None) -> None:
        """Number the messages up to UID `last`, some at a time. What is expunged meanwhile is announced later."""
        while some := [*islice(self.view.messages.irange(self.numbering.last + 1, last), NUMBERED_AT_ONCE)]:
            self.numbering.append(some)
            if len(some) == NUMBERED_AT_ONCE:
                await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """End the subscription to the mailbox."""
        self._exit.close()

    # ---- responses to the client ----

    def flag_lines(self) -> list[bytes]:
        """Return FLAGS and PERMANENTFLAGS (RFC 3501 sections 7.2.6 and 7.1)."""
        flags = " ".join([*SYSTEM_FLAGS, *self._keywords])
        permanent = "()" if self.read_only else f"({flags} \\*)"
        return [
            untagged(f"FLAGS ({flags})"),
            status_line("OK", "Permanent flags", f"PERMANENTFLAGS {permanent}"),
        ]

    def exists_line(self) -> bytes:
        """Return EXISTS."""
        return untagged(f"{len(self.numbering)} EXISTS")

    def recent_line(self) -> bytes:
        """Return RECENT."""
        return untagged(f"{self.numbering.recent_count} RECENT")

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
        flags = message.flags
        return self._print_flags(flags | _RECENT_FLAGS if message.uid in self.numbering.recent else flags)

    def announce(self, *, expunges: bool) -> Iterator[list[bytes]]:
        """Yield responses for changes since the last call; without `expunges`, expunged messages are kept for later.

        Yields some at a time, so that the caller can pause. All of them must be sent, in this order, before a command
        runs: the client's sequence numbers are those of the responses so far. `claim_recent` completes the
        announcement. Raises MailboxGoneError.
        """
        self._check()
        self.gather()
        if expunges:
            expunged, self._expunged = sorted(self._expunged, reverse=True), set()
            for some in self._in_parts(expunged):
                yield [untagged(f"{number} EXPUNGE") for number in self.numbering.expunge(some)]
        lines = []
        if self._keywords != (now := keywords(self.view)):
            self._keywords = now
            lines += self.flag_lines()
        known = self.numbering.last
        if self.numbering.append(self.view.messages.irange(known + 1)):
            lines.append(self.exists_line())
        if lines:
            yield lines
        changed, self._changed = self._changed, set()
        for some in self._in_parts(sorted(changed)):
            yield [line for uid in some if uid <= known for line in self._flags_line(uid)]

    def _in_parts(self, uids: Sequence[int]) -> Iterator[Sequence[int]]:
        for start in range(0, len(uids), ANNOUNCED_AT_ONCE):
            self._check()
            yield uids[start : start + ANNOUNCED_AT_ONCE]

    def _check(self) -> None:
        """Check that the UIDs still have their meaning. Raises MailboxGoneError."""
        if self.view.deleted or self.view.uidvalidity != self.uidvalidity:
            raise MailboxGoneError(self.folder)

    async def claim_recent(self) -> list[bytes]:
        r"""Find out which newly announced messages are `\Recent` here; return RECENT if there were new messages.

        Separate from `announce`, because it waits for the disk, and clients should hear of new mail before that.
        """
        if self._unclaimed > self.numbering.last:
            return []
        first, self._unclaimed = self._unclaimed, self.numbering.last + 1
        recent_from = await _recent_from(self._mail, self.folder, self.view, read_only=self.read_only)
        self.numbering.mark_recent(max(first, recent_from))
        return [self.recent_line()]

    def _flags_line(self, uid: int) -> list[bytes]:
        number, message = self.numbering.number(uid), self.view.messages.get(uid)
        if number is None or message is None:
            return []
        return without_body(fetch_response(number, [(b"FLAGS", self.printed_flags(message))]))

    # ---- changes that the client learns in other ways ----

    def gather(self) -> None:
        """Collect the changes from the view."""
        changed, expunged = self._subscription.take()
        self._changed |= changed
        self._expunged |= expunged

    def forget_changes(self, uids: Iterable[int]) -> None:
        """Skip these messages at the next announcement: the client is told their flags in another way."""
        self.gather()
        self._changed.difference_update(uids)

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


async def _recent_from(mail: MailStore, folder: Folder, view: MailboxView, *, read_only: bool) -> int:
    r"""Return the UID from which on new messages are `\Recent` here."""
    try:
        if not read_only:
            return await mail.claim_recent(folder)
        recent = (await mail.status(folder)).recent
    except MailError:  # a full disk or a lost link does not prevent reading
        return view.uidnext
    uids = view.messages.keys()
    return uids[len(uids) - recent] if 0 < recent <= len(uids) else view.uidnext
