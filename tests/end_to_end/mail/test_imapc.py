"""Mail that Debian's Dovecot writes to a node as an IMAP client of its own (imapc), and to another Dovecot alike."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.clients.wire import Address
from benchmarks.clusters.cluster import PASSWORD, Cluster
from benchmarks.clusters.dovecot import Dovecot
from tests.dovecot_accounts import FOLDERS, SUBSCRIBED, client, dovecot, fill, shown, subscribed
from tests.imap_data.dovecot import needs_dovecot

pytestmark = needs_dovecot
USER = "alice"
DOVEADM = "/usr/bin/doveadm"


@pytest.fixture(params=["node", "Dovecot"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    if request.param == "node":
        with Cluster(tmp_path / "nodes", [USER], "", {}, size=1, copies=1) as cluster:
            yield cluster.nodes[0].address("imap")
    else:
        with dovecot() as server:
            yield server.address


@pytest.fixture
def source() -> Iterator[Dovecot]:
    with dovecot() as server:
        fill(server, USER)
        yield server


def run(source: Dovecot, target: Address, *words: str) -> tuple[int, str]:
    """Run doveadm with the target as imapc's server, and return its exit code and what it says."""
    options = {"host": target.host, "port": target.port, "user": USER, "password": PASSWORD}
    settings = [word for name, value in options.items() for word in ("-o", f"imapc_{name}={value}")]
    owner = source.mail(USER).stat().st_uid
    command = [
        DOVEADM,
        "-c",
        str(source.mail("").parent / "dovecot.conf"),
        "-o",
        f"mail_uid={owner}",
        *settings,
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def do(source: Dovecot, target: Address, *words: str) -> None:
    code, said = run(source, target, *words)
    assert code == 0, said


def contents(address: Address, folder: str) -> list[tuple[bytes, frozenset[str], str]]:
    """Return texts, flags and dates of a folder's mail, in its order."""
    imap = client(address, USER)
    found = [(one.text, one.flags, one.date) for one in shown(imap, folder).messages]
    imap.logout()
    return found


def test_import_brings_texts_flags_keywords_and_dates(source: Dovecot, target: Address) -> None:
    words = ("-o", "mail_location=imapc:", "import", "-s", "-u", USER, f"maildir:{source.mail(USER)}", "", "ALL")
    do(source, target, *words)
    with_mail = ("INBOX", "Archive", "Archive/2024")
    for folder in with_mail:
        assert contents(target, folder) == contents(source.address, folder) != []
    do(source, target, *words)
    for folder in with_mail:
        assert len(contents(target, folder)) == 2 * len(contents(source.address, folder))


def test_sync_brings_all_once_and_doubles_mail_under_other_uids(source: Dovecot, target: Address) -> None:
    """A Dovecot can give folders no GUID over IMAP: it takes over those that it computes of their names first."""
    sync = ("sync", "-1", "-u", USER, "imapc:")
    code, said = run(source, target, *sync)
    assert (code, "Backend didn't update mailbox" in said) == (75, True)
    for folder in ("Archive", "Archive/2024", "Entwürfe", "Gesendet"):
        code, said = run(source, target, "-o", "mail_location=imapc:", "mailbox", "create", "-u", USER, folder)
        assert code == 0 or "already exists" in said, said
    do(source, target, "sync", "-1", "-R", "-u", USER, "imapc:")
    do(source, target, *sync)
    for folder in FOLDERS:
        assert contents(target, folder) == contents(source.address, folder), folder
    imap = client(target, USER)
    assert subscribed(imap) == SUBSCRIBED
    imap.logout()
    run(source, target, *sync)
    assert contents(target, "Archive") == contents(source.address, "Archive")  # its UIDs are the same at both
    assert len(contents(target, "INBOX")) > len(contents(source.address, "INBOX"))
