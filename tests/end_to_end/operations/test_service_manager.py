"""What a real node tells the service manager that has started it, and what it does not tell when it hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.notify_socket import NotifySocket

PATIENCE_S = 60.0
WATCHDOG_S = 0.6
BEAT_S = WATCHDOG_S / 3

PROGRAM = """
import signal, sys

def hang(*_):
    print("hangs", flush=True)
    signal.sigwait([signal.SIGUSR2])
    print("goes on", flush=True)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
signal.signal(signal.SIGUSR1, hang)
from replicator.cli import main
main()
"""
"""`replicator`, whose event loop hangs at SIGUSR1 until SIGUSR2 comes. Its other threads go on meanwhile."""


@contextmanager
def node(directory: Path, notify: NotifySocket) -> Iterator[subprocess.Popen[str]]:
    file = directory / "dc1.toml"
    file.write_text('[node]\nid = "dc1"\n', "utf-8")
    watchdog = {"NOTIFY_SOCKET": notify.address, "WATCHDOG_USEC": str(round(WATCHDOG_S * 1_000_000))}
    command = [sys.executable, "-c", PROGRAM, "node", "--config", str(file)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **watchdog}, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(str(tmp_path / "notify")) as listener:
        yield listener


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def next_state(notify: NotifySocket) -> str:
    """Return the first line of the next message that is no sign of life."""
    deadline = time.monotonic() + PATIENCE_S
    while (message := notify.hear()) == "WATCHDOG=1":
        assert time.monotonic() < deadline, "nothing but signs of life"
    return message.partition("\n")[0]


def test_a_node_tells_its_states_and_that_it_is_alive(tmp_path: Path, notify: NotifySocket) -> None:
    with node(tmp_path, notify) as process:
        assert next_state(notify) == "READY=1"
        assert line(process) == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert [next_state(notify), next_state(notify)] == ["RELOADING=1", "READY=1"]
        notify.heard()
        assert [notify.hear(), notify.hear()] == ["WATCHDOG=1"] * 2
        process.terminate()
        assert next_state(notify) == "STOPPING=1"
        assert process.wait(60) == 0
    assert set(notify.heard()) <= {"WATCHDOG=1"}


def test_a_node_whose_event_loop_hangs_gives_no_sign_of_life(tmp_path: Path, notify: NotifySocket) -> None:
    with node(tmp_path, notify) as process:
        assert next_state(notify) == "READY=1"
        assert line(process) == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert line(process) == "hangs\n"
        notify.heard()
        with pytest.raises(TimeoutError):
            notify.hear(within_s=10 * BEAT_S)
        process.send_signal(signal.SIGUSR2)
        assert line(process) == "goes on\n"
        assert [notify.hear(), notify.hear()] == ["WATCHDOG=1"] * 2


def test_the_log_of_a_node_that_the_watchdog_ends_has_where_it_hangs(tmp_path: Path, notify: NotifySocket) -> None:
    with node(tmp_path, notify) as process:
        assert next_state(notify) == "READY=1"
        assert line(process) == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert line(process) == "hangs\n"
        process.send_signal(signal.SIGABRT)  # as systemd does
        assert process.wait(60) == -signal.SIGABRT
    log = (tmp_path / "log").read_text("utf-8")
    assert "Fatal Python error: Aborted" in log
    assert "in hang\n" in log
