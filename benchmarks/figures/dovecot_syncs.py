"""Syncs of a Dovecot's mail with a node, beside the same syncs with another Dovecot, by turns.

The Dovecot that begins has mails of 1 KiB, as sdbox. A node of two says OK after both disks. The time is that
of `doveadm sync` from its start to its end.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import Address, MeasurementError
from benchmarks.clusters.cluster import PASSWORD, Cluster, reserve_ports
from benchmarks.clusters.dovecot import Dovecot
from benchmarks.clusters.proxy import HOST, Direction, Proxy
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

DOVEADM = "/usr/bin/doveadm"
MAIL_BYTES = 1024
OUT_OF_STEP = 10
ROUNDS = 5
LIMIT_S = 900
COUNTED_MAILS = 1000
STATE_IS_OF_NO_USE = 2
"""Dovecot's exit code then: the next sync compares all mails."""

SETTINGS = """
mail_location = sdbox:{directory}/mail/%u/sdbox
doveadm_password = {password}
service doveadm {{
  inet_listener {{
    address = {host}
    port = {port}
  }}
}}
"""
DOOR = '[doveadm]\npassword_file = "doveadm.password"\n'


class SyncingDovecot(Dovecot):
    """A Dovecot with sdbox whose doveadm listens."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._doveadm_reserved = reserve_ports(1)[0]
        self.doveadm = Address(HOST, int(self._doveadm_reserved.getsockname()[1]))
        settings = SETTINGS.format(directory=directory, password=PASSWORD, host=HOST, port=self.doveadm.port)
        super().__init__(directory, extra=settings)
        self.directory = directory
        self.mails = MailTexts(MAIL_BYTES, seed=1)

    def do(self, *words: str, text: bytes = b"", may_end_with: int = 0) -> str:
        """Run doveadm, which may end with this code besides 0; return its output."""
        command = [DOVEADM, "-c", str(self.directory / "dovecot.conf"), *words]
        done = subprocess.run(command, input=text, capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode not in {0, may_end_with}:
            raise MeasurementError(f"doveadm {' '.join(words)}: {done.stderr.decode()[-500:]}")
        return done.stdout.decode()

    def take(self, user: str, mails: int) -> None:
        """Give a user so many mails."""
        maildir = self.directory / "maildirs" / user
        for name in ("new", "cur", "tmp"):
            (maildir / name).mkdir(parents=True)
        for number in range(mails):
            (maildir / "cur" / f"{number:010d}.bench:2,").write_bytes(next(self.mails))
        self.own(self.directory / "maildirs")
        self.do("import", "-u", user, f"maildir:{maildir}", "", "all")


@dataclass
class Times:
    """Seconds of syncs with one kind of remote side."""

    full: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    stateful: list[float] = field(default_factory=list)
    bytes_a_mail: float = 0.0


def dovecot_syncs(directory: Path, scale: Scale) -> list[Figure]:
    pairs = 2
    users = [f"user{number}" for number in range(2 * pairs)]
    counted = ["counted0", "counted1"]
    directory.mkdir(parents=True)
    directory.chmod(0o755)  # Dovecot runs under another user
    directory.parent.chmod(directory.parent.stat().st_mode | 0o055)
    cluster = Cluster(directory / "nodes", [*users, *counted], size=2, more_doors=["doveadm"], extra=DOOR)
    (directory / "nodes" / "doveadm.password").write_text(PASSWORD, encoding="utf-8")
    with cluster, SyncingDovecot(directory / "master") as master, SyncingDovecot(directory / "remote") as remote:
        door = cluster.nodes[0].address("doveadm")
        sides = [("another Dovecot", remote.doveadm, Times()), ("a node", door, Times())]
        for number, user in enumerate(users):
            what, address, times = sides[number % 2]
            master.take(user, scale.synced_mails)
            times.full.append(_sync(master, user, address))
            click.echo(f"{scale.synced_mails:,} mails to {what}: {times.full[-1]:.1f} s", err=True)
            _settle(master, user, address)
        for number in range(ROUNDS):
            for user, (_, address, times) in zip(users, sides, strict=False):
                _get_out_of_step(master, user, number)
                times.changed.append(_sync(master, user, address))
        states = [_settle(master, user, address) for user, (_, address, _) in zip(users, sides, strict=False)]
        for number in range(ROUNDS):
            for at, (_, address, times) in enumerate(sides):
                _get_out_of_step(master, users[at], ROUNDS + number)
                times.stateful.append(_sync(master, users[at], address, "-s", states[at]))
                states[at] = _settle(master, users[at], address, states[at])
        for user, (_, address, times) in zip(counted, sides, strict=True):
            times.bytes_a_mail = _counted(master, user, address)
    return [figure for what, _, times in sides for figure in _figures(what, times, scale.synced_mails)]


def _figures(what: str, times: Times, mails: int) -> Sequence[Figure]:
    stale = f"{OUT_OF_STEP} mails and {OUT_OF_STEP} flags out of step in {mails:,}"
    return [
        Figure(
            f"`doveadm sync` of {mails:,} mails of 1 KiB to {what}",
            statistics.median(times.full),
            "s",
            detail={"all_s": times.full, "bytes_a_mail": times.bytes_a_mail},
        ),
        Figure(f"{stale}, {what}", statistics.median(times.changed), "s", detail={"all_s": times.changed}),
        Figure(f"{stale}, {what}, by a state (`-s`)", statistics.median(times.stateful), "s"),
    ]


def _sync(master: SyncingDovecot, user: str, address: Address, *options: str) -> float:
    began = time.perf_counter()
    master.do("sync", "-u", user, *options, f"tcp:{HOST}:{address.port}")
    return time.perf_counter() - began


def _settle(master: SyncingDovecot, user: str, address: Address, state: str = "") -> str:
    """Sync until nothing is left to do; return the state."""
    for _ in range(4):
        words = ["sync", "-u", user, "-s", state, f"tcp:{HOST}:{address.port}"]
        state = master.do(*words, may_end_with=STATE_IS_OF_NO_USE).strip()
    return state


def _get_out_of_step(master: SyncingDovecot, user: str, number: int) -> None:
    """Change some mails, and add some."""
    uids = f"{number * OUT_OF_STEP + 1}:{(number + 1) * OUT_OF_STEP}"
    master.do("flags", "add", "-u", user, "\\Flagged", "mailbox", "INBOX", "uid", uids)
    for _ in range(OUT_OF_STEP):
        master.do("save", "-u", user, "-m", "INBOX", text=next(master.mails))


def _counted(master: SyncingDovecot, user: str, address: Address) -> float:
    """Return the octets on the line for each mail of a first sync, both directions together."""
    master.take(user, COUNTED_MAILS)
    with Proxy(address) as proxy:
        _sync(master, user, Address(HOST, proxy.port))
        return (proxy.carried_bytes(Direction.FORTH) + proxy.carried_bytes(Direction.BACK)) / COUNTED_MAILS
