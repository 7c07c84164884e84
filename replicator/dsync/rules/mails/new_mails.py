"""New UIDs of the mails above the last common UID, of which each side may have given the same to different mails."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum, auto
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

    def __init__(self, items: Sequence[T], make: Callable[[T], NewMail]) -> None:
        self._items = items
        self._make = make

    def __iter__(self) -> Iterator[NewMail]:
        return map(self._make, self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, mail: object) -> bool:
        return any(one == mail for one in self)


class _Side(Enum):
    OWN = auto()
    PEER = auto()


class NewUids:
    """The UIDs of all new mails of both sides after the sync. Iterate over them once; `uidnext` is right then.

    A mail keeps a UID that the other side has not given yet. The rest get new ones, in an order by which both sides
    count alike: the smaller (name, UID) of the two next mails goes first.
    """

    def __init__(
        self, own: Collection[NewMail], peers: Collection[NewMail], *, own_uidnext: int, peer_uidnext: int
    ) -> None:
        """`own` and `peers` ascend by UID, and are gone through more than once."""
        self._mails = {_Side.OWN: own, _Side.PEER: peers}
        self._own_uidnext, self._peer_uidnext = own_uidnext, peer_uidnext
        self.uidnext = max(own_uidnext, peer_uidnext)

    def __iter__(self) -> Iterator[Placed]:
        shared = self._shared()
        waiting = {side: _by_guid(mails, shared) for side, mails in self._mails.items()}
        paired: set[tuple[_Side, int]] = set()
        for side, mail in self._in_order():
            if (side, mail.uid) in paired:
                paired.remove((side, mail.uid))
                continue
            uids = {side: mail.uid}
            if mail.guid in shared:
                waiting[side][mail.guid].popleft()
                other = _Side.PEER if side is _Side.OWN else _Side.OWN
                if waiting[other][mail.guid]:
                    uids[other] = waiting[other][mail.guid].popleft()
                    paired.add((other, uids[other]))
            yield self._placed(mail.guid, uids.get(_Side.OWN), uids.get(_Side.PEER))

    def _shared(self) -> set[bytes]:
        """Return the GUIDs that both sides have, in memory for the fewer ones."""
        few, many = sorted(self._mails.values(), key=len)
        guids = {mail.guid for mail in few}
        return {mail.guid for mail in many if mail.guid in guids} if guids else guids

    def _in_order(self) -> Iterator[tuple[_Side, NewMail]]:
        """Yield all mails, always the smaller one of the two that are next; if they are one mail, both."""
        mine, theirs = map(iter, self._mails.values())
        own, peers = next(mine, None), next(theirs, None)
        while own is not None or peers is not None:
            are_one = own is not None and peers is not None and own[1:] == peers[1:]
            is_own = peers is None or (own is not None and own <= peers)
            if own is not None and (are_one or is_own):
                yield _Side.OWN, own
                own = next(mine, None)
            if peers is not None and (are_one or not is_own):
                yield _Side.PEER, peers
                peers = next(theirs, None)

    def _placed(self, guid: bytes, own: int | None, peers: int | None) -> Placed:
        """Return where a mail goes: a UID may not stay if it is one that the other side has given to another mail."""
        if own is not None and (own == peers or own >= self._peer_uidnext):
            return Placed(guid, own, own, peers)
        if peers is not None and peers >= self._own_uidnext:
            return Placed(guid, peers, own, peers)
        self.uidnext += 1
        return Placed(guid, self.uidnext - 1, own, peers)


def _by_guid(mails: Iterable[NewMail], guids: AbstractSet[bytes]) -> defaultdict[bytes, deque[int]]:
    """Return the UIDs of mails with these GUIDs."""
    found: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for mail in mails if guids else ():
        if mail.guid in guids:
            found[mail.guid].append(mail.uid)
    return found
