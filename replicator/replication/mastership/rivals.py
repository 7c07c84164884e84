"""Other runs of this node that other nodes advertise, and whether this one gives way (design section 5)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import trio

from protocol.commands import LinkAdvert
from protocol.values import is_older, sid_of
from replicator.replication.links.link import PeerLink

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rival:
    """Another run of this node that answers this run's advertisements: from `since` to `until` without a pause."""

    since: float
    until: float
    is_told: bool = False


class Rivals:
    """Other runs of this node whose advertisements overrule those of this run, `origin`.

    This run ends only if the other one is to stay, and if it answers long enough: leftovers of a past run and single
    wrong advertisements do not come again and again. `outlived` is called with the origin of an older run that is alive
    too. `peers`: the configured ones, now and later.
    """

    def __init__(
        self,
        origin: str,
        timeout_s: float,
        *,
        peers: AbstractSet[str],
        link_to: Callable[[str | None], PeerLink | None],
        outlived: Callable[[str], None],
    ) -> None:
        self._origin = origin
        self._peers = peers
        self._link_to = link_to
        self._timeout_s = timeout_s
        self._outlived = outlived
        # By origin, and True if that run is to stay. Bounded: one is forgotten a timeout after its last advertisement.
        self._rivals: dict[tuple[str, bool], _Rival] = {}

    def meet(self, advert: LinkAdvert) -> None:
        """Handle an advertisement by which another run of this node overrules this one."""
        now, origin = trio.current_time(), advert.origin
        self._rivals = {key: rival for key, rival in self._rivals.items() if now - rival.until <= self._timeout_s}
        stays = is_older(origin, self._origin) and self._can_be_linked(advert)
        rival = self._rivals.setdefault((origin, stays), _Rival(now, now))
        rival.until = now
        if rival.is_told or now - rival.since < 2 * self._timeout_s:
            return
        rival.is_told = True
        if stays:
            self._outlived(origin)
        else:
            log.warning(
                "other nodes keep reporting that %s also runs as %s, and this process, %s, stays: stop the other"
                " one; if there is none, one of the nodes is faulty",
                sid_of(self._origin),
                origin,
                self._origin,
            )

    def _can_be_linked(self, rival: LinkAdvert) -> bool:
        """Return True if the other run has a link to a peer that is not linked to this run.

        A peer has only one link to a node.
        """
        return any(near in self._peers and self._link_to(near) is None for near, _ in rival.neighbours)
