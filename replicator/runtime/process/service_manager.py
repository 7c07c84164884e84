"""The service manager that has started this process, such as systemd: how it is told what the node does.

The protocol is that of sd_notify(3): a datagram at the socket that the variable NOTIFY_SOCKET names. It hears when the
node is ready, when it reads its certificates again, when it stops, and that it is alive.

Nobody waits for the manager. What its socket has no room for goes out with the next beat; of two states, the last one.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Self

import trio

log = logging.getLogger(__name__)

BEATS_PER_WATCHDOG = 3
"""Signs of life within the time after which the manager ends a silent process: one or two may be late."""

BEAT_S = 5.0
"""Seconds between beats if the manager watches nobody: for states that its socket had no room for."""

WRITER_PATIENCE_S = 600.0
"""Seconds without an answer of the database's writer, until signs of life cease. The merge of a mailbox of a million
messages keeps it busy for a minute or two, and slow disks take longer."""


class ServiceManager:
    """The words in which a service manager is told of this process. Belongs to the event loop.

    `address`: its socket, a path or, with `@` in front, an abstract name (unix(7)); None: nobody is told. `watchdog_s`:
    seconds of silence after which it ends this process; None: it does not.
    """

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s if address else None
        self._is_ready = False
        self._is_stopping = False
        self._unsaid: str | None = None
        self._is_deaf = False

    @classmethod
    def of_environment(cls, variables: MutableMapping[str, str]) -> Self:
        """Take the manager's variables out of an environment, so that processes of this one do not speak for it."""
        address = variables.pop("NOTIFY_SOCKET", "")
        time_us, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        if not address:
            return cls()
        if address[0] not in "/@":
            log.warning("the service manager's socket is of an unknown kind, so it is told nothing: %s", address)
            return cls()
        is_watched = pid in {"", str(os.getpid())} and time_us.isdecimal() and int(time_us) > 0
        return cls(address, watchdog_s=int(time_us) / 1_000_000 if is_watched else None)

    @property
    def is_there(self) -> bool:
        """True if a service manager has started this process."""
        return self._address is not None

    def ready(self) -> None:
        """Say that all listeners accept."""
        self._is_ready = True
        self._say_state("READY=1")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that the block reads certificates again, and then that it is done. Before `ready`, say nothing."""
        if not self._is_ready:
            yield
            return
        self._say_state(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self._say_state("READY=1")

    def stopping(self) -> None:
        """Say that the node stops. It says nothing of its state after that."""
        self._say_state("STOPPING=1")
        self._is_stopping = True

    async def beat(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Say that this process is alive, until cancelled.

        The manager hears it while the event loop goes round, and as long as no call of `flush`, which waits for the
        database's writer, takes more than `WRITER_PATIENCE_S`.
        """
        if self._address is None:
            return
        interval_s = BEAT_S if self._watchdog_s is None else self._watchdog_s / BEATS_PER_WATCHDOG
        answered = trio.current_time()

        async def ask_writer() -> None:
            nonlocal answered
            while True:
                await flush()
                answered = trio.current_time()
                await trio.sleep(interval_s)

        async with trio.open_nursery() as nursery:
            if self._watchdog_s is not None:
                nursery.start_soon(ask_writer)
            was_silent = False
            while True:
                self._say_unsaid()
                is_silent = self._watchdog_s is not None and trio.current_time() - answered > WRITER_PATIENCE_S
                if is_silent and not was_silent:
                    log.error("the database's writer has not answered for %g s: signs of life cease", WRITER_PATIENCE_S)
                was_silent = is_silent
                if self._watchdog_s is not None and not is_silent:
                    self._send("WATCHDOG=1")
                await trio.sleep(interval_s)

    def _say_state(self, text: str) -> None:
        if self._address is None or self._is_stopping:
            return
        self._unsaid = text
        self._say_unsaid()

    def _say_unsaid(self) -> None:
        if self._unsaid is not None and self._send(self._unsaid):
            self._unsaid = None

    def _send(self, text: str) -> bool:
        """Send a datagram. Return False if there is no room for it now, or nobody at the socket."""
        assert self._address is not None
        address = os.fsencode(self._address)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(0)
                sending.sendto(text.encode(), b"\0" + address[1:] if address.startswith(b"@") else address)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._is_deaf:
                reason = error.strerror or error
                log.warning("the service manager at %s cannot be told anything: %s", self._address, reason)
            self._is_deaf = True
            return False
        self._is_deaf = False
        return True
