"""A stress test: processes with several threads share a few attachments of one directory, and are killed at any moment.

Each process notes its references in a file, which is its database. When it is killed, the next process of the same SID
sweeps by that file. Run it with `python -m tests.attachments.stress --seconds 60`.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple, NoReturn

import click

from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import Files, MissingError
from replicator.store.attachments.store import Attachments
from replicator.store.attachments.sweep import SweepFindingKind
from tests.attachments.file_systems.kinds import KINDS
from tests.attachments.helpers import all_names
from tests.attachments.records import MemoryRecords, sweep_all

PROCESSES, THREADS, CONTENTS = 3, 3, 3
KILLS_A_SECOND = 6


def content(number: int) -> bytes:
    return f"attachment {number} ".encode() * 1000


class Notes:
    """The references of a SID's threads: a line after each link and one before each unlink. Only whole lines count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="ascii")
        self._lock = threading.Lock()

    def note(self, sign: str, holding: Holding) -> None:
        with self._lock:
            self._file.write(f"\n{sign} {holding.hash.hex()} {holding.holder} {int(holding.kept)} .\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def held(path: Path) -> set[Holding]:
        found: set[Holding] = set()
        for line in path.read_text(encoding="ascii").splitlines() if path.exists() else ():
            match line.split():
                case ["+", digits, holder, kept, "."]:
                    found.add(Holding(bytes.fromhex(digits), holder, kept == "1"))
                case ["-", digits, holder, kept, "."]:
                    found.discard(Holding(bytes.fromhex(digits), holder, kept == "1"))
        return found


class LockedRecords(MemoryRecords):
    """Records that several threads may use."""

    def __init__(self, recorded: set[Holding]) -> None:
        super().__init__(*recorded)
        self._lock = threading.RLock()

    def holders(self, content_hash: bytes, among: Iterable[str]) -> AbstractSet[str]:
        with self._lock:
            return super().holders(content_hash, among)

    def is_kept(self, holder: str) -> bool:
        with self._lock:
            return super().is_kept(holder)

    def holdings(self, after: Holding | None, limit: int) -> Sequence[Holding]:
        with self._lock:
            return super().holdings(after, limit)

    def add(self, holding: Holding) -> None:
        with self._lock:
            self.recorded.add(holding)

    def discard(self, holding: Holding) -> None:
        with self._lock:
            self.recorded.discard(holding)


class Worker:
    """One process of a SID: it sweeps while its threads link and unlink."""

    def __init__(self, kind: str, directory: Path, sid: str) -> None:
        path = directory / f"{sid}.notes"
        held = sorted(Notes.held(path), key=lambda holding: holding.holder)
        self._store = Attachments(KINDS[kind](directory / "store"), sid, secrets.token_hex(16))
        self._notes, self._records = Notes(path), LockedRecords(set(held))
        self._shares = [held[number::THREADS] for number in range(THREADS)]

    def run(self) -> None:
        for share in self._shares:
            threading.Thread(target=self._work, args=(share,), daemon=True).start()
        while True:
            lost = [one for one in sweep_all(self._store, self._records) if one.kind in LOSSES]
            if lost:
                fail(f"the sweep found: {lost}")

    def _work(self, held: list[Holding]) -> None:
        try:
            while True:
                self._act(held)
        except (OSError, MissingError, AssertionError, ValueError) as error:
            fail(f"{type(error).__name__}: {error}")

    def _act(self, held: list[Holding]) -> None:
        if secrets.randbelow(2):
            holding = self._get(secrets.randbelow(CONTENTS))
            if holding is not None:
                verify(self._store, holding)
                self._notes.note("+", holding)
                self._records.add(holding)
                self._store.settle(holding.holder)
                held.append(holding)
        elif held:
            holding = held.pop(secrets.randbelow(len(held)))
            verify(self._store, holding)
            self._notes.note("-", holding)
            self._records.discard(holding)
            self._store.unlink(holding)

    def _get(self, number: int) -> Holding | None:
        if secrets.randbelow(2):
            return self._store.link(hashlib.sha256(content(number)).digest())
        with self._store.build() as construction:
            construction.write(content(number))
            return construction.finish()


LOSSES = {SweepFindingKind.NO_ATTACHMENT, SweepFindingKind.NO_CONTENT, SweepFindingKind.NO_HOLDER}


def verify(store: Attachments, holding: Holding) -> None:
    data = store.read(holding, 0, 1 << 20)
    assert hashlib.sha256(data).digest() == holding.hash, f"{holding} cannot be read"
    store.files.size(f"{store.place(holding)}/holders/{holding.holder}")


def fail(reason: str) -> NoReturn:
    sys.stderr.write(f"stress: {reason}\n")
    sys.stderr.flush()
    os._exit(3)


def stress(kind: str, directory: Path, seconds: float, dice: random.Random) -> Counter[str]:
    """Run and kill processes for so long, check what is left, and return counts. May raise AssertionError."""
    done: Counter[str] = Counter()
    sids = [f"dc{number}" for number in range(PROCESSES)]
    running: dict[str, Running] = {}
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for sid in sids:
                if sid not in running:
                    running[sid] = start(kind, directory, sid)
            victim = running.pop(dice.choice(sids))
            victim.kill(dice.random() * 2 / KILLS_A_SECOND)
            done["killed"] += 1
    finally:
        for left in running.values():
            left.process.kill()
            left.process.wait()
    assert all(left.process.returncode == -signal.SIGKILL for left in running.values()), "a worker ended; see above"
    for sid in sids:
        file = directory / f"{sid}.notes"
        notes = file.read_text(encoding="ascii") if file.exists() else ""  # its process may have been slow to start
        done["linked"] += notes.count("+")
        done["unlinked"] += notes.count("-")
        done["kept"] += notes.count(" 1 .")
    check(kind, directory, sids)
    return done


class Running(NamedTuple):
    """A process, and the size of its SID's notes at its start."""

    process: subprocess.Popen[bytes]
    notes: Path
    size_bytes: int

    def kill(self, after_s: float) -> None:
        """Kill the process some time after its first note. Raise AssertionError if it ends by itself."""
        code = None
        while code is None and size(self.notes) == self.size_bytes:
            code = self._wait(0.01)
        code = code if code is not None else self._wait(after_s)
        self.process.kill()
        self.process.wait()
        assert code is None, f"a worker ended with {code}; see above"

    def _wait(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def start(kind: str, directory: Path, sid: str) -> Running:
    notes = directory / f"{sid}.notes"
    command = [sys.executable, "-m", "tests.attachments.stress", "--worker", sid, "--kind", kind, "--directory"]
    before = size(notes)
    return Running(subprocess.Popen([*command, str(directory)], cwd=Path(__file__).parents[2]), notes, before)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check(kind: str, directory: Path, sids: Sequence[str]) -> None:
    """Check that only held attachments are left after a sweep, all readable, and none after all are unlinked."""
    files: Files = KINDS[kind](directory / "store")
    held = {sid: Notes.held(directory / f"{sid}.notes") for sid in sids}
    stores = {sid: Attachments(files, sid, secrets.token_hex(16)) for sid in sids}
    for sid, store in stores.items():
        lost = [finding for finding in sweep_all(store, MemoryRecords(*held[sid])) if finding.kind in LOSSES]
        assert not lost, lost
    places = {stores[sid].place(holding) for sid in sids for holding in held[sid]}
    assert {name for name in all_names(files) if name.count("/") == 2} == places
    for sid, store in stores.items():
        for holding in held[sid]:
            verify(store, holding)
    for sid, store in stores.items():
        for holding in held[sid]:
            store.unlink(holding)
    assert all_names(files) == set()


@click.command()
@click.option("--seconds", default=60.0)
@click.option("--kind", type=click.Choice(["disk", "shim"]), default="disk")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=None,
    help="Where to make a new one: on the disk to be tried.",
)
@click.option("--worker", default=None, hidden=True)
def main(seconds: float, kind: str, directory: Path | None, worker: str | None) -> None:
    if worker is not None:
        assert directory is not None
        Worker(kind, directory, worker).run()
    at = Path(tempfile.mkdtemp(prefix="stress-", dir=directory))
    try:
        click.echo(f"{kind}: {dict(stress(kind, at, seconds, random.Random()))}")
    finally:
        shutil.rmtree(at)


if __name__ == "__main__":
    main()
