"""A pair of Debian's Dovecots: sdbox, and the replicator, which runs dsync over TCP in both directions.

Everything that is not said here is as Debian's packages have it. OK means that a mail is on one disk.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from benchmarks.clients.wire import Address, MeasurementError
from benchmarks.clusters.cluster import PASSWORD
from benchmarks.clusters.proxy import HOST
from benchmarks.peers.pairs.pair import Doors, Pair
from benchmarks.peers.pairs.private_server import PrivateServer, mail_owner, tail

PROGRAM = Path("/usr/sbin/dovecot")
ADMIN = "/usr/bin/doveadm"
LMTP = Path("/usr/lib/dovecot/lmtp")
SESSIONS_MAX = 1000
LIMIT_S = 60.0
LOOK_EVERY_S = 0.2


class _Server(PrivateServer):
    """One of the two."""

    def __init__(self, directory: Path, users: Sequence[str]) -> None:
        self._users = users
        self.configuration = directory / "dovecot.conf"
        self.log = directory / "dovecot.log"
        super().__init__(directory, "doveadm", [str(PROGRAM), "-F", "-c", str(self.configuration)])

    def start(self, peer_port: int, begun_s: int | None) -> None:
        """Start the server, which replicates to the doveadm of its peer at this port."""
        owner = mail_owner()
        home = self.directory / "mail"
        home.mkdir(parents=True)
        for user in self._users if begun_s is not None else ():
            (home / user / "mail").mkdir(parents=True)
            (home / user / "mail" / "dovecot-uidvalidity").write_text(f"{begun_s:08x}")
            (home / user / "mail" / f"dovecot-uidvalidity.{begun_s:08x}").touch()
        users = "".join(
            f"{user}:{{PLAIN}}{PASSWORD}:{owner.pw_uid}:{owner.pw_gid}::{home / user}::\n" for user in self._users
        )
        (self.directory / "users").write_text(users, encoding="utf-8")
        self._configure(peer_port)
        self.start_configured()

    def replicate_to(self, peer_port: int | None) -> None:
        """Replicate to the peer at this port from now on; None: to nobody."""
        self._configure(peer_port)
        self._administer("reload")

    def replicate_all(self) -> None:
        """Have the replicator sync each user in full, now."""
        self._replicator("replicate", "-f", "*")

    def replicate_all_after_reload(self) -> None:
        """Do as `replicate_all` does, once the new replicator listens: the old one resets connections at its end."""
        by = time.monotonic() + LIMIT_S
        while True:
            try:
                return self.replicate_all()
            except MeasurementError:
                if time.monotonic() > by:
                    raise
                time.sleep(LOOK_EVERY_S)

    def has_replicated_all(self) -> bool:
        """Return True if no user waits for the replicator, and it syncs none."""
        queued = dict(line.split("\t") for line in self._replicator("status").splitlines()[1:])
        waits = any(int(number) for what, number in queued.items() if "requests" in what)
        running = [line.split("\t") for line in self._replicator("dsync-status").splitlines()[1:]]
        return not waits and not any(user for user, *_ in running)

    def is_replicated(self) -> bool:
        """Return True if the last sync of each user that the replicator knows has succeeded."""
        heading, *rows = (line.split("\t") for line in self._replicator("status", "*").splitlines())
        success, failed = (heading.index(name) for name in ("success sync", "failed"))
        return all(row[success] != "-" and row[failed] == "-" for row in rows)

    def _replicator(self, *words: str) -> str:
        """Return what `doveadm replicator` says."""
        return self._administer("-f", "tab", "replicator", *words)

    def _administer(self, *words: str) -> str:
        """Run doveadm, and return what it says. Raises MeasurementError."""
        command = [ADMIN, "-c", str(self.configuration), *words]
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, text=True)
        if done.returncode:
            raise MeasurementError(f"doveadm {' '.join(words)}: {done.stderr[-500:]}")
        return done.stdout

    def _configure(self, peer_port: int | None) -> None:
        replica = "" if peer_port is None else f"mail_replica = tcp:{HOST}:{peer_port}"
        self.configuration.write_text(self._configured(replica), encoding="utf-8")

    def _configured(self, replica: str) -> str:
        directory, owner, ports = self.directory, mail_owner(), self.ports
        internal, login = (owner.pw_name, owner.pw_name) if os.getuid() else ("dovecot", "dovenull")
        confined = "chroot =" if os.getuid() else ""
        return f"""
protocols = imap lmtp
listen = {HOST}
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {self.log}
ssl = no
disable_plaintext_auth = no
default_internal_user = {internal}
default_login_user = {login}
mail_location = sdbox:~/mail
mail_uid = {owner.pw_uid}
mail_gid = {owner.pw_gid}
first_valid_uid = 1
mail_max_userip_connections = {SESSIONS_MAX}
default_process_limit = {SESSIONS_MAX}
default_client_limit = {4 * SESSIONS_MAX}
mail_plugins = notify replication
doveadm_password = {PASSWORD}
passdb {{
  driver = passwd-file
  args = {directory}/users
}}
userdb {{
  driver = passwd-file
  args = {directory}/users
}}
plugin {{
  {replica}
}}
service imap-login {{
  {confined}
  inet_listener imap {{
    port = {ports["imap"]}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service imap {{
  process_limit = {SESSIONS_MAX}
}}
service lmtp {{
  inet_listener lmtp {{
    port = {ports["lmtp"]}
  }}
}}
service doveadm {{
  inet_listener {{
    port = {ports["doveadm"]}
  }}
}}
service replicator {{
  process_min_avail = 1
  unix_listener replicator-doveadm {{
    mode = 0600
    user = {owner.pw_name}
  }}
}}
service aggregator {{
  {confined}
  fifo_listener replication-notify-fifo {{
    user = {owner.pw_name}
  }}
  unix_listener replication-notify {{
    user = {owner.pw_name}
  }}
}}
"""


class DovecotPair(Pair):
    name = "Dovecot"

    def __init__(
        self, directory: Path, users: Sequence[str], *, late: bool = False, begun_s: int | None = None
    ) -> None:
        """See `Pair`. UIDVALIDITYs count up from `begun_s`, a time; by default they are the time."""
        super().__init__(directory, users, late=late)
        self._begun_s = begun_s
        self._servers = [_Server(directory / side, users) for side in ("near", "far")]

    @classmethod
    def version(cls) -> str | None:
        if not PROGRAM.exists() or not LMTP.exists():
            return None
        said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True).stdout
        return said.partition(" ")[0]

    def __enter__(self) -> Self:
        try:
            self._start(0)
            if not self.late:
                self._start(1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()

    @property
    def near(self) -> Doors:
        return self._servers[0].doors

    @property
    def far(self) -> Doors:
        return self._servers[1].doors

    @property
    def near_doveadm(self) -> Address:
        """The listener by which the far server syncs with the near one."""
        return Address(HOST, self._servers[0].ports["doveadm"])

    @property
    def far_doveadm(self) -> Address:
        """The listener by which the near server syncs with the far one."""
        return Address(HOST, self._servers[1].ports["doveadm"])

    def part(self) -> None:
        """Have neither replicate to the other any more."""
        for server in self._servers:
            server.replicate_to(None)

    def join(self) -> None:
        """Have both replicate to each other again. Return when each has synced all users in full.

        One begins after the other is done: two that sync a user at once may wait for each other's locks, for 30 s.
        """
        for server, peer in zip(self._servers, (self.far_doveadm, self.near_doveadm), strict=True):
            server.replicate_to(peer.port)
            server.replicate_all_after_reload()
            by = time.monotonic() + LIMIT_S
            while not server.has_replicated_all():
                if time.monotonic() > by:
                    raise MeasurementError(f"a Dovecot does not sync all users: {self.log_tail()}")
                time.sleep(LOOK_EVERY_S)

    def start_far(self) -> None:
        self._start(1)
        self._servers[0].replicate_all()

    def is_filled(self) -> bool:
        return self._servers[0].is_replicated()

    def is_settled(self) -> bool:
        return all(server.is_replicated() for server in self._servers)

    def near_processes(self) -> list[psutil.Process]:
        return self._servers[0].processes()

    def far_processes(self) -> list[psutil.Process]:
        return self._servers[1].processes()

    def log_tail(self) -> str:
        return "\n".join(f"{server.directory.name}: {tail(server.log)}" for server in self._servers)

    def _start(self, number: int) -> None:
        self._servers[number].start(self._servers[1 - number].ports["doveadm"], self._begun_s)
