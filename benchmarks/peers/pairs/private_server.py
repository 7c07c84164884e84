"""A server of others, run for a measurement: its directory, its ports and its processes."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.clients.wire import Address
from benchmarks.clusters.cluster import reserve_ports
from benchmarks.clusters.proxy import HOST
from benchmarks.peers.pairs.pair import Doors
from benchmarks.peers.pairs.processes import Daemon


class PrivateServer:
    """A server with all its files under `directory`, and a port for LMTP, IMAP and one more door, to its peer."""

    def __init__(
        self, directory: Path, peer_door: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        doors = ("lmtp", "imap", peer_door)
        self.directory = directory
        self.output = directory / "output.log"
        self._reserved = reserve_ports(len(doors))
        self.ports = {door: int(port.getsockname()[1]) for door, port in zip(doors, self._reserved, strict=True)}
        self.doors = Doors(Address(HOST, self.ports["lmtp"]), Address(HOST, self.ports["imap"]))
        self._daemon = Daemon(command, self.output, environment)

    def start_configured(self) -> None:
        """Start the server, whose configuration is written, and wait until its doors are open."""
        owner = mail_owner()
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        self._daemon.start()
        self._daemon.wait_listening(self.doors)

    def stop(self) -> None:
        self._daemon.stop()
        for port in self._reserved:
            port.close()

    def processes(self) -> list[psutil.Process]:
        return self._daemon.processes()


def mail_owner() -> pwd.struct_passwd:
    """Return the account that other servers keep mail as: nobody for root, as which they refuse to."""
    return pwd.getpwuid(os.getuid()) if os.getuid() else pwd.getpwnam("nobody")


def tail(log: Path) -> str:
    """Return the last lines of a log file, which need not exist."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
