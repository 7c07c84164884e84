"""Debian's Dovecot with mail of its own, as the master of syncs."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.effort import IN_CI

PROGRAM = "/usr/sbin/dovecot"
DOVEADM = "/usr/bin/doveadm"
START_WITHIN_S = 10.0
PASSWORD = "the secret of doveadm"
USERS_PASSWORD = "secret"
CONFIGURATION = """
protocols =
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/log
ssl = no
default_internal_user = {user}
default_login_user = {user}
default_internal_group = {group}
mail_location = {location}
mail_uid = {user}
mail_gid = {group}
first_valid_uid = 1
first_valid_gid = 0
doveadm_password = {password}
mail_attribute_dict = file:%h/attributes
namespace inbox {{
  inbox = yes
  separator = /
}}
protocol imap {{
  imap_metadata = yes
}}
passdb {{
  driver = static
  args = password={users_password}
}}
{more}
userdb {{
  driver = static
  args = uid={user} gid={group} home={directory}/mail/%u
}}
"""
REPLICATOR = """
mail_plugins = notify replication
plugin {{{{
  mail_replica = {address}
}}}}
service aggregator {{{{
  fifo_listener replication-notify-fifo {{{{
    mode = 0666
  }}}}
  unix_listener replication-notify {{{{
    mode = 0666
  }}}}
}}}}
service replicator {{{{
  process_min_avail = 1
  unix_listener replicator-doveadm {{{{
    mode = 0666
  }}}}
}}}}
"""
"""Settings of Dovecot's replicator, which syncs with this address after each change; to be formatted first."""

IMAP = """
protocols = imap
disable_plaintext_auth = no
mail_max_userip_connections = 100
service imap-login {{{{
  chroot =
  inet_listener imap {{{{
    address = {address.host}
    port = {address.port}
  }}}}
  inet_listener imaps {{{{
    port = 0
  }}}}
}}}}
"""
"""Settings of a listener for IMAP at this address; to be formatted first."""

SDBOX = "sdbox:~/sdbox"
MAILDIR = "maildir:~/Maildir:LAYOUT=fs"
MBOX = "mbox:~/mail"


needs_dovecot = pytest.mark.skipif(
    not Path(DOVEADM).exists() and not IN_CI, reason="Dovecot is not installed: apt-get install dovecot-core"
)


class Dovecot:
    """A Dovecot whose users have their homes under `directory`/mail."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, *words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run doveadm, and return how it has ended."""
        command = [DOVEADM, "-c", str(self.directory / "dovecot.conf"), *words]
        return subprocess.run(command, input=text, capture_output=True, check=False, timeout=60)

    def do(self, *words: str, text: bytes = b"") -> str:
        """Run doveadm, which must succeed, and return its output."""
        done = self.run(*words, text=text)
        assert done.returncode == 0, (words, done)
        return done.stdout.decode()

    def save(self, user: str, text: bytes, folder: str = "INBOX") -> None:
        """Save a mail."""
        self.do("save", "-u", user, "-m", folder, text=text)

    def lose(self, user: str) -> None:
        """Lose all of a user's mail, as a disk does."""
        shutil.rmtree(self.directory / "mail" / user)

    def forget_expunges(self, user: str) -> None:
        """Let it forget which mails were expunged, as when its log has been rotated. With Maildirs, nothing is lost."""
        for path in (self.directory / "mail" / user).rglob("dovecot.index*"):
            path.unlink()

    def back_up(self, user: str, to: Path) -> None:
        """Copy a user's mail to a new directory."""
        subprocess.run(["cp", "-a", self.directory / "mail" / user, to], check=True)

    def restore(self, user: str, copy: Path) -> None:
        """Put a copy of a user's mail in place of the mail."""
        self.lose(user)
        subprocess.run(["cp", "-a", copy, self.directory / "mail" / user], check=True)

    def status(self, folder: str, user: str = "u1") -> dict[str, str]:
        """Return numbers of a folder."""
        output = self.do("-f", "tab", "mailbox", "status", "-u", user, "uidvalidity uidnext highestmodseq", folder)
        names, values = (line.split("\t") for line in output.splitlines())
        return dict(zip(names, values, strict=True))

    def folders(self, user: str) -> dict[str, tuple[str, int]]:
        """Return ids and numbers of mails by folder, without INBOX."""
        lines = self.do("-f", "tab", "mailbox", "status", "-u", user, "guid messages", "*").splitlines()
        names = lines[0].split("\t") if lines else []
        rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:]]
        return {row["mailbox"]: (row["guid"], int(row["messages"])) for row in rows if row["mailbox"] != "INBOX"}

    def subscriptions(self, user: str) -> set[str]:
        """Return the names that a user subscribes to."""
        return {*self.do("mailbox", "list", "-u", user, "-s").split()}

    def received_s(self, user: str, uid: int) -> int:
        """Return when a mail of INBOX was received."""
        return int(self._fetch(user, "date.received.unixtime", uid))

    def text(self, user: str, uid: int) -> bytes:
        """Return the text of a mail of INBOX, with CR LF as line ends."""
        return self._fetch(user, "text", uid).replace("\r\n", "\n").replace("\n", "\r\n").encode()

    def _fetch(self, user: str, field: str, uid: int) -> str:
        output = self.do("-f", "pager", "fetch", "-u", user, field, "mailbox", "INBOX", "uid", str(uid))
        return output.partition(f"{field}:")[2].removeprefix("\n").removesuffix("\n\f\n").lstrip(" ")

    def mails(self, user: str, folder: str = "INBOX") -> list[tuple[int, str, frozenset[str]]]:
        r"""Return UID, GUID and flags without `\Recent` of all mails."""
        output = self.do("-f", "tab", "fetch", "-u", user, "uid guid flags", "mailbox", folder, "all")
        rows = [line.split("\t") for line in output.splitlines()[1:]]
        return sorted((int(uid), guid, frozenset(flags.split()) - {"\\Recent"}) for uid, guid, flags in rows)


@contextmanager
def dovecot(location: str = SDBOX, more: str = "") -> Iterator[Dovecot]:
    """Run a Dovecot with empty mail. `more`: other settings, to be formatted with its directory."""
    directory = Path(tempfile.mkdtemp(prefix="dsync-"))
    user = pwd.getpwuid(os.getuid()) if os.getuid() else pwd.getpwnam("nobody")
    group = subprocess.run(["id", "-gn", user.pw_name], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (directory / "dovecot.conf").write_text(
        CONFIGURATION.format(
            directory=directory,
            user=user.pw_name,
            group=group,
            location=location,
            password=PASSWORD,
            users_password=USERS_PASSWORD,
            more=more.format(directory=directory),
        ),
        encoding="utf-8",
    )
    for name in ("run", "state", "mail"):
        (directory / name).mkdir()
    for path in (directory, *directory.iterdir()):
        shutil.chown(path, user.pw_uid, user.pw_gid)
    process = subprocess.Popen([PROGRAM, "-F", "-c", directory / "dovecot.conf"])
    try:
        _wait_for(directory / "run" / "auth-userdb", process)
        yield Dovecot(directory)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    by = time.monotonic() + START_WITHIN_S
    while process.poll() is None and time.monotonic() < by:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                time.sleep(0.01)
            else:
                return
    raise AssertionError((path.parent.parent / "log").read_text())
