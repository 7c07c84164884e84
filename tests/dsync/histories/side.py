"""One user's mail at one server, over IMAP: what users do there, and what it has shown."""

from __future__ import annotations

import imaplib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replicator.mail.dovecot_guids import guid_of

TOKEN = re.compile(rb"^Message-ID: <([^@>]+)@", re.MULTILINE)
UID = re.compile(rb"\bUID (\d+)")
FLAGS = re.compile(rb"FLAGS \(([^)]*)\)")
ID = re.compile(rb"(?:X-GUID |EMAILID \(M)([^ )]+)")
LISTED = re.compile(rb'\(([^)]*)\) "/" "?([^"]*)"?$')


class Mail(NamedTuple):
    """A mail as a server shows it. `guid`: that of dsync, by X-GUID at Dovecot, or EMAILID at a node."""

    uid: int
    guid: str
    flags: frozenset[str]
    token: str
    text: bytes

    def __str__(self) -> str:
        return f"{self.uid}={self.token.rpartition('.')[2]}/{self.guid[-4:]} {' '.join(sorted(self.flags))}".strip()


@dataclass(frozen=True)
class Folder:
    """A folder as a server shows it."""

    mailbox_id: str
    uidvalidity: int
    uidnext: int
    mails: tuple[Mail, ...]

    def __str__(self) -> str:
        return f"{self.mailbox_id[-4:]} {self.uidvalidity} [{', '.join(map(str, self.mails))}] {self.uidnext}"


@dataclass(frozen=True)
class Account:
    """All that a server shows of a user."""

    folders: Mapping[str, Folder]
    subscriptions: frozenset[str]

    @property
    def tokens(self) -> set[str]:
        """Names of the mails."""
        return {mail.token for folder in self.folders.values() for mail in folder.mails}

    def __str__(self) -> str:
        return "; ".join(f"{name} {folder}" for name, folder in self.folders.items())


class RefusedError(Exception):
    """The server has not done what a user asked for."""


ENDS = (RefusedError, imaplib.IMAP4.abort)
"""Errors by which a server refuses something, or ends the session."""


@dataclass
class Side:
    """A user at a server, and a check of all that it shows: a UID means one mail, and new ones are above UIDNEXT.

    `namesakes`: ids of the folders that nodes have had under a name and a UIDVALIDITY; on two sides of a cut, two may
    have the same. Where Dovecot deletes one of these and gets the other one, UIDs name other mail (docs/dovecot.md).
    """

    name: str
    connect: Callable[[], imaplib.IMAP4]
    is_dovecot: bool
    namesakes: Mapping[tuple[str, int], Collection[str]] = field(default_factory=dict)
    _ids: dict[tuple[str, int], str] = field(default_factory=dict)  # by folder and UIDVALIDITY
    _names: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)  # folder, UIDVALIDITY, UID
    _uidnext: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = self.connect()

    def renew(self) -> None:
        """Log in again after the server has ended the session, as the selected folder was deleted elsewhere."""
        self.client.shutdown()
        self.client = self.connect()

    def log_out(self) -> None:
        """End the session."""
        self.client.logout()

    # ---- what it shows

    def account(self, retries: int = 10) -> Account:
        """Return what the server shows, once that fits what it has shown before."""
        try:
            return self._account()
        except ENDS:  # changes of other nodes are coming in
            if retries == 0:
                raise
            self.renew()
            return self.account(retries - 1)

    def _account(self) -> Account:
        listed = [self._listed(line) for line in self._do(self.client.list())]
        names = [name for name, flags in listed if not flags & {rb"\noselect", rb"\nonexistent"}]
        lines = self._do(self.client.lsub())
        subscribed = [name for name, flags in map(self._listed, filter(None, lines)) if rb"\noselect" not in flags]
        return Account({name: self.folder(name) for name in sorted(names)}, frozenset(subscribed))

    def folder(self, name: str) -> Folder:
        """Return a folder. Raises RefusedError if there is none."""
        self._do(self.client.select(quoted(name), readonly=True))
        uidvalidity, uidnext = (int(self._number(item)) for item in ("UIDVALIDITY", "UIDNEXT"))
        item = "X-GUID" if self.is_dovecot else "EMAILID"
        parts = self._do(self.client.uid("FETCH", "1:*", f"(UID FLAGS {item} BODY.PEEK[])"))
        mails = tuple(sorted(self._mail(parts, at) for at, part in enumerate(parts) if isinstance(part, tuple)))
        mailbox_id = self._mailbox_id(name)
        folder = Folder(mailbox_id, uidvalidity, uidnext, mails)
        self._check(name, folder)
        return folder

    def _mailbox_id(self, name: str) -> str:
        self._do(self.client.unselect())
        item = "X-GUID" if self.is_dovecot else "MAILBOXID"
        [line] = self._do(self.client.status(quoted(name), f"({item})"))
        assert isinstance(line, bytes)
        return line.rpartition(item.encode() + b" ")[2].strip(b"()").decode().removeprefix("F")

    def _check(self, name: str, folder: Folder) -> None:
        uidvalidity, uidnext = folder.uidvalidity, folder.uidnext
        self._forget_namesake(name, folder)
        where, floor = f"{self.name}: {name} {uidvalidity}", self._uidnext.get((name, uidvalidity), 0)
        assert uidnext >= floor, f"{where}: UIDNEXT {uidnext} after {floor}"
        for mail in folder.mails:
            one = name, uidvalidity, mail.uid
            assert one in self._names or mail.uid >= floor, f"{where}: {mail} is new, below the announced {floor}"
            assert mail.uid < uidnext, f"{where}: {mail} is not below UIDNEXT {uidnext}"
            known = self._names.setdefault(one, (mail.guid, mail.token))
            assert known == (mail.guid, mail.token), f"{where}: {mail} was {known}"
        self._uidnext[name, uidvalidity] = uidnext

    def _forget_namesake(self, name: str, folder: Folder) -> None:
        """Forget the UIDs of another folder if this one is of the other side of a cut."""
        number = name, folder.uidvalidity
        ids = self.namesakes.get(number, ())
        if self._ids.get(number) not in {None, folder.mailbox_id} and folder.mailbox_id in ids and len(ids) > 1:
            self._uidnext.pop(number, None)
            self._names = {one: mail for one, mail in self._names.items() if one[:2] != number}
        self._ids[number] = folder.mailbox_id

    def _mail(self, parts: Sequence[object], at: int) -> Mail:
        part, after = parts[at], parts[at + 1]
        assert isinstance(part, tuple)
        told = part[0] + (after if isinstance(after, bytes) else b"")
        uid, guid, flags, token = UID.search(told), ID.search(told), FLAGS.search(told), TOKEN.search(part[1])
        assert uid is not None, part
        assert guid is not None, part
        assert flags is not None, part
        assert token is not None, part
        shown = frozenset(flags[1].decode().split()) - {"\\Recent"}
        return Mail(int(uid[1]), guid_of(guid[1].decode()).hex(), shown, token[1].decode(), part[1])

    def _listed(self, line: object) -> tuple[str, set[bytes]]:
        assert isinstance(line, bytes)
        found = LISTED.search(line)
        assert found, line
        return found[2].decode(), {*found[1].lower().split()}

    def _number(self, item: str) -> bytes:
        value = self.client.response(item)[1][-1]
        assert isinstance(value, bytes), f"{self.name} does not tell {item}"
        return value

    # ---- what users do

    def append(self, folder: str, text: bytes) -> None:
        self._do(self.client.append(quoted(folder), "", "", text))

    def flag(self, folder: str, uid: int, flag: str, *, is_set: bool) -> None:
        self._do(self.client.select(quoted(folder)))
        self._do(self.client.uid("STORE", str(uid), "+FLAGS" if is_set else "-FLAGS", f"({flag})"))
        self._do(self.client.unselect())

    def expunge(self, folder: str, uid: int) -> None:
        self._do(self.client.select(quoted(folder)))
        self._do(self.client.uid("STORE", str(uid), "+FLAGS", "(\\Deleted)"))
        self._do(self.client.uid("EXPUNGE", str(uid)))
        self._do(self.client.unselect())

    def copy(self, folder: str, uid: int, target: str, *, moves: bool) -> None:
        self._do(self.client.select(quoted(folder)))
        self._do(self.client.uid("MOVE" if moves else "COPY", str(uid), quoted(target)))
        self._do(self.client.unselect())

    def create(self, folder: str) -> None:
        self._do(self.client.create(quoted(folder)))

    def delete(self, folder: str) -> None:
        self._do(self.client.delete(quoted(folder)))

    def rename(self, folder: str, target: str) -> None:
        self._do(self.client.rename(quoted(folder), quoted(target)))

    def subscribe(self, folder: str, *, is_set: bool) -> None:
        self._do((self.client.subscribe if is_set else self.client.unsubscribe)(quoted(folder)))

    def _do(self, answer: tuple[str, Sequence[object]]) -> list[object]:
        kind, data = answer
        if kind != "OK":
            raise RefusedError(f"{kind} {data!r}")
        return [*data]


def quoted(name: str) -> str:
    return f'"{name}"'
