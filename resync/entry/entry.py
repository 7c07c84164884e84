"""The entry: its fields, its packed form in the log, its digest and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

import msgpack

from protocol.values import Dot, Stamp, context_of
from resync.entry.changes import Change, MailAdd, Merge, Raise, TreeMerge
from resync.entry.packing import change_from, change_values

ID_BYTES = 16
DIGEST_BYTES = 16

_CHECKED = b"\xc1"
"""First byte of a packed entry with a check; MessagePack has no value that begins with it."""
_CHECK_END = len(_CHECKED) + DIGEST_BYTES


def tree_id(user: str) -> bytes:
    """Return the id of the chain that holds a user's folder tree, which every node computes alike."""
    return blake2b(b"tree:" + user.encode(), digest_size=ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `modseq` is the mailbox's HIGHESTMODSEQ after it; a tree has UIDVALIDITY 0.

    `histories` are those of the predecessors, in their order; None: an earlier version has numbered the entry. `dated`:
    the messages that it adds have a save date; False: an earlier version has numbered it, and they have none.
    """

    dot: Dot
    predecessors: tuple[Dot, ...]
    time: int
    modseq: int
    user: str
    mailbox_id: bytes
    uidvalidity: int
    changes: tuple[Change, ...]
    histories: tuple[bytes, ...] | None = None
    dated: bool = False
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _packed: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def history(self) -> bytes:
        """The hash that names the entry and all that it stands on (design section 6)."""
        return anchor(self.dot) if self.histories is None else self.digest()

    @property
    def saved_ms(self) -> int | None:
        """The save date of the messages that the entry adds (RFC 8514): the time of its stamp, if it is `dated`."""
        return self.stamp.ms if self.dated else None

    @property
    def stamp(self) -> Stamp:
        """Time at which the entry was numbered, and the SID of the node that numbered it."""
        return Stamp(self.time, self.dot.sid)

    @property
    def is_merge(self) -> bool:
        """True if the entry holds absolute rows: it is a merge, or an adoption, which is in no log."""
        return isinstance(self.changes[0], Merge | TreeMerge)

    @property
    def skips_modseqs(self) -> bool:
        """True if the entry may give a MODSEQ farther than one above its predecessor's."""
        return self.is_merge or any(isinstance(change, Raise) for change in self.changes)

    @property
    def joined_context(self) -> dict[str, int]:
        """The context that a merge has seen; empty for other entries."""
        merges = (change for change in self.changes if isinstance(change, Merge | TreeMerge))
        return context_of(dot for merge in merges for dot in merge.context)

    @property
    def bodies_bytes(self) -> int:
        """Size of the bodies that come with the entry."""
        adds = (change for change in self.changes if isinstance(change, MailAdd) and not change.copied)
        return sum({add.content_hash: add.size_bytes for add in adds}.values())

    @property
    def is_tree(self) -> bool:
        """True if the entry changes a folder tree rather than a mailbox."""
        return self.uidvalidity == 0

    def pack(self) -> bytes:
        """Return the entry without its dot for the log: a check of the dot and the rest, and then MessagePack."""
        if self._packed is None:
            packed = self._message_pack()
            self._keep_packed(_CHECKED + _check(self.dot, packed) + packed)
        assert self._packed is not None
        return self._packed

    def _keep_packed(self, packed: bytes) -> None:
        object.__setattr__(self, "_packed", packed)  # the store and each link need it, and the entry never changes

    def is_packed_as(self, packed: bytes) -> bool:
        """Return True if these are the bytes that `pack` makes of the entry, or made of it before there were checks."""
        anew = self._message_pack()
        return packed in {anew, _CHECKED + _check(self.dot, anew) + anew}

    def _message_pack(self) -> bytes:
        changes = [change_values(change) for change in self.changes]
        fields = (self.predecessors, self.time, self.modseq, self.user, self.mailbox_id, self.uidvalidity, changes)
        return cast("bytes", msgpack.packb(fields + self._later_fields()))

    def _later_fields(self) -> tuple[object, ...]:
        """Return the fields that earlier versions did not know, as far as the entry has them."""
        if self.dated:
            return self.histories, True
        return () if self.histories is None else (self.histories,)

    def digest(self) -> bytes:
        """Return `DIGEST_BYTES` over the whole entry with its dot: the same at every node that has the entry.

        `MailAdd.copied` is left out: it differs at a node that has lost a body, which then no longer travels with the
        entry.
        """
        if self._digest is None:
            changes = [change_values(_without_copied(change)) for change in self.changes]
            fields = (
                self.dot, self.predecessors, self.time, self.modseq, self.user, self.mailbox_id, self.uidvalidity,
                changes, *self._later_fields(),
            )  # fmt: skip
            digest = blake2b(cast("bytes", msgpack.packb(fields)), digest_size=DIGEST_BYTES).digest()
            object.__setattr__(self, "_digest", digest)  # the store and each link need it, and the entry never changes
        assert self._digest is not None
        return self._digest

    def stands_on(self, head: Dot, history: bytes) -> bool:
        """Return True if the entry follows from a head with this history.

        One that names no histories can only follow from one that names none: leaving them out proves nothing.
        """
        if self.histories is None:
            return head in self.predecessors and history == anchor(head)
        return (head, history) in zip(self.predecessors, self.histories, strict=True)

    @classmethod
    def unpack(cls, dot: Dot, packed: bytes) -> Entry:
        """Return the entry that `pack` packed. Raises ValueError if the bytes do not match their check.

        Entries that earlier versions packed have no check.
        """
        whole, is_checked = packed, packed.startswith(_CHECKED)
        if is_checked:
            check, packed = packed[len(_CHECKED) : _CHECK_END], packed[_CHECK_END:]
            if check != _check(dot, packed):
                raise ValueError(f"the log has altered the entry {dot.seq} of {dot.origin}")
        predecessors, time, modseq, user, mailbox_id, uidvalidity, changes, *also = msgpack.unpackb(
            packed, use_list=False
        )
        entry = cls(
            dot,
            tuple(Dot(origin, seq) for origin, seq in predecessors),
            time,
            modseq,
            user,
            mailbox_id,
            uidvalidity,
            tuple(change_from(kind, values) for kind, *values in changes),
            *also,
        )
        if is_checked:
            entry._keep_packed(whole)
        return entry


def anchor(dot: Dot) -> bytes:
    """Return the history of an entry that names no histories: a hash of its name alone, which every node computes.

    So histories begin anew at the last entry that an earlier version has numbered.
    """
    return blake2b(b"history:%b:%d" % (dot.origin.encode(), dot.seq), digest_size=DIGEST_BYTES).digest()


def _check(dot: Dot, packed: bytes) -> bytes:
    return blake2b(b"%b:%d:%b" % (dot.origin.encode(), dot.seq, packed), digest_size=DIGEST_BYTES).digest()


def _without_copied(change: Change) -> Change:
    return change._replace(copied=False) if isinstance(change, MailAdd) and change.copied else change
