"""An MTA and mail clients that go on while their users move between servers, and what must be true of the mail then."""

from __future__ import annotations

import imaplib
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.clients.wire import Address, connect_lmtp, deliver
from benchmarks.clusters.cluster import PASSWORD
from benchmarks.clusters.proxy import HOST
from tests.dovecot_accounts import client, listed, quoted
from tests.end_to_end.helpers.ledger import PATIENCE_S, Seen, fetch, number_of
from tests.end_to_end.helpers.load import LostError

MBSYNC = shutil.which("mbsync")
PAUSE_S = 0.02  # between deliveries, between changes, and until a client that was refused tries again
_TOKEN = re.compile(rb"^Message-ID: <([^@>]+)@", re.MULTILINE)


@dataclass(frozen=True)
class Folder:
    numbers: tuple[int, int]
    """UIDVALIDITY and UIDNEXT."""
    mails: tuple[Seen, ...]


def look(imap: imaplib.IMAP4, name: str) -> Folder:
    """Return what a client sees of a folder, which it selects."""
    assert imap.select(quoted(name))[0] == "OK", name
    mails = tuple(Seen(mail.uid, mail.token, mail.flags - {"\\Recent"}, b"") for mail in fetch(imap))
    return Folder((number_of(imap, "UIDVALIDITY"), number_of(imap, "UIDNEXT")), mails)


def everything(address: Address, user: str) -> dict[str, Folder]:
    """Return all folders of a user."""
    imap = client(address, user)
    try:
        return {name: look(imap, name) for name in listed(imap)}
    finally:
        imap.logout()


@dataclass
class Expected:
    """What servers have said OK to, and under which UIDs clients have seen it. Shared by threads."""

    present: dict[str, set[str]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Mails whose coming or going was asked for, but not answered."""
    uids: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    """UIDVALIDITY and UID by user, folder and mail."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def came(self, user: str, token: str) -> None:
        with self.lock:
            self.present.setdefault(user, set()).add(token)

    def went(self, user: str, token: str) -> None:
        with self.lock:
            self.present[user].remove(token)

    def note(self, user: str, name: str, folder: Folder) -> None:
        """Compare UIDs with those that clients have seen before."""
        with self.lock:
            for mail in folder.mails:
                now = (folder.numbers[0], mail.uid)
                before = self.uids.setdefault((user, name, mail.token), now)
                assert before == now, f"{mail.token} of {user} in {name} was {before}, is {now}"

    def check(self, user: str, folders: Mapping[str, Folder]) -> None:
        """Check that a user has each mail once, and none besides, under the UID of before."""
        for name, folder in folders.items():
            self.note(user, name, folder)
        tokens = [mail.token for folder in folders.values() for mail in folder.mails]
        assert len(tokens) == len({*tokens}), f"{user} has mail twice: {sorted(tokens)}"
        wrong = ({*tokens} ^ self.present.get(user, set())) - self.unsure
        assert not wrong, f"of {user} lost or too many: {wrong}"


class Worker(threading.Thread):
    """A thread that goes on until the `with` block is left."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.done = 0
        self.failure: BaseException | None = None
        self._ended = threading.Event()
        self._random = random.Random(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()
        if error is None:
            self.check()

    def run(self) -> None:
        try:
            while not self._ended.wait(PAUSE_S):
                self._step()
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failure = error

    def check(self) -> None:
        """Raise what has ended the thread."""
        if self.failure is not None:
            raise self.failure

    def _step(self) -> None:
        raise NotImplementedError


class Mta(Worker):
    """An MTA, whose mail waits while it is held."""

    def __init__(self, users: Sequence[str], lmtp: Address, expected: Expected) -> None:
        super().__init__("MTA")
        self._users, self._expected = users, expected
        self._lmtp: Address | None = lmtp
        self._lock = threading.Lock()
        self._sent = 0

    def hold(self) -> None:
        """Return when no delivery is on its way any more."""
        with self._lock:
            self._lmtp = None

    def open_at(self, lmtp: Address) -> None:
        with self._lock:
            self._lmtp = lmtp

    def deliver_to_all(self, times: int) -> None:
        assert self._lmtp is not None
        for _ in range(times):
            self._deliver(self._users, self._lmtp)

    def deliver_late(self, users: Sequence[str], lmtp: Address) -> None:
        """Deliver what was on its way when the MTA was held."""
        self._deliver(users, lmtp)

    def _step(self) -> None:
        with self._lock:
            if self._lmtp is not None:
                self._deliver([self._random.choice(self._users)], self._lmtp)
                self.done += 1

    def _deliver(self, users: Sequence[str], lmtp: Address) -> None:
        self._sent += 1
        token = f"mta{self._sent}"
        with connect_lmtp(lmtp) as connection:
            deliver(connection, users, message(token))
        for user in users:
            self._expected.came(user, token)


def message(token: str) -> bytes:
    return f"Message-ID: <{token}@example.org>\r\nSubject: {token}\r\n\r\ntext of {token}\r\n".encode()


class Clients(Worker):
    """Mail clients behind a proxy: each looks at its user's folders, and does one change.

    They expunge and move only the oldest mail: mail that a pair of Dovecots has not agreed on yet comes back, since one
    takes it for new that the other has lost.
    """

    def __init__(self, users: Sequence[str], port: int, expected: Expected, mbsyncs: Sequence[Mbsync]) -> None:
        super().__init__("clients")
        self.mbsyncs = mbsyncs
        self.folder = "Work"
        self._users, self._address, self._expected = users, Address(HOST, port), expected
        self._appended = 0

    def _step(self) -> None:
        user = self._random.choice(self._users)
        try:
            imap = imaplib.IMAP4(*self._address, timeout=PATIENCE_S)
            try:
                imap.login(user, PASSWORD)
                self._change(imap, user)
            finally:
                imap.shutdown()
        except LostError:  # the proxy is held
            return
        self.done += 1

    def _change(self, imap: imaplib.IMAP4, user: str) -> None:
        folders = {name: look(imap, name) for name in listed(imap)}
        for name, folder in folders.items():
            self._expected.note(user, name, folder)
        inbox = look(imap, "INBOX").mails
        kind = self._random.choice(["append", "flag", "flag", "expunge", "move", "subscribe"])
        if kind == "append":
            self._append(imap, user)
        elif kind == "subscribe":
            _ok(imap.subscribe(self._random.choice([*folders])))
        elif inbox:
            mail = self._random.choice(inbox)
            if kind == "flag":
                sign = self._random.choice("+-")
                _ok(
                    imap.uid("STORE", str(mail.uid), f"{sign}FLAGS", self._random.choice(["\\Flagged", "\\Seen", "kw"]))
                )
            elif kind == "move":
                self._move(imap, inbox[0], folders)
            else:
                self._expunge(imap, user, inbox[0])

    def _append(self, imap: imaplib.IMAP4, user: str) -> None:
        self._appended += 1
        token = f"client{self._appended}"
        self._expected.unsure.add(token)
        _ok(imap.append("INBOX", "(\\Seen)", None, message(token)))
        self._expected.came(user, token)
        self._expected.unsure.remove(token)

    def _move(self, imap: imaplib.IMAP4, mail: Seen, folders: Collection[str]) -> None:
        if self.folder not in folders:
            _ok(imap.create(self.folder))
        _ok(imap.uid("MOVE", str(mail.uid), self.folder))

    def _expunge(self, imap: imaplib.IMAP4, user: str, mail: Seen) -> None:
        self._expected.unsure.add(mail.token)
        _ok(imap.uid("STORE", str(mail.uid), "+FLAGS", "\\Deleted"))
        _ok(imap.uid("EXPUNGE", str(mail.uid)))
        self._expected.went(user, mail.token)
        self._expected.unsure.remove(mail.token)


def _ok(answer: tuple[str, object]) -> None:
    assert answer[0] == "OK", answer


class Mbsync:
    """A user's mbsync with its Maildir and its state, which fetches everything from behind a proxy."""

    def __init__(self, directory: Path, user: str, port: int) -> None:
        self._directory = directory
        self._fetched: dict[tuple[str, str], str] = {}
        """File by folder and mail."""
        (directory / "mail").mkdir(parents=True)
        (directory / "mbsyncrc").write_text(_MBSYNCRC.format(directory=directory, user=user, host=HOST, port=port))

    def run(self) -> None:
        """Sync, and check that nothing was fetched that is known already."""
        assert MBSYNC is not None
        done = subprocess.run(
            [MBSYNC, "-c", str(self._directory / "mbsyncrc"), "all"], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        for path in self._directory.glob("mail/*/[cn]*/*"):
            token = _TOKEN.search(path.read_bytes())
            assert token is not None, path
            folder, name = path.parent.parent.name, path.name.partition(":")[0]
            known = self._fetched.setdefault((folder, token[1].decode()), name)
            assert known == name, f"mbsync has fetched {token[1].decode()} twice: {known}, {name}"


_MBSYNCRC = """
IMAPAccount server
Host {host}
Port {port}
User {user}
Pass {password}
SSLType None
AuthMechs LOGIN

IMAPStore far
Account server

MaildirStore near
Path {directory}/mail/
Inbox {directory}/mail/INBOX
SubFolders Verbatim

Channel all
Far :far:
Near :near:
Patterns *
Create Both
Expunge Both
SyncState *
""".replace("{password}", PASSWORD)
