"""New UIDs of the mails above the last common UID, of which each side may have given the same to different mails."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple


class NewMail(NamedTuple):
    """A mail that one side has above the last common UID. `name`: its GUID as that side writes it, for the order."""

    name: str
    uid: int
    guid: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A mail after the sync: its UID on both sides, and the UIDs that it had; None: that side lacks it."""

    guid: str
    uid: int
    own: int | None = None
    peers: int | None = None


class _Side(Enum):
    OWN = auto()
    PEER = auto()


def place(
    own: Sequence[NewMail], peers: Sequence[NewMail], *, own_uidnext: int, peer_uidnext: int
) -> tuple[list[Placed], int]:
    """Return where all mails go, ascending by UID, and the UIDNEXT after that. Both sequences ascend by UID.

    A mail keeps a UID that the other side has not given yet. The rest get new ones, in an order by which both sides
    count alike: the smaller (name, UID) of the two next mails goes first.
    """
    placed = list[Placed]()
    uidnext = max(own_uidnext, peer_uidnext)
    waiting = {_Side.OWN: deque(own), _Side.PEER: deque(peers)}
    alone = {side: _by_guid(mails) for side, mails in waiting.items()}
    paired: set[tuple[_Side, int]] = set()
    for side, mail in _in_order(waiting):
        if (side, mail.uid) in paired:
            continue
        uids = {side: mail.uid}
        alone[side][mail.guid].popleft()
        other = _Side.PEER if side is _Side.OWN else _Side.OWN
        if alone[other][mail.guid]:
            uids[other] = alone[other][mail.guid].popleft()
            paired.add((other, uids[other]))
        found = Placed(mail.guid, 0, uids.get(_Side.OWN), uids.get(_Side.PEER))
        uid = _kept_uid(found, own_uidnext, peer_uidnext)
        if uid is None:
            uid, uidnext = uidnext, uidnext + 1
        placed.append(replace(found, uid=uid))
    return sorted(placed, key=lambda one: one.uid), uidnext


def _by_guid(mails: Iterable[NewMail]) -> defaultdict[str, deque[int]]:
    found: defaultdict[str, deque[int]] = defaultdict(deque)
    for mail in mails:
        found[mail.guid].append(mail.uid)
    return found


def _in_order(waiting: dict[_Side, deque[NewMail]]) -> Sequence[tuple[_Side, NewMail]]:
    """Return all mails, always the smaller one of the two that are next; if they are one mail, both."""
    ordered = []
    while any(waiting.values()):
        heads = [(mails[0], side) for side, mails in waiting.items() if mails]
        are_one = len({(mail.guid, mail.uid) for mail, _ in heads}) == 1
        for mail, side in heads if are_one else [min(heads, key=lambda head: head[0])]:
            waiting[side].popleft()
            ordered.append((side, mail))
    return ordered


def _kept_uid(mail: Placed, own_uidnext: int, peer_uidnext: int) -> int | None:
    """Return the UID that may stay; None if each is one that the other side has given to another mail."""
    if mail.own is not None and (mail.own == mail.peers or mail.own >= peer_uidnext):
        return mail.own
    if mail.peers is not None and mail.peers >= own_uidnext:
        return mail.peers
    return None
