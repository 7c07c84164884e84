"""Syncs with the Dovecot that a user's mail was imported from: both sides have all of it already."""

from __future__ import annotations

import imaplib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster
from replicator.config import Address
from replicator.mail.dovecot_guids import guid_of
from tests.dsync.dovecot import IMAP, SDBOX, USERS_PASSWORD, Dovecot, dovecot, needs_dovecot
from tests.dsync.dovecot import PASSWORD as DOVEADM_PASSWORD
from tests.dsync.pushed import LISTENER
from tests.end_to_end.helpers.in_process import free_ports

pytestmark = needs_dovecot

USER = "u1"
FOLDERS = ("INBOX", "Work", "Work/Old", "Empty")
LONG_AGO_S = 1_600_000_000
MAILDIR = "maildir:~/Maildir"
SOURCES = [(MAILDIR, "files"), (f"{MAILDIR}:LAYOUT=fs", "files"), (MAILDIR, "imap"), (SDBOX, "imap")]
ODD_NAMES = ('odd "name"', "ümläut", "b" * 32, "M1:1,x")
WITHIN_S = 30.0
_DONE = re.compile(r'^replicator_dovecot_syncs_total\{.*result="done".*\} (\S+)', re.MULTILINE)
_MAIL = re.compile(rb"UID (\d+) FLAGS \(([^)]*)\) EMAILID \(M(\w+)\)")


class Mail(NamedTuple):
    """A mail of either side; `guid` in hexadecimal."""

    uid: int
    guid: str
    flags: frozenset[str]


class Folder(NamedTuple):
    uidvalidity: int
    uidnext: int
    mails: list[Mail]


Account = dict[str, Folder]


@dataclass
class Site:
    """A Dovecot, and a cluster of one node."""

    server: Dovecot
    imap: Address
    doveadm: Address
    cluster: Cluster
    directory: Path

    def client(self) -> AbstractContextManager[imaplib.IMAP4]:
        """Return a client of the node."""
        return logged_in(self.cluster.nodes[0].address("imap"), PASSWORD)

    def client_there(self) -> AbstractContextManager[imaplib.IMAP4]:
        """Return a client of the Dovecot."""
        return logged_in(self.imap, USERS_PASSWORD)

    def here(self) -> Account:
        """Return what the node has."""
        account: Account = {}
        with self.client() as client:
            for name in FOLDERS:
                numbers = status(client, name)
                client.select(f'"{name}"', readonly=True)
                _, told = client.uid("FETCH", "1:*", "(UID FLAGS EMAILID)")
                found = [_MAIL.search(one) for one in told if one]
                mails = [Mail(int(one[1]), one[3].decode(), flags_of(one[2].decode())) for one in found if one]
                account[name] = Folder(numbers["UIDVALIDITY"], numbers["UIDNEXT"], mails)
        return account

    def there(self) -> Account:
        """Return what the Dovecot has."""
        account: Account = {}
        with self.client_there() as client:
            for name in FOLDERS:
                numbers = status(client, name)
                mails = [Mail(uid, guid_of(guid).hex(), flags) for uid, guid, flags in self.server.mails(USER, name)]
                account[name] = Folder(numbers["UIDVALIDITY"], numbers["UIDNEXT"], mails)
        return account

    def modseqs(self) -> list[int]:
        """Return HIGHESTMODSEQ of all folders of both sides: one rises with each change."""
        with self.client() as here, self.client_there() as there:
            return [status(client, name)["HIGHESTMODSEQ"] for client in (here, there) for name in FOLDERS]

    def import_all(self, way: str, code: int = 0) -> str:
        """Import all mail, which is to end with this code; return what the command says."""
        place: object = self.server.directory / "mail" / USER / "Maildir"
        if way == "imap":
            place = f"imap://{USER}@{self.imap}"
        (self.directory / "password").write_text(USERS_PASSWORD, "utf-8")
        url = f"http://127.0.0.1:{self.cluster.nodes[0].ports['http']}"
        options = ["--url", url, "--state", self.directory / "state", "--password-file", self.directory / "password"]
        command = [sys.executable, "-m", "replicator", "import", USER, place, *options]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done
        return done.stdout

    def texts(self, client: AbstractContextManager[imaplib.IMAP4]) -> set[bytes]:
        """Return the texts of INBOX's mails that a client sees."""
        with client as connection:
            connection.select("INBOX", readonly=True)
            _, told = connection.uid("FETCH", "1:*", "(BODY.PEEK[])")
            return {one[1] for one in told if isinstance(one, tuple)}

    def sync(self, *options: str) -> None:
        """Let the Dovecot sync with the node."""
        self.server.do("sync", "-u", USER, *options, f"tcp:127.0.0.1:{self.cluster.nodes[0].ports['doveadm']}")

    def begin_to_push(self) -> None:
        """Let the node sync with the Dovecot, until it has once."""
        [node] = self.cluster.nodes
        with Path(f"{node.data}.toml").open("a", encoding="utf-8") as file:
            file.write(
                f'[[dovecot]]\naddress = "{self.doveadm}"\npassword_file = "doveadm.password"\nsync_every = "1s"\n'
            )
        node.stop()
        node.start()
        self.await_push()

    def await_push(self) -> None:
        """Wait until two more syncs that the node has begun are done: one may have begun before what it is to bring."""
        enough, by = self._pushed() + 2, time.monotonic() + WITHIN_S
        while self._pushed() < enough:
            assert time.monotonic() < by, (self.server.directory / "log").read_text("utf-8")
            time.sleep(0.1)

    def _pushed(self) -> float:
        url = f"http://127.0.0.1:{self.cluster.nodes[0].ports['http']}/metrics"
        with urllib.request.urlopen(url) as answer:
            metrics = answer.read().decode()
        return sum(map(float, _DONE.findall(metrics)))


@contextmanager
def logged_in(address: tuple[str, int], password: str) -> Iterator[imaplib.IMAP4]:
    client = imaplib.IMAP4(*address)
    client.login(USER, password)
    yield client
    client.logout()


def status(client: imaplib.IMAP4, name: str) -> dict[str, int]:
    _, [told] = client.status(f'"{name}"', "(UIDVALIDITY UIDNEXT HIGHESTMODSEQ)")
    return {word.decode(): int(number) for word, number in re.findall(rb"([A-Z]+) (\d+)", told or b"")}


def flags_of(text: str) -> frozenset[str]:
    return frozenset(text.split()) - {"\\Recent"}


@contextmanager
def site(directory: Path, location: str) -> Iterator[Site]:
    imap, doveadm = (Address("127.0.0.1", port) for port in free_ports(2))
    nodes = directory / "nodes"
    nodes.mkdir()
    (nodes / "doveadm.password").write_text(f"{DOVEADM_PASSWORD}\n", "utf-8")
    door = '[doveadm]\npassword_file = "doveadm.password"\n'
    more = IMAP.format(address=imap) + LISTENER.format(port=doveadm.port)
    with (
        dovecot(location, more) as server,
        Cluster(nodes, [USER], size=1, copies=1, extra=door, more_doors=["doveadm"]) as cluster,
    ):
        fill(server, location, imap)
        yield Site(server, imap, doveadm, cluster, directory)


def fill(server: Dovecot, location: str, imap: Address) -> None:
    """Give the user folders with mail, UIDs with gaps, keywords, and copies; UIDVALIDITYs are older than the node's."""
    home, owner = server.directory / "mail" / USER, (server.directory / "mail").stat()
    root = home / location.split("/")[1].partition(":")[0]

    def put(path: Path, text: bytes = b"") -> None:
        path.write_bytes(text)
        shutil.chown(path, owner.st_uid, owner.st_gid)

    root.mkdir(parents=True)
    for path in (home, root):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    put(root / "dovecot-uidvalidity", b"%08x" % LONG_AGO_S)
    put(root / f"dovecot-uidvalidity.{LONG_AGO_S:08x}")
    server.do("mailbox", "create", "-u", USER, *FOLDERS[1:])
    for folder, count in zip(FOLDERS, (9, 3, 2, 0), strict=True):
        for number in range(count):
            server.save(USER, f"Subject: {folder} {number}\n\ntext {number}\n".encode(), folder)
    if location.startswith(MAILDIR):
        for name in ODD_NAMES:
            put(root / "new" / name, b"Subject: odd\n\n" + name.encode() + b"\n")
    with logged_in(imap, USERS_PASSWORD) as client:
        client.select("INBOX")  # gives files a place for flags
    inbox = ("mailbox", "INBOX", "uid")
    server.do("expunge", "-u", USER, *inbox, "1,3")
    server.do("flags", "add", "-u", USER, "\\Seen kw", *inbox, "4:6")
    server.do("copy", "-u", USER, "INBOX", *inbox, "4,7")
    server.do("copy", "-u", USER, "INBOX", *inbox, "4")
    server.do("copy", "-u", USER, "Work", *inbox, "5")
    server.do("expunge", "-u", USER, *inbox, "9")
    if location.startswith(MAILDIR):
        put(root / "new" / "unnumbered", b"Subject: not looked at by Dovecot yet\n\nx\n")


def check_equal(there: Account, here: Account) -> None:
    """Check that both sides have the same. Of Dovecot's mails with one GUID, all but the first have others here."""
    for name in FOLDERS:
        seen = set[str]()
        assert here[name]._replace(mails=[]) == there[name]._replace(mails=[]), name
        shown, wanted = ([(mail.uid, mail.flags) for mail in side[name].mails] for side in (here, there))
        assert shown == wanted, name
        assert len({mail.guid for mail in here[name].mails}) == len(wanted)
        for mail, mail_here in zip(there[name].mails, here[name].mails, strict=True):
            assert (mail.guid == mail_here.guid) == (mail.guid not in seen), (name, mail)
            seen.add(mail.guid)


@contextmanager
def imported(directory: Path, location: str, way: str) -> Iterator[tuple[Site, Account]]:
    """Import a Dovecot's mail, and yield what both sides have."""
    with site(directory, location) as both:
        both.import_all(way)
        before = both.there()
        assert len(before["INBOX"].mails) == (14 if location.startswith(MAILDIR) else 9)
        yield both, before


def change_both(both: Site, before: Account) -> None:
    """Change flags on both sides, and deliver mails to each."""
    first, *_, last = [str(mail.uid) for mail in before["INBOX"].mails]
    for client, flags in ((both.client, ("\\Flagged", "here")), (both.client_there, ("\\Answered", "there"))):
        with client() as connection:
            connection.select("INBOX")
            connection.uid("STORE", first, "+FLAGS", f"({flags[0]})")
            connection.uid("STORE", last, "+FLAGS", f"({flags[1]})")
            for folder in ("INBOX", "Work" if client == both.client else "Work/Old"):
                connection.append(f'"{folder}"', "", "", f"Subject: {flags[1]}\r\n\r\n".encode())


def check_changed(both: Site, before: Account) -> None:
    """Check that both sides have the changes of both, and no other ones."""
    after = both.there()
    check_equal(after, both.here())
    first, *_, last = before["INBOX"].mails
    more = {first.uid: {"\\Flagged", "\\Answered"}, last.uid: {"here", "there"}}
    for name, new in zip(FOLDERS, (2, 1, 1, 0), strict=True):
        was = [mail._replace(flags=mail.flags | more.get(mail.uid, set())) for mail in before[name].mails]
        wanted = was if name == "INBOX" else before[name].mails
        assert after[name].uidvalidity == before[name].uidvalidity
        assert after[name].mails[: -new or None] == wanted
        assert len(after[name].mails) == len(wanted) + new


@pytest.mark.parametrize(("location", "way"), SOURCES)
def test_a_sync_after_an_import_finds_all_mail_equal(tmp_path: Path, location: str, way: str) -> None:
    with imported(tmp_path, location, way) as (both, before):
        both.sync()
        assert both.there() == before
        check_equal(before, both.here())
        modseqs = both.modseqs()
        both.sync("-f")
        assert both.modseqs() == modseqs
        check_equal(before, both.here())
        assert both.import_all(way).startswith("0 imported")
        change_both(both, before)
        both.sync()
        check_changed(both, before)
        both.sync("-f")
        check_changed(both, before)


@pytest.mark.parametrize(("location", "way"), SOURCES)
def test_pushes_after_an_import_find_all_mail_equal(tmp_path: Path, location: str, way: str) -> None:
    with imported(tmp_path, location, way) as (both, before):
        both.begin_to_push()
        assert both.there() == before
        check_equal(before, both.here())
        modseqs = both.modseqs()
        both.await_push()
        assert both.modseqs() == modseqs
        change_both(both, before)
        both.await_push()
        check_changed(both, before)


@pytest.mark.parametrize(("location", "way"), [SOURCES[0], SOURCES[-1]])
def test_changes_between_an_import_and_the_first_sync_are_merged(tmp_path: Path, location: str, way: str) -> None:
    with imported(tmp_path, location, way) as (both, before):
        expunged = {5, 6}
        both.server.do("expunge", "-u", USER, "mailbox", "INBOX", "uid", "5")
        with both.client() as client:
            client.select("INBOX")
            client.uid("STORE", "6", "+FLAGS", "(\\Deleted)")
            client.expunge()
        inbox = before["INBOX"]
        before["INBOX"] = inbox._replace(mails=[mail for mail in inbox.mails if mail.uid not in expunged])
        change_both(both, before)
        both.sync()
        check_changed(both, before)
        both.sync("-f")
        check_changed(both, before)


def test_mail_that_was_not_imported_is_not_lost_at_dovecot(tmp_path: Path) -> None:
    with site(tmp_path, MAILDIR) as both:
        [lost] = (
            file
            for file in (both.server.directory / "mail" / USER / "Maildir" / "cur").iterdir()
            if b"text 4" in file.read_bytes()
        )
        text, status = lost.read_bytes(), lost.stat()
        lost.write_bytes(b"\x1f\x8b")  # is no mail
        both.import_all("files", code=1)
        lost.write_bytes(text)
        os.utime(lost, ns=(status.st_atime_ns, status.st_mtime_ns))
        check_nothing_lost(both)


def test_mail_that_was_here_before_an_import_is_not_lost(tmp_path: Path) -> None:
    """At Dovecot, its UID was that of a mail that was expunged."""
    with site(tmp_path, MAILDIR) as both:
        with both.client() as client:
            client.append("INBOX", "", "", b"Subject: here\r\n\r\n")
        both.import_all("files")
        check_nothing_lost(both)


def check_nothing_lost(both: Site) -> None:
    """Check that a sync brings the mail of both sides to both."""
    texts = both.texts(both.client()) | both.texts(both.client_there())
    for _ in range(2):
        both.sync("-f")
    assert both.texts(both.client()) == both.texts(both.client_there()) == texts
