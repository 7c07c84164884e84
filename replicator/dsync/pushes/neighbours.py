"""Neighbours in the cluster that call the same Dovecot for the same users, so that one of both works for nothing.

Nodes say in HELLO what they call: a hash of each Dovecot's address and of the patterns of its users.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256

from replicator.config import DovecotConfig

CAPABILITY = "DOVECOT-"
"""Begins the HELLO capability of a node that calls a Dovecot; the hash follows."""

TOLD_MAX = 8
"""Dovecots that a HELLO names, which has to be short. More are not told, so nobody notices those."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A node that is linked with this one. `is_here`: on this machine, as far as the address of the link says."""

    sid: str
    capabilities: Collection[str]
    is_here: bool

    def calls(self, dovecot: DovecotConfig) -> bool:
        """Return True if it calls this Dovecot of this node's, too. Each machine has its own at loopback."""
        return capability(dovecot) in self.capabilities and (self.is_here or not dovecot.address.is_loopback)


def dovecot_capabilities(dovecots: Iterable[DovecotConfig]) -> tuple[str, ...]:
    """Return the HELLO capabilities of a node that calls these Dovecots."""
    return tuple(map(capability, dovecots))[:TOLD_MAX]


def capability(dovecot: DovecotConfig) -> str:
    """Return the HELLO capability of a node that calls this Dovecot."""
    whom = "\n".join([str(dovecot.address).lower(), *sorted(dovecot.users)])
    return f"{CAPABILITY}{sha256(whom.encode(errors='surrogateescape')).hexdigest()[:16]}"
