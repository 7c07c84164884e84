"""The story of a mail that was delivered on both sides of a cut, as an operator asks three running nodes for it."""

from __future__ import annotations

import re
import smtplib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.clusters.cluster import Cluster

COMMAND_TIMEOUT_S = 120.0
MAIL = "Message-ID: <invoice-7@example.org>\r\nSubject: Your invoice\r\n\r\nPlease find attached.\r\n"
DATE = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("stories") / "nodes", ["alice"], proxied=True) as started:
        yield started


def replicator(cluster: Cluster, *arguments: str, at: tuple[str, ...] = ("dc1", "dc2", "dc3"), code: int = 0) -> str:
    """Run the command at these nodes, and return what it prints."""
    nodes = [text for sid in at for text in ("--config", str(cluster.directory / f"{sid}.toml"))]
    command = [sys.executable, "-m", "replicator", *arguments, *nodes]
    ended = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, text=True)
    assert (ended.returncode, ended.stderr) == (code, "")
    return ended.stdout


def deliver(cluster: Cluster, sid: str, mail: str = MAIL) -> None:
    with smtplib.LMTP(*cluster.node(sid).address("lmtp")) as client:
        client.sendmail("sender@example.org", ["alice"], mail)


@pytest.mark.long
def test_mail_that_is_there_twice_and_then_gone(cluster: Cluster) -> None:
    deliver(cluster, "dc1", "Subject: hello\r\n\r\nhello\r\n")
    cluster.wait_until_equal()
    cluster.partition(["dc1"], ["dc2", "dc3"])
    for sid in ("dc1", "dc2"):
        deliver(cluster, sid)
    apart = replicator(cluster, "explain", "alice", "INBOX", "2")
    assert "UID 2 is one mail at dc1, and another at dc2 and dc3, until their branches are joined." in apart
    shown = replicator(cluster, "mailbox", "show", "alice", "INBOX", at=("dc1",))
    assert len(re.findall(r"  dc[23]  cannot be asked: ", shown)) == 2
    cluster.heal()
    cluster.wait_together()
    cluster.wait_until_equal()

    twice = replicator(cluster, "explain", "alice", "INBOX", "<invoice-7@example.org>")
    assert re.search(
        "It is here twice because 2 messages with the same Message-ID were delivered or saved by clients:"
        rf" by dc[12] at {DATE} as UID \d and by dc[12] at {DATE} as UID \d, while neither node had the other's change;"
        rf" dc\d joined their branches at {DATE}\.\n$",
        twice,
    ), twice
    assert len(re.findall(r"merge: UID 2 -> [34]", twice)) == 2
    log = replicator(cluster, "log", "show", "alice", "INBOX", at=("dc3",))
    assert {"|\\", "|/"} <= {line.strip() for line in log.splitlines()}, log
    assert re.search(rf"^\* +{DATE}  dc\d  merge: UID 2 -> \d, UID 2 -> \d  \[dc\d\.\w+ \d+\]$", log, re.MULTILINE)
    shown = replicator(cluster, "mailbox", "show", "alice", "INBOX", at=("dc2",))
    assert "  dc1  shows the same\n  dc3  shows the same\n" in shown

    with cluster.node("dc2").imap("alice") as client:
        client.command("SELECT INBOX")
        client.command("UID STORE 4 +FLAGS (\\Deleted)")
        client.command("UID EXPUNGE 4")
    cluster.wait_until_equal()
    gone = replicator(cluster, "explain", "alice", "INBOX", "4")
    assert re.search(
        rf"It is gone because it was expunged \(UID 4\), by dc\d at {DATE}\. `replicator undelete alice INBOX` at dc\d"
        r" can bring it back until .*\. INBOX still has UID 3 with the same body or Message-ID\.\n$",
        gone,
    ), gone
    replicator(cluster, "undelete", "alice", "INBOX", at=("dc3",))
    cluster.wait_until_equal()
    back = replicator(cluster, "explain", "alice", "INBOX", "5")
    assert "It is here twice because 2 messages with the same Message-ID" in back
    assert re.search(
        rf"UID 5 is back because it was saved again under its old GUID, as `undelete` does, by dc\d at {DATE}; it had"
        rf" been expunged by dc\d at {DATE}\.\n$",
        back,
    ), back
    cluster.node("dc3").stop()
    alone = replicator(cluster, "explain", "alice", "INBOX", "1", code=1)
    assert "no answer from dc3: " in alone
