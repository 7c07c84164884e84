"""Answers of Debian's Dovecot to IMAP commands."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.effort import IN_CI

DOVECOT = Path("/usr/lib/dovecot/imap")
TIMEOUT_S = 60

needs_dovecot = pytest.mark.skipif(
    not DOVECOT.exists() and not IN_CI, reason="Dovecot is not installed: apt-get install dovecot-imapd"
)


def said_by_dovecot(
    bodies: Iterable[bytes], *commands: str, received_s: Sequence[int] = (), condition: str = "OK"
) -> bytes:
    """Return what Dovecot says to these commands on an INBOX with these messages, numbered from 1 on.

    It runs without a login here, on a Maildir. It refuses to serve root. The tag of the n-th command is `tn`, and
    each has to end with this condition.
    """
    directory = Path(tempfile.mkdtemp(prefix="dovecot-"))
    try:
        maildir = directory / "mail"
        for folder in (maildir, *(maildir / name for name in ("new", "cur", "tmp"))):
            folder.mkdir()
        for number, body in enumerate(bodies, 1):
            path = maildir / "new" / f"{number}.x.host"
            path.write_bytes(body)
            if received_s:
                os.utime(path, (received_s[number - 1],) * 2)
        lines = [f"t{number} {command}" for number, command in enumerate(commands)]
        return _said(directory, ["s SELECT INBOX", *lines], condition)
    finally:
        shutil.rmtree(directory)


def said_of_maildir(maildir: Path, *commands: str) -> bytes:
    """Return what Dovecot says to these commands on a copy of this Maildir++. The tag of the n-th command is `tn`."""
    directory = Path(tempfile.mkdtemp(prefix="dovecot-"))
    try:
        shutil.copytree(maildir, directory / "mail")
        return _said(directory, [f"t{number} {command}" for number, command in enumerate(commands)], "OK")
    finally:
        shutil.rmtree(directory)


def _said(directory: Path, lines: Sequence[str], condition: str) -> bytes:
    """Run Dovecot on `mail` in this directory. The commands with a tag `tn` have to end with this condition."""
    user = pwd.getpwuid(os.getuid()) if os.getuid() else pwd.getpwnam("nobody")
    config = directory / "dovecot.conf"
    config.write_text(
        f"mail_location = maildir:{directory}/mail\n"
        f"base_dir = {directory}/run\nstate_dir = {directory}/state\nssl = no\n"
        f"default_login_user = {user.pw_name}\ndefault_internal_user = {user.pw_name}\n"
        f"mail_uid = {user.pw_uid}\nmail_gid = {user.pw_gid}\nfirst_valid_uid = 1\n",
        encoding="utf-8",
    )
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid)
    command = ["timeout", str(TIMEOUT_S), str(DOVECOT), "-c", str(config)]
    environment = {"USER": user.pw_name, "HOME": str(directory), "PATH": os.defpath}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{line}\r\n" for line in [*lines, "l LOGOUT"]).encode())
        process.stdin.flush()  # not closed: Dovecot would drop what it has not sent by then
        said = process.stdout.read()
    for tag in (line.split(" ", 1)[0] for line in lines if line.startswith("t")):
        assert f"\r\n{tag} {condition} ".encode() in said, said[-500:]
    return said
