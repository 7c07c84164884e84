"""Facts told to the clients of each node, which must never contradict each other (design section 3, promise 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """A UID at a node. UIDVALIDITYs of a user's folders differ, so they stand for the mailbox."""

    sid: str
    uidvalidity: int
    uid: int


class Compared(NamedTuple):
    """A STORE under UNCHANGEDSINCE that has changed a message: the MODSEQ that it named, and the one that it gave."""

    base: int
    after: int
    began: int
    ended: int


@dataclass
class Facts:
    """Statements by which clients of one node, or of a cluster that is whole, rely on each other."""

    sizes: dict[Place, int] = field(default_factory=dict)
    email_ids: dict[Place, str] = field(default_factory=dict)
    flags: dict[tuple[Place, int], frozenset[str]] = field(default_factory=dict)
    mailbox_ids: dict[tuple[str, int], str] = field(default_factory=dict)
    uidnext: dict[tuple[str, int], int] = field(default_factory=dict)
    modseq: dict[tuple[str, int], int] = field(default_factory=dict)
    compared: dict[tuple[int, int, int], list[Compared]] = field(default_factory=dict)
    moments: int = 0

    def moment(self) -> int:
        """Return a number above all earlier ones."""
        self.moments += 1
        return self.moments

    def is_message(self, place: Place, size: int | None, email_id: str | None = None) -> None:
        """Note that a UID names a message of this size: each message has a size of its own, and its copies have it."""
        if size is not None:
            assert self.sizes.setdefault(place, size) == size, f"{place} named a message of {self.sizes[place]} octets"
        if email_id is not None:
            assert self.email_ids.setdefault(place, email_id) == email_id, f"{place} named another message"

    def has_flags(self, place: Place, modseq: int, flags: frozenset[str]) -> None:
        """Note the flags that a message has at a MODSEQ."""
        before = self.flags.setdefault((place, modseq), flags)
        assert before == flags, f"{place} had {sorted(before)} at MODSEQ {modseq}, and not {sorted(flags)}"

    def has_uidvalidity(self, sid: str, uidvalidity: int, mailbox_id: str) -> None:
        """Note whose UIDVALIDITY it is."""
        before = self.mailbox_ids.setdefault((sid, uidvalidity), mailbox_id)
        assert before == mailbox_id, f"UIDVALIDITY {uidvalidity} was that of {before} at {sid}"

    def rises(self, known: dict[tuple[str, int], int], before: int, key: tuple[str, int], value: int) -> None:
        """Note a UIDNEXT or HIGHESTMODSEQ. `before`: what was known when the client asked."""
        assert value >= before, f"{key}: {value} was told after {before}"
        known[key] = max(known.get(key, 0), value)

    def compare(self, message: tuple[int, int, int], new: Compared) -> None:
        """Note a change under UNCHANGEDSINCE of (epoch, UIDVALIDITY, UID): no other one may lie in between."""
        others = self.compared.setdefault(message, [])
        for one in others:
            lost = one.base == new.base or (one.ended < new.began and new.base < one.after)
            assert not lost, f"{message}: {new} has overwritten {one}"
        others.append(new)
