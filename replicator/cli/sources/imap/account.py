"""An account at an IMAP server as a source of mail: its folders, and what clients cache of them.

Folders come from LIST, special uses among their attributes (RFC 6154), subscriptions from LSUB, and numbers from
STATUS, HIGHESTMODSEQ with CONDSTORE (RFC 7162). Of the user's own namespace (RFC 2342), the prefix is left out, such as
`INBOX.`; folders of others, and shared ones, are not the user's mail.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from protocol.values import UID_MAX
from replicator.cli.sources.imap.connection import ImapConnection, quoted
from replicator.cli.sources.imap.folder import MESSAGES_MAX, ImapFolder
from replicator.cli.sources.imap.urls import ImapUrl
from replicator.cli.sources.imap.values import SenselessAnswerError, Value, number, pairs, text, told_number, words
from replicator.cli.sources.message import FolderReader, SourceError, SourceFolder
from replicator.cli.sources.names import below, folder_name
from replicator.mail.annotations import SPECIAL_USES
from replicator.mail.mailstore import INBOX

CONNECTIONS: Final = 4
"""Connections to a server for one user, who may be connected by mail programs, too: Dovecot takes 10 of an address."""
FOLDERS_MAX: Final = 10_000
"""Folders of an account, for each of which the server is asked."""
MODSEQ_MAX: Final = 2**63 - 1
_NO_FOLDER: Final = frozenset({"\\noselect", "\\nonexistent"})


@dataclass(slots=True)
class ImapAccount:
    """A source; see `MailSource`. `at` of a folder is what the server calls it, in octets decoded as Latin-1."""

    folders: Sequence[SourceFolder]
    subscriptions: Sequence[str] | None
    notes: Sequence[str]
    unreadable: Mapping[str, str]
    _url: ImapUrl
    _login: tuple[str, str] = field(repr=False)
    _idle: list[ImapConnection] = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    readers_max: int = CONNECTIONS

    @contextmanager
    def open(self, folder: SourceFolder) -> Iterator[FolderReader]:
        """See `MailSource`. A connection that is free is used again, unless the server has closed it meanwhile."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        reader = ImapFolder(idle or self._connect(), folder, self._connect)
        try:
            try:
                reader.open()
            except SourceError:
                if idle is None or not idle.is_broken:
                    raise
                reader.open_again()
            yield reader
        finally:
            self._give_back(reader.connection)

    def _connect(self) -> ImapConnection:
        return ImapConnection(self._url, *self._login)

    def _give_back(self, connection: ImapConnection) -> None:
        if connection.is_broken:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)

    def close(self) -> None:
        """See `MailSource`."""
        while self._idle:
            self._idle.pop().close()


def read_account(url: ImapUrl, login: str, password: str, folder: str) -> ImapAccount:
    """Return the account's mail, INBOX's for `folder`. Raises SourceError."""
    connection = ImapConnection(url, login, password)
    try:
        looked = _Looked(connection, folder)
        folders = list(looked.folders())
        subscriptions = looked.subscriptions()
    except SenselessAnswerError as error:
        connection.close()
        raise SourceError(f"{url}: an answer makes no sense: {error}") from error
    except SourceError:
        connection.close()
        raise
    return ImapAccount(folders, subscriptions, looked.notes, looked.unreadable, url, (login, password), [connection])


@dataclass(frozen=True, slots=True)
class _Listed:
    """A name that the server lists. `levels` is empty for one of another namespace."""

    name: bytes
    levels: tuple[bytes, ...]
    attributes: frozenset[str]


class _Looked:
    """A look at an account. `notes`: what was left out, or has another name; `unreadable`: what the server refuses."""

    def __init__(self, connection: ImapConnection, folder: str) -> None:
        self.notes = list[str]()
        self.unreadable = dict[str, str]()
        self._connection = connection
        self._folder = folder
        self._prefix, self._foreign = self._namespaces()

    def folders(self) -> Iterator[SourceFolder]:
        """Yield the folders that have mail or can have it. Raises SourceError, SenselessAnswerError."""
        with_uses = self._connection.has("LIST-EXTENDED", "SPECIAL-USE")
        found = self._listed("LIST", *(["RETURN (SPECIAL-USE)"] if with_uses else []))
        taken, times = dict[str, bytes](), Counter[str]()
        for one in found:
            if one.attributes & _NO_FOLDER:
                continue
            name = wanted = self._name(one)
            while name in taken:
                times[wanted] += 1
                name = f"{wanted}_{times[wanted]}"
            if name != wanted:
                self.notes.append(
                    f"{_shown(one.name)}: the folder is {name!r} here; {_shown(taken[wanted])} is {wanted!r}"
                )
            taken[name] = one.name
            try:
                yield self._status(one, name)
            except SourceError as error:
                if self._connection.is_broken:
                    raise
                self.unreadable[name] = str(error)

    def subscriptions(self) -> Sequence[str]:
        """Return the names that the user has subscribed to. Raises SourceError, SenselessAnswerError."""
        return sorted({self._name(one) for one in self._listed("LSUB") if "\\noselect" not in one.attributes})

    def _name(self, listed: _Listed) -> str:
        return below(self._folder, folder_name(listed.levels))

    def _listed(self, command: str, *options: str) -> list[_Listed]:
        told = self._connection.ask(command, command, '""', '"*"', *options)
        if len(told) > FOLDERS_MAX:
            raise self._connection.wrong(f"{len(told)} folders; more than {FOLDERS_MAX} are not imported")
        found = [self._one(values) for values in told]
        own = {one.name: one for one in found if one.levels}  # a server may repeat itself
        return sorted(own.values(), key=lambda one: one.levels)

    def _one(self, values: list[Value]) -> _Listed:
        if len(values) < 3:
            raise SenselessAnswerError(repr(values)[:100])
        attributes, separator, name = frozenset(word.lower() for word in words(values[0])), values[1], text(values[2])
        if any(octet < 0x20 for octet in name):
            self.unreadable[_shown(name)] = "the name has control characters; rename the folder there"
            return _Listed(name, (), attributes)
        if any(name.startswith(prefix) for prefix in self._foreign):
            note = f"{_shown(name)}: left out, because it is shared, or another user's"
            self.notes += [] if note in self.notes or "\\noselect" in attributes else [note]
            return _Listed(name, (), attributes)
        own = name.removeprefix(self._prefix) if name != self._prefix else name
        return _Listed(name, tuple(own.split(text(separator))) if separator else (own,), attributes)

    def _status(self, listed: _Listed, name: str) -> SourceFolder:
        items = "(MESSAGES UIDNEXT UIDVALIDITY" + (" HIGHESTMODSEQ)" if self._connection.has("CONDSTORE") else ")")
        answers = self._connection.ask("STATUS", "STATUS", quoted(listed.name), items)
        if not answers or len(answers[-1]) != 2:
            raise self._connection.wrong(f"no answer to STATUS of {_shown(listed.name)}")
        told = pairs(answers[-1][1])
        uidvalidity, uidnext = told_number(told, b"UIDVALIDITY", UID_MAX), told_number(told, b"UIDNEXT", UID_MAX)
        modseq = number(told[b"HIGHESTMODSEQ"], MODSEQ_MAX) if b"HIGHESTMODSEQ" in told else 0
        messages = told_number(told, b"MESSAGES", MESSAGES_MAX)
        uses = [use for use in SPECIAL_USES if use.lower() in listed.attributes and name != INBOX]
        return SourceFolder(
            name,
            listed.name.decode("latin-1"),
            messages,
            uidvalidity or None,
            uidnext or None,
            modseq or None,
            " ".join(uses) or None,
            f"{uidvalidity} {uidnext} {messages} {modseq}" if modseq else None,
        )

    def _namespaces(self) -> tuple[bytes, Sequence[bytes]]:
        """Return the prefix of the user's own folders, and those of others'."""
        if not self._connection.has("NAMESPACE"):
            return b"", ()
        told = self._connection.ask("NAMESPACE", "NAMESPACE")
        own, others, shared = (*(told[-1] if told else []), None, None, None)[:3]
        return next(iter(_prefixes(own)), b""), [one for one in _prefixes(others) + _prefixes(shared) if one]


def _prefixes(namespaces: Value) -> list[bytes]:
    if namespaces is None:
        return []
    if not isinstance(namespaces, list):
        raise SenselessAnswerError(repr(namespaces)[:100])
    return [text(one[0]) for one in namespaces if isinstance(one, list) and one]


def _shown(name: bytes) -> str:
    return "".join(character if character.isprintable() else "?" for character in name.decode("utf-8", "replace"))
