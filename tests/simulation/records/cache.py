"""A client's cache of a mailbox, and its update after an absence (QRESYNC, RFC 7162 section 3.2).

A returning client only hears which of its UIDs are gone and which messages have changed since its MODSEQ, by the rules
that the IMAP door has (`replicator/imap/cache_update.py`). It tells the node all sequence numbers and UIDs that it
knows. Its updated cache must equal that of a client that fetches everything anew: this is the purpose of the promises
about UIDs and MODSEQs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.values import UID_MAX, UidSet
from replicator.imap.cache_update import believed_modseq, between, known_up_to, vanished
from replicator.imap.wire.commands.command_types import MatchData
from replicator.mail.view import MailboxView, Message


class Known(NamedTuple):
    """A client's knowledge of a message."""

    guid: bytes
    content_hash: bytes
    flags: frozenset[str]

    @classmethod
    def of(cls, message: Message) -> Known:
        return cls(message.guid, message.content_hash, message.flags)


@dataclass(frozen=True)
class Cache:
    """A mailbox as a client was shown it. `context`: the entries that the node had seen by then."""

    user: str
    name: str  # of the folder, at that time
    mailbox_id: bytes
    uidvalidity: int
    uidnext: int
    modseq: int
    messages: dict[int, Known]
    context: dict[str, int]

    @classmethod
    def fetch(cls, name: str, view: MailboxView, context: dict[str, int]) -> Cache:
        """Return a cache of everything, fetched anew."""
        messages = {uid: Known.of(message) for uid, message in view.messages.items()}
        return cls(
            view.user, name, view.mailbox_id, view.uidvalidity, view.uidnext, view.highestmodseq, messages, context
        )

    def resync(self, view: MailboxView, context: dict[str, int]) -> Cache:
        """Return the cache updated by the changes since then. The view has the same UIDVALIDITY."""
        assert view.uidvalidity == self.uidvalidity
        assert view.highestmodseq >= self.modseq, "HIGHESTMODSEQ was lowered"
        assert view.uidnext >= self.uidnext, "UIDNEXT was lowered"
        since = believed_modseq(self.modseq, view.highestmodseq)
        changed = {uid: message for uid, message in view.messages.items() if message.modseq > since}
        numbers, uids = UidSet.of(range(1, len(self.messages) + 1)), UidSet.of(self.messages)
        up_to = known_up_to(MatchData(numbers, uids), view.messages.keys())
        gone = vanished(between(uids, up_to + 1, UID_MAX), view.messages.keys())
        messages = {uid: known for uid, known in self.messages.items() if uid not in gone}
        for uid, message in changed.items():
            before = messages.get(uid)
            assert before is None or before.guid == message.guid, f"UID {uid} names another message than before"
            assert before is not None or uid >= self.uidnext, f"UID {uid} is new and below UIDNEXT {self.uidnext}"
            messages[uid] = Known.of(message)
        anew = Cache.fetch(self.name, view, context)
        assert messages == anew.messages, f"a cache is wrong: {_differences(messages, anew.messages)}"
        return anew


def _differences(has: dict[int, Known], should: dict[int, Known]) -> str:
    uids = sorted(uid for uid in has.keys() | should.keys() if has.get(uid) != should.get(uid))
    return "; ".join(f"UID {uid}: {has.get(uid)} instead of {should.get(uid)}" for uid in uids[:3])
