"""A sender behind a balancer: each mail goes to a node that `/healthz` calls healthy."""

from __future__ import annotations

import http.client
import smtplib
import threading
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from types import TracebackType
from typing import Self

from benchmarks.clusters.cluster import Node
from tests.end_to_end.helpers.ledger import PATIENCE_S

PAUSE_S = 0.2  # between two mails: nodes and scripts share the machine


class BalancedSender(threading.Thread):
    """A thread that sends mail by LMTP, each in a session of its own, until the `with` block ends.

    The nodes take turns. As a balancer does, it tries the next node where none listens; whatever else goes wrong with a
    mail is a failure. At the end there must be none.
    """

    def __init__(self, nodes: Sequence[Node], user: str) -> None:
        super().__init__(name="balanced-sender", daemon=True)
        self.accepted: dict[str, str] = {}  # token -> node
        self.failures: list[str] = []
        self._nodes, self._user = nodes, user
        self._ended, self._news = threading.Event(), threading.Condition()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()
        if error is None:
            assert not self.failures

    def wait(self, mails: int = 5) -> None:
        """Return once so many further mails are accepted."""
        wanted = len(self.accepted) + mails
        with self._news:
            assert self._news.wait_for(lambda: self.failures or len(self.accepted) >= wanted, PATIENCE_S)
        assert not self.failures

    def run(self) -> None:
        for number in count():
            if self._ended.wait(PAUSE_S):
                return
            token = f"balanced{number}"
            turn = number % len(self._nodes)
            with self._news:
                self._send(token, [*self._nodes[turn:], *self._nodes[:turn]])
                self._news.notify_all()

    def _send(self, token: str, nodes: Sequence[Node]) -> None:
        mail = f"Message-ID: <{token}@example.org>\r\nSubject: x\r\n\r\n{token}\r\n"
        for node in nodes:
            if not _is_healthy(node):
                continue
            try:
                with closing(smtplib.LMTP(*node.address("lmtp"), "localhost", timeout=PATIENCE_S)) as client:
                    client.sendmail("a@example.org", [self._user], mail)
            except ConnectionRefusedError:  # it was stopped since
                continue
            except (OSError, smtplib.SMTPException) as error:
                self.failures.append(f"{token} to {node.sid}: {error!r}")
            else:
                self.accepted[token] = node.sid
            return
        self.failures.append(f"{token}: no node is healthy")


def _is_healthy(node: Node) -> bool:
    connection = http.client.HTTPConnection(*node.address("http"), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):  # it does not run, or stops just now
        return False
    finally:
        connection.close()
