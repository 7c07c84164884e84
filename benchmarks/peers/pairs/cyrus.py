"""A pair of Debian's Cyrus IMAP servers: rolling replication, from the near one to the far one only.

Debian's package cannot be installed beside Dovecot's, so its programs may lie unpacked under the directory that the
environment variable CYRUS_ROOT names. OK means that a mail is on one disk.
"""

from __future__ import annotations

import grp
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from benchmarks.clients.wire import ImapClient, MeasurementError
from benchmarks.clusters.cluster import PASSWORD
from benchmarks.clusters.proxy import HOST
from benchmarks.peers.pairs.pair import Doors, Pair
from benchmarks.peers.pairs.private_server import PrivateServer, mail_owner, tail
from benchmarks.peers.pairs.processes import Daemon

ROOT = Path(os.environ.get("CYRUS_ROOT", "/"))
PROGRAMS = ROOT / "usr/lib/cyrus/bin"
PASSWORDS = ROOT / "usr/sbin/saslpasswd2"
ADMIN = "cyrus"
FAR = "far"
SESSIONS_MAX = 1000
LIMIT_S = 60.0


class CyrusServer(PrivateServer):
    """A Cyrus, alone or one of the two. `rolling`, which only the near one starts, sends the peer all changes."""

    def __init__(self, directory: Path, users: Sequence[str]) -> None:
        self._users = users
        self._settings = directory / "imapd.conf"
        self._services = directory / "cyrus.conf"
        files = ["-C", str(self._settings), "-M", str(self._services), "-p", str(directory / "master.pid")]
        super().__init__(directory, "sync", [_program("master"), *files], _environment())
        client = [_program("sync_client"), "-C", str(self._settings), "-r"]
        self.rolling = Daemon(client, self.output, {**_environment(), "CYRUS_ISDAEMON": "1"})

    def start(self, peer_port: int | None) -> None:
        """Start the server with the users' accounts and no mailbox. The near one has a peer to send changes to."""
        for name in ("config", "spool", "socket"):
            (self.directory / name).mkdir(parents=True)
        self._settings.write_text(self._configured(peer_port), encoding="utf-8")
        self._services.write_text(self._listed(), encoding="utf-8")
        for user in (*self._users, ADMIN):
            _run(
                [str(PASSWORDS), "-p", "-c", "-f", str(self.directory / "sasldb2"), "-u", self.directory.name, user],
                PASSWORD,
            )
        self.start_configured()

    def stop(self) -> None:
        self.rolling.stop()
        super().stop()

    def processes(self) -> list[psutil.Process]:
        return [*super().processes(), *self.rolling.processes()]

    def create_mailboxes(self) -> None:
        with ImapClient(self.doors.imap, ADMIN, PASSWORD) as session:
            for user in self._users:
                session.command(f"CREATE user.{user}")

    def start_sync_all(self) -> subprocess.Popen[bytes]:
        """Start to send all users' mailboxes to the peer, once."""
        with self.output.open("ab") as log:
            return subprocess.Popen(
                [_program("sync_client"), "-C", str(self._settings), "-A"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
            )

    def _configured(self, peer_port: int | None) -> str:
        directory, owner = self.directory, mail_owner()
        to_peer = "" if peer_port is None else f"sync_host: {HOST}\nsync_port: {peer_port}\nsync_log: yes\n"
        return f"""
configdirectory: {directory}/config
partition-default: {directory}/spool
defaultpartition: default
servername: {directory.name}
cyrus_user: {owner.pw_name}
cyrus_group: {_group(owner.pw_gid)}
admins: {ADMIN}
altnamespace: no
unixhierarchysep: no
lmtp_downcase_rcpt: yes
hashimapspool: yes
allowplaintext: yes
sasl_mech_list: PLAIN
sasl_pwcheck_method: auxprop
sasl_auxprop_plugin: sasldb
sasl_sasldb_path: {directory}/sasldb2
sasl_auto_transition: no
lmtpsocket: {directory}/socket/lmtp
idlesocket: {directory}/socket/idle
notifysocket: {directory}/socket/notify
sync_authname: {ADMIN}
sync_realm: {FAR}
sync_password: {PASSWORD}
sync_repeat_interval: 1
{to_peer}"""

    def _listed(self) -> str:
        settings, ports = self._settings, self.ports
        return f"""
START {{
  recover cmd="{_program("ctl_cyrusdb")} -C {settings} -r"
}}
SERVICES {{
  imap cmd="{_program("imapd")} -C {settings} -U 30" listen="{HOST}:{ports["imap"]}" prefork=0 maxchild={SESSIONS_MAX}
  lmtp cmd="{_program("lmtpd")} -C {settings} -a" listen="{HOST}:{ports["lmtp"]}" prefork=0 maxchild=20
  sync cmd="{_program("sync_server")} -C {settings}" listen="{HOST}:{ports["sync"]}" prefork=0 maxchild=20
}}
EVENTS {{
  checkpoint cmd="{_program("ctl_cyrusdb")} -C {settings} -c" period=30
}}
DAEMON {{
  idled cmd="{_program("idled")} -C {settings}"
}}
"""


class CyrusPair(Pair):
    name = "Cyrus"

    def __init__(self, directory: Path, users: Sequence[str], *, late: bool = False) -> None:
        super().__init__(directory, users, late=late)
        self._near, self._far = (CyrusServer(directory / side, users) for side in ("near", FAR))
        self._sync: subprocess.Popen[bytes] | None = None

    @classmethod
    def version(cls) -> str | None:
        if not (PROGRAMS / "sync_client").exists() or not (PROGRAMS / "imapd").exists() or not PASSWORDS.exists():
            return None
        said = _run([_program("master"), "-V"]).split()
        return next((word for word in said if re.match(r"\d", word)), "?").partition("-")[0]

    def __enter__(self) -> Self:
        try:
            if not self.late:
                self._far.start(None)
            self._near.start(self._far.ports["sync"])
            self._near.create_mailboxes()
            if not self.late:
                self._near.rolling.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.kill()
            self._sync.wait()
        for server in (self._near, self._far):
            server.stop()

    @property
    def near(self) -> Doors:
        return self._near.doors

    @property
    def far(self) -> Doors:
        return self._far.doors

    def start_far(self) -> None:
        self._far.start(None)
        self._sync = self._near.start_sync_all()

    def is_filled(self) -> bool:
        assert self._sync is not None
        code = self._sync.poll()
        if code:
            raise MeasurementError(f"sync_client -A has ended with {code}")
        if code == 0 and not self._near.rolling.processes():
            self._near.rolling.start()
        return code == 0

    def near_processes(self) -> list[psutil.Process]:
        return self._near.processes()

    def far_processes(self) -> list[psutil.Process]:
        return self._far.processes()

    def log_tail(self) -> str:
        return "\n".join(f"{server.directory.name}: {tail(server.output)}" for server in (self._near, self._far))


def _program(name: str) -> str:
    return str(PROGRAMS / name)


def _environment() -> Mapping[str, str]:
    """Return the environment in which unpacked programs find their libraries."""
    folders = [path for path in (ROOT / "usr/lib", ROOT / "lib") if path.is_dir()]
    libraries = [str(triplet) for folder in folders for triplet in folder.glob("*-linux-gnu*")]
    return dict(os.environ) if Path("/") == ROOT else {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def _group(number: int) -> str:
    return grp.getgrgid(number).gr_name


def _run(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=_environment()
    )
    if done.returncode:
        raise MeasurementError(f"{command[0]}: {done.stderr[-500:]}")
    return done.stdout
