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

from benchmarks.clients.wire import Address
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
SYNCS_S = 240.0  # of all users, whose mail changes meanwhile, until each sync ends with 0
DOVECOTS = {"dc1": "imap1", "dc2": "imap2"}
"""The Dovecot that each node syncs with."""

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

    def sync_all(self, at: str, *words: str) -> None:
        """Sync all users of a Dovecot as the page says, until each sync has ended well."""
        (self.directory / "users.txt").write_text("".join(f"{user}\n" for user in USERS), "utf-8")
        command = ["sh", str(self.directory / "sync-all.sh"), str(self.directory / "users.txt"), *words]
        path = f"{self.directory / at}:{os.environ['PATH']}"
        subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, timeout=SYNCS_S, check=True)

    def sync_with_nodes(self, *words: str) -> None:
        """Sync all users of both Dovecots, each with the node of its own place."""
        for sid, at in DOVECOTS.items():
            self.sync_all(at, *words, self.address_of(sid))

    def address_of(self, sid: str) -> str:
        """Return the address of a node that syncs by hand go to."""
        host, port = self.cluster.node(sid).address("doveadm")
        return f"tcp:{host}:{port}"

    def wait_equal(self) -> None:
        files = [word for node in self.cluster.nodes for word in ("--config", f"{node.data}.toml")]
        command = [sys.executable, "-m", "replicator", "status", *files, "--wait-equal", "1m"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def keep_dovecots_up_to_date(self) -> None:
        """Have each node sync with its Dovecot. Meanwhile the MTA and the clients use the other one."""
        for sid, other, dovecot in (
            ("dc1", "dc2", self.pair.near_doveadm),
            ("dc2", "dc1", self.pair.far_doveadm),
        ):
            self.open_at(self.doors_of(other))
            with Path(f"{self.cluster.node(sid).data}.toml").open("a", encoding="utf-8") as file:
                address = f"{dovecot.host}:{dovecot.port}"
                file.write(f'[[dovecot]]\naddress = "{address}"\npassword_file = "doveadm.password"\n')
            self._restart(sid)

    def leave_dovecots_alone(self) -> None:
        for sid in DOVECOTS:
            file = Path(f"{self.cluster.node(sid).data}.toml")
            file.write_text(file.read_text("utf-8").partition("[[dovecot]]")[0], "utf-8")
            self._restart(sid)

    def _restart(self, sid: str) -> None:
        node = self.cluster.node(sid)
        node.stop()
        node.start()
        self.cluster.wait_together()

    # ---- judgement

    def doors_of(self, sid: str) -> Doors:
        """Return the addresses of a node's doors."""
        node = self.cluster.node(sid)
        return Doors(node.address("lmtp"), node.address("imap"))

    def judge(self) -> None:
        """Compare all four servers, mail by mail, while nobody changes anything."""
        self._judge({**self._of_pair, **{sid: self.doors_of(sid).imap for sid in DOVECOTS}})

    def judge_pair(self) -> None:
        """Compare the two Dovecots."""
        self._judge(self._of_pair)

    @property
    def _of_pair(self) -> dict[str, Address]:
        return {"imap1": self.pair.near.imap, "imap2": self.pair.far.imap}

    def _judge(self, doors: Mapping[str, Address]) -> None:
        with ThreadPoolExecutor(len(doors)) as pool:
            for user in USERS:
                seen = dict(zip(doors, pool.map(everything, doors.values(), [user] * len(doors)), strict=True))
                _check_same(user, seen)
                self.expected.check(user, seen["imap1"])


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
    for at, side in (("imap1", "near"), ("imap2", "far")):
        (directory / at).mkdir()
        doveadm = directory / at / "doveadm"
        doveadm.write_text(f'#!/bin/sh\nexec /usr/bin/doveadm -c {pair.directory}/{side}/dovecot.conf "$@"\n', "utf-8")
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

        at.sync_all("imap1", at.address_of("dc1"))
        at.work(20)
        at.sync_all("imap1", "-f", at.address_of("dc1"))

        at.hold()
        at.mta.deliver_late(LATE_AT_DOVECOT, at.pair.near.lmtp)
        at.sync_all("imap1", "-f", "-d")
        at.pair.part()
        at.sync_with_nodes("-f")
        at.wait_equal()
        at.judge()
        at.open_at(at.doors_of("dc2"))
        at.clients.folder = "New"
        at.work(20)

        at.keep_dovecots_up_to_date()
        at.work(20)

        at.hold()
        at.mta.deliver_late(LATE_AT_DOVECOT, at.doors_of("dc1").lmtp)
        at.wait_equal()
        at.sync_with_nodes("-f")
        at.judge()
        at.leave_dovecots_alone()
        at.pair.join()
        at.open_at(at.pair.near)
        at.work(20)

        at.hold()
        at.sync_all("imap1", "-f", "-d")
        at.judge_pair()
