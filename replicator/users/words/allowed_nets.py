"""The word of a passwd-file's line that says from where a user may log in: `allow_nets=192.0.2.0/24,2001:db8::/32`.

It is Dovecot's own word, with Dovecot's values: IP addresses and networks, and `local` for attempts that come from no
IP address, such as those by a socket in the file system. It stands in any field after the hash; one with colons, as
IPv6 has them, only in the eighth, which ends with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from replicator.runtime.addresses import is_in
from replicator.users.words.extra_field import EXTRA_FIELD

WORD = "allow_nets"
LOCAL = "local"

_MAPPED = IPv6Network("::ffff:0:0/96")
_WORDS = re.compile(rf"(?:^|(?<=[:\s])){WORD}(?:=(\S*)|(?=\s|$))")


class AllowedNets(NamedTuple):
    """Networks from which a user may log in; `is_local`: also from no IP address. Prints as its values in a line."""

    networks: tuple[IPv4Network | IPv6Network, ...]
    is_local: bool = False

    def has(self, address: str | None) -> bool:
        """Return True if the user may log in from an IP address; None or empty: from none."""
        return is_in(address, self.networks) if address else self.is_local

    def __str__(self) -> str:
        return ",".join(self.words())

    def words(self) -> Iterator[str]:
        """Yield the values: a network of one address is that address."""
        for network in self.networks:
            yield str(network.network_address if network.num_addresses == 1 else network)
        if self.is_local:
            yield LOCAL


NO_NETS = AllowedNets(())
"""No networks, for a word that makes no sense: it must not open an account."""


def allowed_nets(fields: str) -> AllowedNets | None:
    """Return from where the fields after the hash let a user in; None: from everywhere. Raises ValueError."""
    found: list[str] = [value for field in fields.split(":", EXTRA_FIELD - 2) for value in _WORDS.findall(field)]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"{WORD}: expected the word once, with all networks; {_UNTIL}")
    return parse_nets(found[0])


def parse_nets(text: str) -> AllowedNets:
    """Return the networks of a value. Raises ValueError."""
    names = text.split(",")
    return AllowedNets(tuple(_network(name) for name in names if name != LOCAL), LOCAL in names)


_UNTIL = "until it is corrected, the user cannot log in"


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        expected = f"IP addresses and networks such as 192.0.2.0/24, or {LOCAL!r}, with commas between them"
        raise ValueError(f"{WORD}: expected {expected}, not {text!r}; {_UNTIL}") from None
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):  # clients' addresses are IPv4 then
        bits = network.prefixlen - _MAPPED.prefixlen
        return ip_network((int(network.network_address) & 0xFFFF_FFFF, bits))
    return network
