"""A private Dovecot with an account that has what imports are to keep: UIDs with gaps, keywords, folders, dates."""

from __future__ import annotations

import imaplib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clusters.cluster import PASSWORD
from benchmarks.clusters.dovecot import Dovecot

MASTER, MASTER_PASSWORD = "boss", f"{PASSWORD}-master"
LONG_AGO_S = 1_600_000_000
FOLDERS = ("INBOX", "Archive", "Archive/2024", "Entw&APw-rfe", "Gesendet")
SUBSCRIBED = frozenset({"INBOX", "Archive/2024", "Entw&APw-rfe"})

_EXTRA = f"""
auth_master_user_separator = *
passdb {{
  driver = static
  master = yes
  args = password={MASTER_PASSWORD}
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Gesendet {{
    special_use = \\Sent
  }}
}}
"""


@dataclass(frozen=True)
class Shown:
    """A message as a client sees it."""

    uid: int
    flags: frozenset[str]
    date: str
    text: bytes


@dataclass(frozen=True)
class ShownFolder:
    """A folder as a client sees it."""

    uidvalidity: int
    uidnext: int
    highestmodseq: int
    messages: tuple[Shown, ...]


@contextmanager
def dovecot(layout: str = "", extra: str = "") -> Iterator[Dovecot]:
    """Run a Dovecot that knows any user, and a master who may log in as any of them.

    Its directory is none of pytest's, which only their owner may enter.
    """
    directory = Path(tempfile.mkdtemp(prefix="dovecot-"))
    try:
        directory.chmod(0o755)
        with Dovecot(directory, layout, _EXTRA + extra) as server:
            yield server
    finally:
        shutil.rmtree(directory)


def client(address: tuple[str, int], user: str) -> imaplib.IMAP4:
    """Log in as a client."""
    connection = imaplib.IMAP4(*address, timeout=60)
    connection.login(user, PASSWORD)
    return connection


def fill(server: Dovecot, user: str, messages: int = 12) -> None:
    """Give a user folders with mail; some of it is expunged, in the middle and at the end."""
    _begin_long_ago(server, user)
    imap = client(server.address, user)
    for name in FOLDERS:
        if name != "INBOX":
            imap.create(quoted(name))
    for name in sorted(SUBSCRIBED):
        imap.subscribe(quoted(name))
    imap.append("Archive", "", '"17-Nov-1994 00:49:30 +0100"', b"Subject: old\r\n\r\nold\r\n")
    for number in range(messages):
        flags = ("", "\\Seen", "\\Flagged $Label1", "\\Answered \\Seen Junk")[number % 4]
        text = f"Subject: mail {number}\r\nMessage-ID: <{number}@example.org>\r\n\r\ntext {number}\r\n".encode()
        imap.append("INBOX", flags, f'"0{1 + number % 9}-Feb-2024 10:20:30 +0000"', text)
        if not number % 3:
            imap.append(quoted("Archive/2024"), "Junk", '"01-Jan-2024 00:00:00 +0000"', text * 2)
    expunge(imap, f"2,5,{messages}")
    imap.logout()


def _begin_long_ago(server: Dovecot, user: str) -> None:
    """Let UIDVALIDITYs begin at a time before any node was there: both servers take the time for that."""
    mail = server.mail(user)
    mail.mkdir(parents=True)
    (mail / "dovecot-uidvalidity").write_text(f"{LONG_AGO_S:08x}")
    (mail / f"dovecot-uidvalidity.{LONG_AGO_S:08x}").touch()
    server.own(server.mail(""))


def expunge(imap: imaplib.IMAP4, uids: str, folder: str = "INBOX") -> None:
    """Expunge mail."""
    imap.select(quoted(folder))
    imap.uid("STORE", uids, "+FLAGS", "(\\Deleted)")
    imap.expunge()


def shown(imap: imaplib.IMAP4, name: str) -> ShownFolder:
    """Return what a client sees of a folder."""
    _, [status] = imap.status(quoted(name), "(UIDVALIDITY UIDNEXT HIGHESTMODSEQ)")
    words = status.rpartition(b"(")[2].rstrip(b")").split()
    numbers = {words[at]: int(words[at + 1]) for at in range(0, len(words), 2)}
    imap.select(quoted(name), readonly=True)
    _, data = imap.uid("FETCH", "1:*", "(UID FLAGS INTERNALDATE BODY.PEEK[])")
    messages = tuple(_shown(one) for one in data if isinstance(one, tuple))
    return ShownFolder(numbers[b"UIDVALIDITY"], numbers[b"UIDNEXT"], numbers[b"HIGHESTMODSEQ"], messages)


def subscribed(imap: imaplib.IMAP4) -> set[str]:
    """Return the names that the user has subscribed to."""
    _, data = imap.lsub()
    return {_name(line) for line in data if isinstance(line, bytes) and b"\\Noselect" not in line}


def listed(imap: imaplib.IMAP4) -> dict[str, bytes]:
    """Return the folders with their attributes."""
    _, data = imap.list('""', '"*" RETURN (SPECIAL-USE)')
    return {
        _name(line): line.partition(b")")[0] for line in data if isinstance(line, bytes) and b"\\Noselect" not in line
    }


def quoted(name: str) -> str:
    return f'"{name}"'


def _name(line: bytes) -> str:
    return line.rpartition(b' "/" ')[2].strip(b'"').decode()


def _shown(part: tuple[bytes, bytes]) -> Shown:
    head, text = part
    uid = int(head.partition(b"UID ")[2].split()[0])
    flags = head.partition(b"FLAGS (")[2].partition(b")")[0].decode().split()
    date = head.partition(b'INTERNALDATE "')[2].partition(b'"')[0].decode()
    instant = imaplib.Internaldate2tuple(b'INTERNALDATE "' + date.encode() + b'"')
    return Shown(uid, frozenset(flags) - {"\\Recent"}, str(instant), text)
