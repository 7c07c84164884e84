"""Debian's Dovecot as a private server on loopback: the peer beside which IMAP is measured.

Mail lies in Maildirs that are written here, not delivered. Dovecot refuses to keep mail as root, so for root it runs as
nobody. Processes are those of a default installation: one for each session, after a log-in process.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import psutil

from benchmarks.clients.wire import Address, ImapClient, MeasurementError
from benchmarks.clusters.cluster import END_WITHIN_S, PASSWORD, reserve_ports
from benchmarks.clusters.proxy import HOST

PROGRAM = Path("/usr/sbin/dovecot")
SESSIONS_MAX = 1000
START_WITHIN_S = 10.0


class Dovecot:
    """A Dovecot under `directory`, which must be readable for all. Leaving the `with` block ends it.

    `layout` is appended to the place of the mail, such as `:LAYOUT=fs`, and `extra` to the configuration.
    """

    def __init__(self, directory: Path, layout: str = "", extra: str = "") -> None:
        if not PROGRAM.exists():
            raise MeasurementError("Dovecot is not installed: apt-get install dovecot-imapd")
        self._directory = directory
        self._layout, self._extra = layout, extra
        self._user = pwd.getpwuid(os.getuid()) if os.getuid() else pwd.getpwnam("nobody")
        self._reserved = reserve_ports(1)[0]
        self.address = Address(HOST, int(self._reserved.getsockname()[1]))
        self._process: subprocess.Popen[bytes] | None = None
        said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True).stdout
        self.version = said.partition(" ")[0]

    def fill(self, user: str, mails: Iterable[bytes]) -> None:
        """Write a Maildir with these mails, in their order, before the server starts."""
        maildir = self.mail(user)
        for name in ("new", "cur", "tmp"):
            (maildir / name).mkdir(parents=True)
        for number, mail in enumerate(mails, 1):
            (maildir / "cur" / f"{number:010d}.bench,S={len(mail)}:2,").write_bytes(mail)

    def mail(self, user: str) -> Path:
        """Return where a user's mail is."""
        return self._directory / "mail" / user

    def own(self, path: Path) -> None:
        """Give what was made for the server while it runs to its user."""
        for one in (path, *path.rglob("*")):
            os.chown(one, self._user.pw_uid, self._user.pw_gid)

    def __enter__(self) -> Self:
        configuration = self._directory / "dovecot.conf"
        configuration.write_text(self._configuration(), encoding="utf-8")
        self.own(self._directory)
        with (self._directory / "output.log").open("ab") as log:
            command = [str(PROGRAM), "-F", "-c", str(configuration)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_WITHIN_S
        while not _listens(self.address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                log_text = (self._directory / "dovecot.log").read_text(encoding="utf-8", errors="replace")
                raise MeasurementError(f"Dovecot does not start: {log_text[-1000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._reserved.close()
        self._process.terminate()
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def imap(self, user: str) -> ImapClient:
        return ImapClient(self.address, user, PASSWORD)

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes, those of its sessions included."""
        assert self._process is not None
        master = psutil.Process(self._process.pid)
        return [master, *master.children(recursive=True)]

    def _configuration(self) -> str:
        directory, user = self._directory, self._user
        return f"""
protocols = imap
listen = {HOST}
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/dovecot.log
ssl = no
disable_plaintext_auth = no
default_internal_user = {user.pw_name if os.getuid() else "dovecot"}
default_login_user = {user.pw_name if os.getuid() else "dovenull"}
mail_location = maildir:{directory}/mail/%u{self._layout}
mail_uid = {user.pw_uid}
mail_gid = {user.pw_gid}
first_valid_uid = 1
mail_max_userip_connections = {SESSIONS_MAX}
default_process_limit = {SESSIONS_MAX}
default_client_limit = {4 * SESSIONS_MAX}
passdb {{
  driver = static
  args = password={PASSWORD}
}}
userdb {{
  driver = static
  args = uid={user.pw_uid} gid={user.pw_gid} home={directory}/mail/%u
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {self.address.port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service imap {{
  process_limit = {SESSIONS_MAX}
}}
{self._extra}
"""


def _listens(address: Address) -> bool:
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False
