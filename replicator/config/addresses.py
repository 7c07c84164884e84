"""Addresses and networks as a configuration has them, and as it writes them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import NamedTuple

from replicator.runtime.addresses import is_loopback


class Address(NamedTuple):
    """Address to listen on or connect to. Prints as it is configured: `host:port`, IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can be on the other end."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class SocketPath:
    """Socket in the file system, to listen on or connect to. Prints as it is configured: `unix:PATH`."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def is_loopback(self) -> bool:
        """True: only a program on this machine can be on the other end."""
        return True


PeerAddress = Address | SocketPath


Network = IPv4Network | IPv6Network
