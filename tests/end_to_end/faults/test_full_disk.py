"""A node with a really full disk, a small file system of its own (design section 11, the disk is full)."""

from __future__ import annotations

import errno
import http.client
import os
import random
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.ledger import log_in
from tests.end_to_end.helpers.mail_clients import uids

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is left out: mounting it needs root")

DISK_BYTES = 32 << 20
MAIL_BYTES = 200_000
MAILS_MAX = 2 * DISK_BYTES // MAIL_BYTES


class Disk:
    """A file system of `DISK_BYTES`, mounted on a directory, and a file that fills it up."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ballast = directory / "ballast"

    def fill(self, left_bytes: int = 0) -> None:
        with self._ballast.open("ab") as file:
            for tries_left in reversed(range(10)):
                state = os.statvfs(self._directory)
                try:
                    os.posix_fallocate(file.fileno(), 0, file.tell() + state.f_bavail * state.f_frsize - left_bytes)
                except OSError as error:  # the node may have written something meanwhile
                    if error.errno != errno.ENOSPC or not tries_left:
                        raise
                else:
                    return

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the nodes, in which dc1's data are on a file system of their own."""
    directory = tmp_path_factory.mktemp("full-disk")
    data = directory / "dc1"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "full-disk", data], check=True)
    yield directory
    subprocess.run(["umount", data], check=True)


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[Cluster]:
    with Cluster(directory, ["full", "behind", "reader", "starter"]) as started:
        yield started


@pytest.fixture
def disk(directory: Path, cluster: Cluster) -> Iterator[Disk]:
    disk = Disk(directory / "dc1")
    yield disk
    disk.make_room()
    cluster.wait_until_equal()


def mail(number: int, size_bytes: int = MAIL_BYTES) -> bytes:
    """Return a mail that does not compress."""
    filler = random.Random(number).randbytes(size_bytes // 2).hex()
    lines = "\r\n".join(filler[at : at + 76] for at in range(0, len(filler), 76))
    return f"Subject: {number}\r\n\r\n{lines}\r\n".encode()


def send(node: Node, user: str, body: bytes) -> int:
    """Deliver a mail by LMTP and return the reply's code."""
    with smtplib.LMTP(*node.address("lmtp"), "localhost") as client:
        try:
            client.sendmail("a@example.org", [user], body)
        except smtplib.SMTPDataError as error:
            return error.smtp_code
        return 250


def health(node: Node) -> int:
    """Return the HTTP status of /healthz, which a load balancer sees."""
    connection = http.client.HTTPConnection(*node.address("http"), timeout=30)
    connection.request("GET", "/healthz")
    code = connection.getresponse().status
    connection.close()
    return code


def wait_until_healthy(cluster: Cluster, node: Node) -> None:
    cluster.wait_until(lambda _: health(node) == 200, 30)  # a disk that was full is tried anew after a second


def wait_until_unhealthy(cluster: Cluster, node: Node) -> None:
    cluster.wait_until(lambda _: health(node) == 503, 30)  # the node's own metrics may have tried the disk just before


def count(node: Node, user: str) -> int:
    client = log_in(node, user)
    client.select("INBOX")
    found = len(uids(client))
    client.logout()
    return found


def test_full_disk_refuses_changes_only_until_there_is_room(cluster: Cluster, disk: Disk) -> None:
    dc1, dc2, _ = cluster.nodes
    codes = [send(dc1, "full", mail(0))]
    disk.fill(left_bytes=DISK_BYTES // 8)
    while codes[-1] == 250 and len(codes) < MAILS_MAX:
        codes.append(send(dc1, "full", mail(len(codes))))
    assert codes == [250] * (len(codes) - 1) + [452]
    stored = len(codes) - 1

    client = log_in(dc1, "full")
    client.select("INBOX")
    assert len(uids(client)) == stored
    _, bodies = client.uid("FETCH", "1:*", "(BODY.PEEK[])")
    assert [body[1].endswith(mail(number)) for number, body in enumerate(bodies[::2])] == [True] * stored
    kind, reason = client.append("INBOX", "", "", mail(-1))
    assert (kind, b"[OVERQUOTA]" in reason[0]) == ("NO", True)

    disk.fill()
    wait_until_unhealthy(cluster, dc1)
    assert health(dc2) == 200
    disk.make_room()
    wait_until_healthy(cluster, dc1)
    assert send(dc1, "full", mail(-2)) == 250
    assert client.append("INBOX", "", "", mail(-3))[0] == "OK"
    client.logout()
    cluster.wait_until_equal()
    assert count(dc2, "full") == stored + 2


@pytest.mark.long
def test_node_with_a_full_disk_falls_behind_and_catches_up(cluster: Cluster, disk: Disk) -> None:
    dc1, dc2, _ = cluster.nodes
    assert send(dc2, "behind", mail(0)) == 250  # dc2 is the mailbox's master from now on
    cluster.wait_until_equal()
    disk.fill()
    for number in range(1, 40):
        assert send(dc2, "behind", mail(number)) == 250
    assert count(dc1, "behind") < 40
    disk.make_room()
    cluster.wait_until_equal()
    assert count(dc1, "behind") == 40


@pytest.mark.long
@pytest.mark.parametrize(("size_bytes", "mails"), [(4_000_000, 1), (40_000, 30)])
def test_status_reports_the_entry_that_the_disk_has_no_room_for(
    cluster: Cluster, disk: Disk, size_bytes: int, mails: int
) -> None:
    """`size_bytes`: of a mail for the attachment store, and of mails for the database."""
    dc1, dc2, _ = cluster.nodes
    assert send(dc2, "behind", mail(0)) == 250
    cluster.wait_until_equal()
    disk.fill(left_bytes=size_bytes // 2)
    for number in range(mails):
        assert send(dc2, "behind", mail(number, size_bytes)) == 250
    assert send(dc2, "full", mail(0, 100)) == 250  # waits behind the others
    cluster.wait_until(lambda statuses: bool(statuses[0]["no_room"]), 30)
    (lack, *_) = cast("list[dict[str, object]]", dc1.get("/api/v1/status")["no_room"])
    assert lack["directory"] == str(dc1.data)
    assert cast("int", lack["free_bytes"]) < size_bytes
    assert size_bytes <= cast("int", lack["size_bytes"]) < size_bytes * 1.1
    assert lack["user"] == "behind"
    assert str(lack["entry"]).startswith("dc2.")
    assert health(dc1) == 503
    url = "http://{}:{}".format(*dc1.address("http"))
    command = [sys.executable, "-m", "replicator", "status", "--url", url]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "dc1 is behind and cannot continue: no room on the disk of" in " ".join(shown.split())
    cluster.wait_until(lambda _: without_room(dc1) >= 1, 30)  # the metric is refreshed at intervals
    disk.make_room()
    cluster.wait_until_equal()
    cluster.wait_until(lambda statuses: not statuses[0]["no_room"], 30)
    wait_until_healthy(cluster, dc1)
    cluster.wait_until(lambda _: without_room(dc1) == 0, 30)


def without_room(node: Node) -> float:
    """Return the number of entries without room, from the metric."""
    connection = http.client.HTTPConnection(*node.address("http"), timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    line = f'replicator_entries_without_room{{directory="{node.data}"}} '
    return float(text.partition(line)[2].partition("\n")[0] or 0)


@pytest.mark.long
def test_node_stopped_on_a_full_disk_starts_and_reads(cluster: Cluster, disk: Disk) -> None:
    dc1 = cluster.nodes[0]
    assert send(dc1, "reader", mail(0)) == 250
    disk.fill()
    dc1.stop()
    disk.fill()
    dc1.start()
    assert count(dc1, "reader") == 1


@pytest.mark.long
def test_node_without_room_to_start_says_so(cluster: Cluster, disk: Disk) -> None:
    dc1 = cluster.nodes[0]
    assert send(dc1, "starter", mail(0)) == 250
    dc1.stop()
    disk.fill()
    with pytest.raises(MeasurementError, match="the disk is full; make room, and start the node again"):
        dc1.start()
    disk.make_room()
    dc1.start()
    assert count(dc1, "starter") == 1
