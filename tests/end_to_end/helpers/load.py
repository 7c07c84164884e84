"""Clients of a cluster that fails in parts: they send, change and expunge mail, and note the answers in a ledger.

Each node has a sender (LMTP) and an editor (IMAP) of its own. They do as many changes as they are asked to; a change
that fails, or is not answered, does not count.
"""

from __future__ import annotations

import imaplib
import random
import smtplib
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Self

from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.ledger import PATIENCE_S, Cache, Ledger, Seen, log_in, uids_in_responses

SIDS = ("dc1", "dc2", "dc3")
TIMEOUT_S = 2.0
SHORT_TIMEOUTS = f'[mastership]\nheartbeat = "500ms"\ntimeout = "{TIMEOUT_S:.0f}s"\n'
CHANGES = 12  # of each worker, in each part of a test
NOT_IN_TIME = "not confirmed in time"
PAUSE_S = 0.02  # after a failure, since the node may be down
LOOK_EVERY = 12  # changes of an editor between two looks at the whole mailbox

LostError = (OSError, EOFError, imaplib.IMAP4.error, smtplib.SMTPException)
"""Errors of a lost connection or answer. The change may have happened."""


class Worker(threading.Thread):
    """A thread that does as many changes at one node as it has been asked for."""

    def __init__(self, node: Node, user: str, ledger: Ledger, kind: str) -> None:
        super().__init__(name=f"{kind}-{node.sid}", daemon=True)
        self.node, self.user, self.ledger = node, user, ledger
        self.failure: BaseException | None = None
        self.is_patient = False  # its changes may time out: its node is paused, or its links are bad
        self._wanted = 0
        self._ended = self._has_stopped = False
        self._news = threading.Condition()

    def ask(self, changes: int) -> None:
        with self._news:
            self._wanted += changes
            self._news.notify_all()

    def wait(self, within_s: float, left: int = 0) -> None:
        """Return once no more than `left` changes are still to be done."""
        with self._news:
            self._news.wait_for(lambda: self._wanted <= left or self._has_stopped, within_s)
        if self.failure is not None:
            raise self.failure
        assert self._wanted <= left, f"{self.name}: {self._wanted} changes are to be done, after {within_s:.0f} s"

    def end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify_all()

    def run(self) -> None:
        try:
            while self._next():
                is_done = self._try()
                with self._news:
                    self._wanted -= is_done
                    self._news.notify_all()
                    if not is_done:
                        self._news.wait_for(lambda: self._ended, PAUSE_S)
        except AssertionError as error:
            self.failure = error
        finally:
            self.disconnect()
            with self._news:
                self._has_stopped = True
                self._news.notify_all()

    def _try(self) -> bool:
        try:
            return self.change()
        except LostError as error:
            # A change waits for a new term at most (design section 11: a node dies), not until its node gives up.
            if NOT_IN_TIME in str(error) and not self.is_patient:
                raise AssertionError(f"{self.name} waited in vain: {error}") from error
            self.disconnect()
            return False

    def _next(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or self._wanted)
            return not self._ended

    def change(self) -> bool:
        """Do a change. Return True if it was acknowledged."""
        raise NotImplementedError

    def disconnect(self) -> None:
        raise NotImplementedError


class Sender(Worker):
    """A client that sends one mail after the other by LMTP."""

    def __init__(self, node: Node, user: str, ledger: Ledger) -> None:
        super().__init__(node, user, ledger, "sender")
        self._client: smtplib.LMTP | None = None

    def change(self) -> bool:
        if self._client is None:
            with self.node.site.enter():
                self._client = smtplib.LMTP(*self.node.address("lmtp"), "localhost", timeout=PATIENCE_S)
        token, body = self.ledger.new_mail(self.name)
        self._client.sendmail("a@example.org", [self.user], body)
        self.ledger.accepted.add(token)
        self.ledger.tell(token, "is delivered")
        return True

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class Editor(Worker):
    """A client that appends, flags and expunges in INBOX. It alone sets the keyword that has its node's name."""

    def __init__(self, node: Node, user: str, ledger: Ledger) -> None:
        super().__init__(node, user, ledger, "editor")
        self.cache = Cache(node.sid)
        self._keyword = f"${node.sid}"
        self._random = random.Random(self.name)
        self._client: imaplib.IMAP4 | None = None
        self._seen: dict[str, Seen] = {}
        self._since_look = 0

    def change(self) -> bool:
        self._since_look += 1
        if self._client is None or self._since_look > LOOK_EVERY:
            client = self._client or log_in(self.node, self.user)
            self._client, self._since_look = client, 0
            self._seen = {message.token: message for message in self.cache.select(client)}
        choice = self._random.random()
        if choice < 0.3 or not self._seen:
            return self._append(self._client)
        # All nodes had the oldest mail before anything broke, so that all editors change the same mails.
        oldest = list(self._seen.values())
        if choice < 0.75:
            return self._flag(self._client, self._random.choice(oldest[:3]))
        return self._expunge(self._client, self._random.choice(oldest[3:20] or oldest))

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.shutdown()

    def _append(self, client: imaplib.IMAP4) -> bool:
        token, body = self.ledger.new_mail(self.name)
        _require_ok(client.append("INBOX", "", "", body))
        self.ledger.accepted.add(token)
        self.ledger.tell(token, "is appended")
        return True

    def _flag(self, client: imaplib.IMAP4, message: Seen) -> bool:
        name = message.token, self._keyword
        before = self.ledger.keywords.get(name, False)
        wanted = not before
        self.ledger.keywords[name] = None
        answer = client.uid("STORE", str(message.uid), "+FLAGS" if wanted else "-FLAGS", f"({self._keyword})")
        _require_ok(answer)
        # A message that was renumbered or expunged meanwhile is no longer under this UID.
        is_there = message.uid in uids_in_responses(answer[1])
        self.ledger.keywords[name] = wanted if is_there else before
        return is_there

    def _expunge(self, client: imaplib.IMAP4, message: Seen) -> bool:
        token = message.token
        del self._seen[token]
        self.ledger.doubtful.add(token)
        for command in (("STORE", str(message.uid), "+FLAGS", r"(\Deleted)"), ("EXPUNGE", str(message.uid))):
            answer = client.uid(*command)
            self.ledger.tell(token, f"UID {' '.join(command)}: {answer}")
            _require_ok(answer)
        client.noop()
        found = client.uid("SEARCH", "HEADER", "Message-ID", f"<{token}@example.org>")[1]
        self.ledger.tell(token, f"is found: {found}")
        if not found[0]:  # otherwise it has another UID by now, and is still there
            self.ledger.expunged.add(token)
            if token in self.ledger.calm:
                self.cache.expunged(token)
        return True


def _require_ok(answer: tuple[str, object]) -> None:
    """Raise IMAP4.error for a NO, as imaplib does for a BAD."""
    if answer[0] != "OK":
        raise imaplib.IMAP4.error(str(answer))


class Load:
    """A sender and an editor at every node, for one user."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        self.cluster, self.user, self.ledger = cluster, user, Ledger()
        self.editors = {node.sid: Editor(node, user, self.ledger) for node in cluster.nodes}
        self._workers: list[Worker] = [
            *self.editors.values(), *(Sender(node, user, self.ledger) for node in cluster.nodes)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.join()

    def workers_at(self, sids: Collection[str] | None) -> list[Worker]:
        return [worker for worker in self._workers if sids is None or worker.node.sid in sids]

    def ask(self, changes: int, sids: Collection[str] | None = None) -> None:
        """Ask every worker for so many changes, at all nodes or at these."""
        for worker in self.workers_at(sids):
            worker.ask(changes)

    def wait(self, sids: Collection[str] | None = None, within_s: float = 2 * PATIENCE_S, left: int = 0) -> None:
        for worker in self.workers_at(sids):
            worker.wait(within_s, left)

    def do(self, changes: int, sids: Collection[str] | None = None) -> None:
        """Ask for changes, and wait until they are done, while links and nodes stay as they are."""
        self.wait(sids)
        self.ledger.calm_workers = frozenset(worker.name for worker in self.workers_at(sids))
        self.ask(changes, sids)
        self.wait(sids)
        self.ledger.calm_workers = frozenset()

    def check(self) -> None:
        """Check that all nodes show what was acknowledged; they run and are linked, and workers have nothing to do."""
        self.cluster.wait_together()
        self.cluster.wait_until_equal()
        self.ledger.check({sid: self._shown(editor) for sid, editor in self.editors.items()})

    def _shown(self, editor: Editor) -> list[Seen]:
        client = log_in(editor.node, self.user)
        try:
            return editor.cache.select(client, "BODY.PEEK[]")
        finally:
            client.logout()
