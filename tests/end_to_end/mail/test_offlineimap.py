"""Debian's OfflineIMAP, over compressed connections: an account is synced, and what changes here comes to the node."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from tests.effort import IN_CI
from tests.end_to_end.helpers.mail_clients import deliver, imap, uids, until

OFFLINEIMAP = shutil.which("offlineimap")
pytestmark = [
    pytest.mark.skipif(
        OFFLINEIMAP is None and not IN_CI, reason="OfflineIMAP is not installed: apt-get install offlineimap3"
    ),
    pytest.mark.long,
]

LARGE = b"Subject: large\n\n" + b"a line of a large message\n" * 100_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("offlineimap") / "nodes", ["alice"], "", {}) as started:
        yield started
        started.wait_until_equal()


def sync(node: Node, directory: Path) -> None:
    """Sync the whole account with the Maildir in `directory`, both ways."""
    host, port = node.address("imap")
    config = directory / "offlineimaprc"
    config.write_text(
        f"""
[general]
accounts = account
metadatadir = {directory}/state
[Account account]
localrepository = near
remoterepository = far
[Repository near]
type = Maildir
localfolders = {directory}/mail
[Repository far]
type = IMAP
remotehost = {host}
remoteport = {port}
remoteuser = alice
remotepass = {PASSWORD}
ssl = no
starttls = no
usecompression = yes
""",
        encoding="utf-8",
    )
    assert OFFLINEIMAP is not None
    command = [OFFLINEIMAP, "-c", str(config), "-o", "-u", "basic"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ERROR" not in done.stderr + done.stdout


def compressions(node: Node) -> int:
    """Return the number of connections that were compressed."""
    host, port = node.address("http")
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        found = re.search(rb'replicator_imap_commands_total\{command="COMPRESS",[^}]*\} ([0-9]+)', answer.read())
    return int(found[1]) if found else 0


def test_account_is_synced_over_compressed_connections(cluster: Cluster, tmp_path: Path) -> None:
    first, second, _ = cluster.nodes
    texts = {b"Text %d.\n" % number * 1000 for number in range(20)}
    deliver(first, [b"Subject: s\r\n\r\n" + text.replace(b"\n", b"\r\n") for text in texts], ["alice"])
    sync(first, tmp_path)
    assert compressions(first)
    inbox = tmp_path / "mail" / "INBOX"
    found = [path.read_bytes() for part in ("cur", "new") for path in (inbox / part).iterdir()]
    assert {message.partition(b"\n\n")[2] for message in found} == texts

    (inbox / "new" / "1.local.host").write_bytes(LARGE)
    sync(second, tmp_path)
    assert compressions(second)
    client = imap(first)
    until(client, lambda: len(uids(client, "SUBJECT", "large")) == 1)
    [uid] = uids(client, "SUBJECT", "large")
    assert LARGE.partition(b"\n\n")[2].replace(b"\n", b"\r\n") in client.uid("FETCH", uid, "(BODY.PEEK[])")[1][0][1]
    client.logout()
