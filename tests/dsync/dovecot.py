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

PROGRAM = "/usr/sbin/dovecot"
DOVEADM = "/usr/bin/doveadm"
START_WITHIN_S = 10.0
PASSWORD = "the secret of doveadm"
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
  args = password=secret
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={directory}/mail/%u
}}
"""
SDBOX = "sdbox:~/sdbox"
MAILDIR = "maildir:~/Maildir:LAYOUT=fs"


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

    def mails(self, user: str, folder: str = "INBOX") -> list[tuple[int, str, frozenset[str]]]:
        r"""Return UID, GUID and flags without `\Recent` of all mails."""
        output = self.do("-f", "tab", "fetch", "-u", user, "uid guid flags", "mailbox", folder, "all")
        rows = [line.split("\t") for line in output.splitlines()[1:]]
        return sorted((int(uid), guid, frozenset(flags.split()) - {"\\Recent"}) for uid, guid, flags in rows)


@contextmanager
def dovecot(location: str = SDBOX) -> Iterator[Dovecot]:
    """Prepare a Dovecot with empty mail."""
    directory = Path(tempfile.mkdtemp(prefix="dsync-"))
    user = pwd.getpwuid(os.getuid()) if os.getuid() else pwd.getpwnam("nobody")
    group = subprocess.run(["id", "-gn", user.pw_name], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (directory / "dovecot.conf").write_text(
        CONFIGURATION.format(directory=directory, user=user.pw_name, group=group, location=location, password=PASSWORD),
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
