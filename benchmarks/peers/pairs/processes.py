"""Server programs with all processes that they start: begun, counted and ended."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.clients.wire import Address, Connection, MeasurementError

APART = ("setpriv", "--pdeathsig", "TERM", "--", "setsid")
"""Command that runs a server in a session of its own, and lets the kernel end it if the measuring process is killed.

Linux shares out processor time between sessions first (sched(7), autogroup), so each server needs one: else a server in
the generator's session would get less of a busy machine. And Ctrl-C is for the measuring process, which then ends them.
"""

START_WITHIN_S = 20.0
END_WITHIN_S = 15.0
LINGERS_S = 3.0
"""Seconds that what a program has started may live on after it."""

LOOK_EVERY_S = 0.02


class Daemon:
    """A server program in the foreground. It ends with SIGTERM, and takes what it has started with it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = [*APART, *command]
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def wait_listening(self, addresses: Iterable[Address]) -> None:
        """Wait until each address takes a connection. Raises MeasurementError."""
        deadline = time.monotonic() + START_WITHIN_S
        for address in addresses:
            while not _listens(address):
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    said = self._log.read_text(encoding="utf-8", errors="replace")
                    raise MeasurementError(f"{self._command[len(APART)]} does not start: {said[-1000:]}")
                time.sleep(LOOK_EVERY_S)

    def processes(self) -> list[psutil.Process]:
        return [] if self._process is None else with_descendants(self._process.pid)

    def stop(self) -> None:
        """End the program and all its processes."""
        if self._process is None:
            return
        left = self.processes()
        self._process.terminate()
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            _, left = psutil.wait_procs(left, timeout=LINGERS_S)


def with_descendants(pid: int) -> list[psutil.Process]:
    """Return a process and all that descend from it; nothing if it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the processor time of processes and of those children of theirs that have ended."""
    spent = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # its time is its parent's by now, or will be at the next look
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of processes; what several of them share counts once (PSS)."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def _listens(address: Address) -> bool:
    try:
        with Connection(address):
            return True
    except OSError:
        return False
