"""A process that delivers mail over several LMTP connections, each with one mail under way at a time.

There is one round trip per mail: the end of a mail and the envelope of the next one travel together (RFC 2920). The
first argument is a `Load` as JSON; the process prints a `LoadResult` as JSON.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import Address, Connection, check_replies, connect_lmtp, envelope


@dataclass(frozen=True)
class Load:
    """A delivery of `mails` mails, or for `seconds` at most; to the users in turn, `recipients` of them per mail."""

    addresses: tuple[tuple[str, int], ...]
    users: tuple[str, ...]
    connections: int
    mails: int
    seconds: float
    size_bytes: int
    recipients: int = 1
    seed: int = 1


@dataclass(frozen=True)
class LoadResult:
    mails: int
    seconds: float
    latencies_s: tuple[float, ...]
    cpu_s: float


class Lane:
    """One connection. `waits` counts the reply lines that are still due before the next mail may go."""

    def __init__(self, connection: Connection, recipients: Iterator[tuple[str, ...]]) -> None:
        self.connection = connection
        self._recipients = recipients
        self._ready = self._announce(b"")
        self.sent_at = 0.0
        self.waits = 0

    def _announce(self, before: bytes) -> int:
        """Send the next envelope after the end of the previous mail.

        Return the number of replies that the next DATA will have.
        """
        names = next(self._recipients)
        self.connection.send(before + envelope(names))
        return len(names)

    def start(self) -> None:
        check_replies(self.connection.receive_lines(self._ready + 2))

    def deliver(self, message: bytes) -> None:
        self.sent_at = time.perf_counter()
        ends = self._ready
        self._ready = self._announce(message + b".\r\n")
        self.waits = ends + self._ready + 2

    def receive(self) -> bool:
        """Read the available bytes. Return True if the mail is delivered and the next one may go."""
        lines = self.connection.receive()
        check_replies(lines)
        self.waits -= len(lines)
        return self.waits == 0


def run(load: Load) -> LoadResult:
    texts = MailTexts(load.size_bytes, load.seed)
    addresses = [Address(*address) for address in load.addresses]
    counter = count()

    def recipients() -> tuple[str, ...]:
        first = next(counter) * load.recipients
        return tuple(load.users[(first + offset) % len(load.users)] for offset in range(load.recipients))

    lanes = [
        Lane(connect_lmtp(addresses[number % len(addresses)]), iter(recipients, ()))
        for number in range(min(load.connections, load.mails))
    ]
    selector = selectors.DefaultSelector()
    for lane in lanes:
        lane.start()
        selector.register(lane.connection, selectors.EVENT_READ, lane)
    began, busy = time.perf_counter(), time.process_time()
    deadline = began + load.seconds
    latencies: list[float] = []
    for lane in lanes:
        lane.deliver(next(texts))
    sent = len(lanes)
    while len(latencies) < sent:
        for key, _ in selector.select():
            lane = key.data
            if not lane.receive():
                continue
            now = time.perf_counter()
            latencies.append(now - lane.sent_at)
            if sent < load.mails and now < deadline:
                lane.deliver(next(texts))
                sent += 1
    return LoadResult(sent, time.perf_counter() - began, tuple(latencies), time.process_time() - busy)


if __name__ == "__main__":
    print(json.dumps(asdict(run(Load(**json.loads(sys.argv[1]))))))
