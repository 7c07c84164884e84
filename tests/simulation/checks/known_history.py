"""The part of a history that is not lost, and the copies of mail that it explains."""

from __future__ import annotations

from collections import Counter, defaultdict

from protocol.values import Dot
from replicator.store.db.chain import Chain
from tests.simulation.records.history import History, Placement


class KnownHistory:
    """The entries of the history that are in these logs or, without them, in what these chains show.

    Chains count only where disks were lost: a merge may have learned a branch as a state before its log was gone.
    """

    def __init__(self, history: History, context: dict[str, int], chains: dict[bytes, Chain]) -> None:
        self.history = history
        self._context = context
        self._chains = chains if history.has_lost_disks else {}
        self.abandoned = {dot for dot, chain_id in history.abandoned.items() if not chains[chain_id].has_seen(dot)}
        self._added: dict[bytes, dict[Placement, bytes]] = defaultdict(dict)
        for placement, added in history.added.items():
            if self.has(placement[0]):
                self._added[added.mailbox_id][placement] = added.guid

    def has(self, dot: Dot) -> bool:
        if self._context.get(dot.origin, 0) >= dot.seq:
            return dot not in self.abandoned
        chain = self._chains.get(self.history.chain_of.get(dot, b""))
        return chain is not None and chain.has_seen(dot)

    def mailboxes(self) -> set[bytes]:
        return set(self._added)

    def by_guid(self, mailbox_id: bytes) -> dict[bytes, list[Placement]]:
        found: dict[bytes, list[Placement]] = defaultdict(list)
        for placement, guid in self._added.get(mailbox_id, {}).items():
            found[guid].append(placement)
        return found

    def is_expunged(self, placement: Placement) -> bool:
        return any(map(self.has, self.history.expunged.get(placement, ())))

    def extra_copies(self) -> Counter[bytes]:
        """Return by body how many more copies of a mail there may be because nodes have moved it.

        It may be in each folder to which nodes of different components have moved it. It may also be in one from which
        it was moved and expunged: by another placement, or because a disk was lost with the expunge. And it stays in
        one that a merge had united with another, if it was renamed on the other side of a cut, which separates the two
        again before the mail is expunged there.
        """
        hash_of = {added.guid: added.content_hash for added in self.history.added.values()}
        extra: Counter[bytes] = Counter()
        for guid, moves in self.history.moved.items():
            left = {mailbox_id for pair in moves for mailbox_id in pair if self._is_left(mailbox_id, guid)}
            destinations = {destination for _, destination in moves}
            allowed = {one for one in left if one in destinations or self._may_stay(one, guid)}
            extra[hash_of[guid]] += max(0, len(allowed) - 1)
        return extra

    def _is_left(self, mailbox_id: bytes, guid: bytes) -> bool:
        return not all(map(self.is_expunged, self._placements(mailbox_id, guid)))

    def _may_stay(self, mailbox_id: bytes, guid: bytes) -> bool:
        return mailbox_id in self.history.emptied or self._was_expunged(mailbox_id, guid)

    def _was_expunged(self, mailbox_id: bytes, guid: bytes) -> bool:
        """Return True if a placement of the message was expunged there, even if no disk has the expunge any more."""
        return any(placement in self.history.expunged for placement in self._placements(mailbox_id, guid))

    def _placements(self, mailbox_id: bytes, guid: bytes) -> list[Placement]:
        return [placement for placement, one in self._added.get(mailbox_id, {}).items() if one == guid]
