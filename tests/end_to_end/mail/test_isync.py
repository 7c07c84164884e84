"""Debian's isync (mbsync): an account is synced from one node, and changed through another one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from tests.end_to_end.helpers.mail_clients import deliver, flags, hard_messages, imap, uids, until

MBSYNC = shutil.which("mbsync")
pytestmark = pytest.mark.skipif(MBSYNC is None, reason="mbsync is not installed: apt-get install isync")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("isync") / "nodes", ["alice"], "", {}) as started:
        yield started
        started.wait_until_equal()


def mbsync(node: Node, directory: Path) -> None:
    """Sync the whole account with `directory`, both ways."""
    host, port = node.address("imap")
    maildir = directory / "mail"
    maildir.mkdir(exist_ok=True)
    config = directory / "mbsyncrc"
    config.write_text(
        f"""
IMAPAccount node
Host {host}
Port {port}
User alice
Pass {PASSWORD}
SSLType None
AuthMechs LOGIN

IMAPStore far
Account node

MaildirStore near
Path {maildir}/
Inbox {maildir}/INBOX
SubFolders Verbatim

Channel all
Far :far:
Near :near:
Patterns *
Create Both
Expunge Both
SyncState *
""",
        encoding="utf-8",
    )
    assert MBSYNC is not None
    done = subprocess.run([MBSYNC, "-c", str(config), "all"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


def maildir(directory: Path, folder: str) -> list[Path]:
    return sorted(path for part in ("cur", "new") for path in (directory / "mail" / folder / part).iterdir())


@pytest.mark.long
def test_mbsync_syncs_from_one_node_and_changes_through_another(cluster: Cluster, tmp_path: Path) -> None:
    first, second, third = cluster.nodes
    deliver(first, hard_messages()[:20], ["alice"])
    client = imap(first)
    client.create("Archive")
    client.copy("1:5", "Archive")
    mbsync(first, tmp_path)
    inbox, archive = maildir(tmp_path, "INBOX"), maildir(tmp_path, "Archive")
    assert (len(inbox), len(archive)) == (20, 5)
    # mbsync stores lines with LF and marks what it copied.
    fetched = {client.uid("FETCH", uid, "(BODY.PEEK[])")[1][0][1].replace(b"\r\n", b"\n") for uid in uids(client)}
    assert {re.sub(rb"X-TUID: .*\n", b"", path.read_bytes()) for path in inbox} == fetched

    flagged, deleted = inbox[0], inbox[1]
    flagged.rename(flagged.parent.parent / "cur" / (flagged.name.partition(":2,")[0] + ":2,FS"))
    deleted.rename(deleted.parent.parent / "cur" / (deleted.name.partition(":2,")[0] + ":2,T"))
    (tmp_path / "mail" / "Archive" / "new" / "1.local.host").write_bytes(b"Subject: written here\n\nx\n")
    far = imap(second)
    until(far, lambda: len(uids(far)) == 20)
    mbsync(second, tmp_path)

    watcher = imap(third)
    until(watcher, lambda: len(uids(watcher)) == 19)
    until(watcher, lambda: len(uids(watcher, "FLAGGED")) == 1)
    assert flags(watcher, uids(watcher, "FLAGGED")[0]) == {b"\\Flagged", b"\\Seen"}
    watcher.select("Archive")
    until(watcher, lambda: len(uids(watcher, "SUBJECT", '"written here"')) == 1)
    for connection in (client, far, watcher):
        connection.logout()
