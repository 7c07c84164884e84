"""Numbers of mailboxes on a link: commands name a mailbox by the number that their sender gave it by MBOX.

Each direction has numbers of its own. See docs/protocol.md, "Mailboxes and messages".
"""

from __future__ import annotations

from collections import OrderedDict

from protocol.commands import Mbox
from protocol.stream_codec import ProtocolError
from replicator.store.db.entry_validation import USER_MAX_BYTES
from replicator.store.db.queries import MailboxKey
from resync.entry import tree_id

MAX_NUMBERS = 10_000
"""Limit of numbered mailboxes in one direction; the least recently used one gives up its number for a new one."""


class SentNumbers:
    """The numbers that this node gives, for the commands that it sends."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[MailboxKey, int] = OrderedDict()  # the least recently used one first

    def __contains__(self, key: MailboxKey) -> bool:
        return key in self._numbers

    def use(self, key: MailboxKey) -> int | None:
        """Return the mailbox's number, which is now the most recently used one; None if it has none."""
        number = self._numbers.get(key)
        if number is not None:
            self._numbers.move_to_end(key)
        return number

    def give(self, key: MailboxKey) -> int:
        """Return a number for a mailbox that has none. The peer is to be told before the number is used."""
        number = len(self._numbers) + 1
        if number > MAX_NUMBERS:
            _, number = self._numbers.popitem(last=False)
        self._numbers[key] = number
        return number

    def mailboxes(self) -> dict[int, MailboxKey]:
        """Return the mailboxes, by number."""
        return {number: key for key, number in self._numbers.items()}


class ReceivedNumbers:
    """The numbers that the peer has given, for the commands that come."""

    def __init__(self) -> None:
        self._keys: dict[int, MailboxKey] = {}

    def learn(self, mbox: Mbox) -> None:
        """Take a number that the peer gives. Raises ProtocolError if the number or the mailbox is invalid."""
        if not 0 < mbox.number <= MAX_NUMBERS:
            raise ProtocolError(f"mailbox number {mbox.number} is not between 1 and {MAX_NUMBERS}")
        if mbox.uidvalidity == 0 and mbox.mailbox_id != tree_id(mbox.user):
            raise ProtocolError(f"mailbox number {mbox.number} is a tree whose id does not belong to its user")
        if len(mbox.user.encode()) > USER_MAX_BYTES:
            raise ProtocolError(f"mailbox number {mbox.number}: its user's name is longer than {USER_MAX_BYTES} bytes")
        self._keys[mbox.number] = MailboxKey.of(mbox)

    def key_of(self, number: int) -> MailboxKey:
        """Return the mailbox with this number. Raises ProtocolError if there is none."""
        key = self._keys.get(number)
        if key is None:
            raise ProtocolError(f"no MBOX has assigned mailbox number {number}")
        return key

    def mailboxes(self) -> dict[int, MailboxKey]:
        """Return the mailboxes, by number."""
        return dict(self._keys)
