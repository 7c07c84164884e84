"""The way from a pair of Dovecots to a cluster, and back, as docs/moving-from-dovecot.md has it, with users who work.

The page's own script is run, and its commands; the MTA and the mail clients are those of `helpers/moving.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster
from benchmarks.clusters.proxy import Proxy
from benchmarks.peers.pairs.dovecot import DovecotPair
from benchmarks.peers.pairs.pair import Doors
from tests.effort import IN_CI
from tests.end_to_end.helpers.moving import MBSYNC, Clients, Expected, Folder, Mbsync, Mta, everything

PAGE = Path(__file__).parents[3] / "docs" / "moving-from-dovecot.md"
USERS = [f"user{number:02}" for number in range(100)]
MAILS_BEFORE = 4
BEGUN_S = 1_600_000_000
WITH_MBSYNC, LATE_AT_DOVECOT = USERS[:3], USERS[3:23]
PATIENCE_S = 60.0
SYNCS_MAX = 10  # of one user whose mail changes meanwhile, until one ends with 0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        (MBSYNC is None or DovecotPair.version() is None) and not IN_CI,
        reason="not installed: apt-get install dovecot-imapd dovecot-lmtpd isync",
    ),
]


@dataclass(frozen=True)
class Site:
    """All servers, and those who use them."""

    directory: Path
    pair: DovecotPair
    cluster: Cluster
    proxy: Proxy
    mta: Mta
    clients: Clients
    expected: Expected

    def hold(self) -> None:
        """Hold the MTA and the proxy. Some mail is on its way to Dovecot, or to the node, and arrives."""
        self.mta.hold()
        self.proxy.cut()

    def open_at(self, doors: Doors) -> None:
        self.proxy.lead_to(doors.imap)
        self.proxy.mend()
        self.mta.open_at(doors.lmtp)

    def work(self, changes: int) -> None:
        """Let the MTA and the clients do so much, mbsync running beside them."""
        delivered, changed = self.mta.done + changes, self.clients.done + changes
        by = time.monotonic() + PATIENCE_S
        while self.mta.done < delivered or self.clients.done < changed:
            for mbsync in self.clients.mbsyncs:
                mbsync.run()
            assert time.monotonic() < by, (self.mta.done - delivered, self.clients.done - changed)
            for worker in (self.mta, self.clients):
                worker.check()

    # ---- the page's steps

    def sync_all(self, *words: str) -> None:
        """Sync all users as the page says, until each sync has ended well."""
        again = "".join(f"{user}\n" for user in USERS)
        for _ in range(SYNCS_MAX):
            (self.directory / "users.txt").write_text(again, "utf-8")
            command = ["sh", str(self.directory / "sync-all.sh"), str(self.directory / "users.txt"), *words]
            path = f"{self.directory}:{os.environ['PATH']}"
            done = subprocess.run(
                command, env={**os.environ, "PATH": path}, capture_output=True, timeout=120, check=False, text=True
            )
            if not (again := done.stdout):
                return
        raise AssertionError(f"these users' syncs do not end well: {again}")

    @property
    def node(self) -> str:
        """The address that syncs by hand go to."""
        host, port = self.cluster.node("dc1").address("doveadm")
        return f"tcp:{host}:{port}"

    def wait_equal(self) -> None:
        files = [word for node in self.cluster.nodes for word in ("--config", f"{node.data}.toml")]
        command = [sys.executable, "-m", "replicator", "status", *files, "--wait-equal", "1m"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def keep_dovecot_up_to_date(self) -> None:
        node = self.cluster.node("dc1")
        host, port = self.pair.near_doveadm
        with Path(f"{node.data}.toml").open("a", encoding="utf-8") as file:
            file.write(f'[[dovecot]]\naddress = "{host}:{port}"\npassword_file = "doveadm.password"\n')
        node.stop()
        node.start()
        self.cluster.wait_together()

    def leave_dovecot_alone(self) -> None:
        node = self.cluster.node("dc1")
        file = Path(f"{node.data}.toml")
        file.write_text(file.read_text("utf-8").partition("[[dovecot]]")[0], "utf-8")
        node.stop()
        node.start()

    # ---- judgement

    @property
    def at_cluster(self) -> Doors:
        """Clients use another node than the one that syncs."""
        node = self.cluster.node("dc2")
        return Doors(node.address("lmtp"), node.address("imap"))

    def judge(self) -> None:
        """Compare all four servers, mail by mail, while nobody changes anything."""
        doors = {
            "imap1": self.pair.near.imap,
            "imap2": self.pair.far.imap,
            "dc1": self.cluster.node("dc1").address("imap"),
            "dc2": self.cluster.node("dc2").address("imap"),
        }
        with ThreadPoolExecutor(4) as pool:
            for user in USERS:
                seen = dict(zip(doors, pool.map(everything, doors.values(), [user] * 4), strict=True))
                _check_same(user, seen)
                self.expected.check(user, seen["dc1"])


def _check_same(user: str, seen: Mapping[str, Mapping[str, Folder]]) -> None:
    """Check that all show the same UIDVALIDITYs, UIDs, mails and flags."""
    first = seen["imap1"]
    for name, folders in seen.items():
        assert folders.keys() == first.keys(), (user, name)
        for folder, mails in folders.items():
            before = first[folder]
            only = [
                [mail for mail in ones if mail not in others]
                for ones, others in ((before.mails, mails.mails), (mails.mails, before.mails))
            ]
            assert mails == before, (
                f"{user}, {folder}: imap1 {before.numbers}, {only[0]}; {name} {mails.numbers}, {only[1]}"
            )


@contextmanager
def site(directory: Path) -> Iterator[Site]:
    directory.mkdir(mode=0o755)
    expected = Expected()
    script = re.search(r"\n    # sync-all.sh.*?(?=\n    ```)", PAGE.read_text("utf-8"), re.DOTALL)
    assert script is not None
    (directory / "sync-all.sh").write_text(script[0].replace("\n    ", "\n"), "utf-8")
    pair = DovecotPair(directory / "pair", USERS, begun_s=BEGUN_S)
    doveadm = directory / "doveadm"
    doveadm.write_text(f'#!/bin/sh\nexec /usr/bin/doveadm -c {pair.directory}/near/dovecot.conf "$@"\n', "utf-8")
    doveadm.chmod(0o755)
    nodes = directory / "nodes"
    nodes.mkdir()
    (nodes / "doveadm.password").write_text(f"{PASSWORD}\n", "utf-8")
    door = '[doveadm]\npassword_file = "doveadm.password"\n'
    cluster = Cluster(nodes, USERS, size=2, extra=door, more_doors=["doveadm"])
    with pair, cluster, Proxy(pair.near.imap) as proxy:
        mbsyncs = [Mbsync(directory / user, user, proxy.port) for user in WITH_MBSYNC]
        clients = Clients(USERS, proxy.port, expected, mbsyncs)
        with Mta(USERS, pair.near.lmtp, expected) as mta, clients:
            yield Site(directory, pair, cluster, proxy, mta, clients, expected)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory that Dovecot's users may enter, as pytest's may not be."""
    directory = Path(tempfile.mkdtemp(prefix="moving-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def test_users_move_to_the_cluster_and_back_while_they_work(directory: Path) -> None:
    with site(directory / "site") as at:
        at.mta.deliver_to_all(MAILS_BEFORE)
        at.mta.start()
        at.clients.start()
        at.work(20)

        at.sync_all(at.node)
        at.work(20)
        at.sync_all(at.node)

        at.hold()
        at.mta.deliver_late(LATE_AT_DOVECOT, at.pair.near.lmtp)
        at.sync_all("-f", "-d")
        at.sync_all("-f", at.node)
        at.wait_equal()
        at.judge()
        at.open_at(at.at_cluster)
        at.clients.folder = "New"
        at.work(20)

        at.keep_dovecot_up_to_date()
        at.work(20)

        at.hold()
        at.mta.deliver_late(LATE_AT_DOVECOT, at.at_cluster.lmtp)
        at.wait_equal()
        at.sync_all("-f", at.node)
        at.sync_all("-f", "-d")
        at.judge()
        at.leave_dovecot_alone()
        at.open_at(at.pair.near)
        at.work(20)
