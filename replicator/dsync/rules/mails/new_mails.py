"""New UIDs of the mails above the last common UID, of which each side may have given the same to different mails."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Generic, NamedTuple, TypeVar

from replicator.dsync.rules.mails.placed_mails import Placed


class NewMail(NamedTuple):
    """A mail that one side has above the last common UID. `name`: its GUID as that side writes it, for the order."""

    name: str
    uid: int
    guid: bytes


T = TypeVar("T")


class Each(Collection[NewMail], Generic[T]):
    """Mails that are made of other items one by one: together they would take more memory than these."""

    def __init__(self, items: Collection[T], make: Callable[[T], NewMail]) -> None:
        self._items = items
        self._make = make

    def __iter__(self) -> Iterator[NewMail]:
        return map(self._make, self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, mail: object) -> bool:
        return any(one == mail for one in self)


class _Side:
    """One side's new mails. `partners`: for each, the UID of the same mail at the other side, or 0; empty: for none."""

    def __init__(self, mails: Collection[NewMail], uidnext: int) -> None:
        self.mails = mails
        self.uidnext = uidnext
        self.partners = array("I")
        self.passed = 0  # how many mails have had their turn
        self.last_uid = 0  # of these

    def next_partner(self, uid: int) -> int:
        """Return the partner of the next mail, which has this UID, and pass it."""
        self.passed, self.last_uid = self.passed + 1, uid
        return self.partners[self.passed - 1] if self.partners else 0


class NewUids:
    """The UIDs of all new mails of both sides after the sync. Iterate over them once; `uidnext` is right then.

    A mail keeps a UID that the other side has not given yet. The rest get new ones, in an order by which both sides
    count alike: the smaller (name, UID) of the two next mails goes first.
    """

    def __init__(
        self, own: Collection[NewMail], peers: Collection[NewMail], *, own_uidnext: int, peer_uidnext: int
    ) -> None:
        """`own` and `peers` ascend by UID, and are gone through more than once."""
        self._own, self._peers = _Side(own, own_uidnext), _Side(peers, peer_uidnext)
        self.uidnext = max(own_uidnext, peer_uidnext)

    def __iter__(self) -> Iterator[Placed]:
        few, many = sorted((self._own, self._peers), key=lambda side: len(side.mails))
        _find_partners(few, many)
        for side, mail in self._in_order():
            other = self._peers if side is self._own else self._own
            partner = side.next_partner(mail.uid)
            if partner and partner <= other.last_uid:
                continue  # it has had its turn with its partner
            own, peers = (mail.uid, partner) if side is self._own else (partner, mail.uid)
            yield self._placed(mail.guid, own or None, peers or None)

    def _in_order(self) -> Iterator[tuple[_Side, NewMail]]:
        """Yield all mails, always the smaller one of the two that are next; if they are one mail, both."""
        mine, theirs = iter(self._own.mails), iter(self._peers.mails)
        own, peers = next(mine, None), next(theirs, None)
        while own is not None or peers is not None:
            are_one = own is not None and peers is not None and own[1:] == peers[1:]
            is_own = peers is None or (own is not None and own <= peers)
            if own is not None and (are_one or is_own):
                yield self._own, own
                own = next(mine, None)
            if peers is not None and (are_one or not is_own):
                yield self._peers, peers
                peers = next(theirs, None)

    def _placed(self, guid: bytes, own: int | None, peers: int | None) -> Placed:
        """Return where a mail goes: a UID may not stay if it is one that the other side has given to another mail."""
        if own is not None and (own == peers or own >= self._peers.uidnext):
            return Placed(guid, own, own, peers)
        if peers is not None and peers >= self._own.uidnext:
            return Placed(guid, peers, own, peers)
        self.uidnext += 1
        return Placed(guid, self.uidnext - 1, own, peers)


def _find_partners(few: _Side, many: _Side) -> None:
    """Note which mails both sides have. If a side has a GUID several times, the first one counts."""
    if not few.mails:
        return
    for side in (few, many):
        side.partners = array("I", bytes(array("I").itemsize * len(side.mails)))
    places = dict[bytes, int]()
    for place, mail in enumerate(few.mails):
        places.setdefault(mail.guid, place)
    uids = array("I", (mail.uid for mail in few.mails))
    for at, mail in enumerate(many.mails):
        place = places.pop(mail.guid, -1)
        if place >= 0:
            few.partners[place], many.partners[at] = mail.uid, uids[place]
