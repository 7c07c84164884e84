"""A client that watches a mailbox by IDLE, and checks that its responses fit together (RFC 3501 section 7.4)."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from benchmarks.clients.wire import ImapClient, MeasurementError
from benchmarks.clusters.cluster import Node
from tests.end_to_end.helpers.ledger import PATIENCE_S

RESPONSE = re.compile(rb"\* (\d+) (EXISTS|EXPUNGE|FETCH)\b(.*)")
UID = re.compile(rb"\bUID (\d+)")
LISTEN_S = 0.3  # at a time; then the client ends IDLE and compares


class Sequence:
    """The UIDs of a mailbox's messages in their order; None where the server has not told the UID."""

    def __init__(self) -> None:
        self.uids: list[int | None] = []
        self.heard: dict[bytes, int] = {}

    def take(self, line: bytes) -> None:
        told = RESPONSE.match(line)
        if told is None:
            return
        number, what = int(told[1]), told[2]
        self.heard[what] = self.heard.get(what, 0) + 1
        if what == b"EXISTS":
            assert number >= len(self.uids), f"{line!r}: there were {len(self.uids)}, and only EXPUNGE takes away"
            self.uids += [None] * (number - len(self.uids))
            return
        assert 1 <= number <= len(self.uids), f"{line!r}: there are {len(self.uids)}"
        if what == b"EXPUNGE":
            del self.uids[number - 1]
        elif uid := UID.search(told[3]):
            known = self.uids[number - 1]
            assert known in {None, int(uid[1])}, f"{line!r}: this was UID {known}"
            self.uids[number - 1] = int(uid[1])

    def check(self) -> None:
        """Check that UIDs ascend (RFC 3501 section 2.3.1.1); those of new messages may be unknown."""
        known = [uid for uid in self.uids if uid is not None]
        assert known == sorted(set(known)), f"UIDs are not in order: {known}"


class Idler(threading.Thread):
    """A thread that watches INBOX at one node until the `with` block ends; it reconnects when a connection breaks."""

    def __init__(self, node: Node, user: str) -> None:
        super().__init__(name=f"idler-{node.sid}", daemon=True)
        self.heard: dict[bytes, int] = {}  # number of responses of each kind, over all sessions
        self._node, self._user = node, user
        self._ended = threading.Event()
        self._failure: AssertionError | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()
        if self._failure is not None and error is None:
            raise self._failure

    def run(self) -> None:
        try:
            while not self._ended.wait(0.02):
                self._session()
        except AssertionError as error:
            self._failure = error

    def _session(self) -> None:
        messages = Sequence()
        try:
            with self._node.imap(self._user) as client:
                for line in client.command("SELECT INBOX"):
                    messages.take(line)
                while not self._ended.is_set():
                    self._look(client, messages)
                    self._idle(client, messages)
        except (OSError, MeasurementError):
            pass  # the node is down, or has ended the connection
        for what, count in messages.heard.items():
            self.heard[what] = self.heard.get(what, 0) + count

    @staticmethod
    def _look(client: ImapClient, messages: Sequence) -> None:
        for line in client.command("NOOP"):
            messages.take(line)
        if messages.uids:
            for line in client.command("FETCH 1:* (UID)"):
                messages.take(line)
            messages.check()

    @staticmethod
    def _idle(client: ImapClient, messages: Sequence) -> None:
        connection = client.connection
        connection.send(b"idle IDLE\r\n")
        until = time.monotonic() + LISTEN_S
        while (left := until - time.monotonic()) > 0:
            connection.socket.settimeout(left)
            with suppress(TimeoutError):
                for line in connection.receive():
                    messages.take(line)
        connection.socket.settimeout(PATIENCE_S)
        connection.send(b"DONE\r\n")
        line = b""
        while not line.startswith(b"idle OK"):
            for line in connection.receive():
                messages.take(line)
