"""Memory of what earlier imports took of a source: a file for each user and source, in a directory of the operator's.

An import without it is slower, since it reads each message to see whether it is here already, and brings again what was
moved or expunged here. Nothing is taken from the source's word alone: the memory of a folder counts only for the folder
that it was made of, which `mailbox_id` names, and for the UIDVALIDITY of the source.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO, cast

from protocol.values import UidSet
from replicator.mail.lookup import parse_uids

WRITTEN_AFTER_S = 10.0
"""Seconds between two writes: what comes in between is done again after a crash, if it is not found here already."""
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700  # names of folders are for nobody else

Flags = frozenset[str]


class BusyError(Exception):
    """A memory that another import has."""


@dataclass(slots=True)
class FolderMemory:
    """Record of what was taken of a folder.

    `uidvalidity`: the source's; `uidvalidity_here`: the one under which the keys of `flags` are UIDs here. `taken`:
    UIDs at the source of all mail that is here, or was. `flags`: of the mail that has the same UID here, what both
    sides had. `unnumbered`: UID here and flags of mail that had no UID at the source, by its key. `expunged`: UIDs of
    mail that an import has expunged here. `moved`: mails that have another UID here. `gone`: mails of `flags` that the
    source had no more. `version`: the source's, if nothing was left out then.
    """

    mailbox_id: str
    uidvalidity: int | None
    uidvalidity_here: int
    highestmodseq: int | None = None
    version: str | None = None
    moved: int = 0
    gone: int = 0
    taken: set[int] = field(default_factory=set)
    expunged: set[int] = field(default_factory=set)
    flags: dict[int, Flags] = field(default_factory=dict)
    unnumbered: dict[str, tuple[int, Flags]] = field(default_factory=dict)

    @property
    def has_mail(self) -> bool:
        """True if mail may have been taken; without UIDs only that there was an import is known."""
        return bool(self.taken) or self.uidvalidity is None

    def document(self) -> dict[str, object]:
        """Return this as JSON."""
        by_flags: dict[Flags, list[int]] = {}
        for uid, flags in self.flags.items():
            by_flags.setdefault(flags, []).append(uid)
        return {
            "mailbox_id": self.mailbox_id,
            "uidvalidity": self.uidvalidity,
            "uidvalidity_here": self.uidvalidity_here,
            "highestmodseq": self.highestmodseq,
            "version": self.version,
            "moved": self.moved,
            "gone": self.gone,
            "taken": str(UidSet.of(self.taken)),
            "expunged": str(UidSet.of(self.expunged)),
            "flags": [[sorted(flags), str(UidSet.of(uids))] for flags, uids in by_flags.items()],
            "unnumbered": {key: [uid, sorted(flags)] for key, (uid, flags) in self.unnumbered.items()},
        }


class ImportMemory:
    """The memory of one user's source, which several threads use, and which one import at a time has.

    `subscriptions`: those that were taken. `inbox_id`: of the user's INBOX at the time of the first import. `notes`
    tell of a memory that was lost.
    """

    def __init__(self, file: Path, about: Mapping[str, str]) -> None:
        self.subscriptions: frozenset[str] = frozenset()
        self.inbox_id: str | None = None
        self.notes: list[str] = []
        self._file = file
        self._about = about
        self._folders: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._written_s = time.monotonic()
        self._is_written = True
        self._lock_file = _locked(file.with_suffix(".lock"))
        try:
            if file.is_file():
                self._read()
        except OSError:
            self._lock_file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock_file.close()

    def folder(self, name: str) -> FolderMemory | None:
        """Return what is known of a folder."""
        with self._lock:
            document = self._folders.get(name)
        return None if document is None else _folder(document)

    def keep(self, name: str, folder: FolderMemory) -> None:
        """Remember a folder. Raises OSError."""
        document = folder.document()
        with self._lock:
            self._folders[name] = document
            self._is_written = False
            self._write_at_times()

    def keep_at_times(self, name: str, folder: FolderMemory) -> None:
        """Remember a folder that goes on growing, unless the file was written lately. Raises OSError."""
        if time.monotonic() - self._written_s > WRITTEN_AFTER_S:
            self.keep(name, folder)

    def keep_subscriptions(self, names: Iterable[str]) -> None:
        """Remember subscriptions. Raises OSError."""
        with self._lock:
            self.subscriptions |= {*names}
            self._is_written = False
            self._write_at_times()

    def begin(self, inbox_id: str, here: Collection[str]) -> bool:
        """Begin an import of a user who has these folders, by ids; return False if the memory was of another cluster's.

        That has no folder which once was INBOX. Nothing of it counts here.
        """
        with self._lock:
            is_same = self.inbox_id is None or self.inbox_id in here
            if not is_same:
                self._folders, self.subscriptions, self.inbox_id = {}, frozenset(), None
            if self.inbox_id is None:
                self.inbox_id, self._is_written = inbox_id, False
        return is_same

    def close(self) -> None:
        """Write the file, if there is something new. Raises OSError."""
        with self._lock:
            if not self._is_written:
                self._write()

    def _read(self) -> None:
        """Read what was remembered; a file that makes no sense is put aside. Raises OSError."""
        try:
            document = cast("dict[str, Any]", json.loads(self._file.read_bytes()))
            folders, subscriptions = document["folders"], frozenset(map(str, document["subscriptions"]))
            for one in folders.values():
                _folder(one)
            inbox_id = str(document["inbox_id"])
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            broken = self._file.replace(self._file.with_suffix(".broken"))
            self.notes.append(
                f"{broken}: makes no sense, so all mail is compared anew; what was moved or expunged here comes again"
            )
            return
        self._folders, self.subscriptions, self.inbox_id = folders, subscriptions, inbox_id

    def _write_at_times(self) -> None:
        if time.monotonic() - self._written_s > WRITTEN_AFTER_S:
            self._write()

    def _write(self) -> None:
        document = {
            **self._about,
            "inbox_id": self.inbox_id,
            "subscriptions": sorted(self.subscriptions),
            "folders": self._folders,
        }
        unfinished = self._file.with_suffix(".new")
        with os.fdopen(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "w", encoding="utf-8"
        ) as out:
            json.dump(document, out)
        unfinished.replace(self._file)
        self._written_s, self._is_written = time.monotonic(), True


def memory_of(directory: Path, user: str, source: str) -> ImportMemory:
    """Return the memory of a user's source. Raises OSError, BusyError if another import of the source is running."""
    about = {"user": user, "source": source}
    directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
    name = hashlib.sha256(f"{user}\n{source}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return ImportMemory(directory / f"{name}.json", about)


def _locked(file: Path) -> TextIO:
    """Lock a file, until it is closed. Raises OSError, BusyError."""
    stream = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE), "w")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.close()
        if isinstance(error, BlockingIOError):
            raise BusyError("another import of this source is running") from None
        raise
    return stream


def _folder(document: dict[str, Any]) -> FolderMemory:
    flags = {uid: frozenset(map(str, names)) for names, uids in document["flags"] for uid in _uids(uids)}
    unnumbered = document["unnumbered"].items()
    return FolderMemory(
        mailbox_id=str(document["mailbox_id"]),
        uidvalidity=document["uidvalidity"],
        uidvalidity_here=int(document["uidvalidity_here"]),
        highestmodseq=document["highestmodseq"],
        version=document["version"],
        moved=int(document["moved"]),
        gone=int(document["gone"]),
        taken={*_uids(document["taken"])},
        expunged={*_uids(document["expunged"])},
        flags=flags,
        unnumbered={key: (int(uid), frozenset(map(str, names))) for key, (uid, names) in unnumbered},
    )


def _uids(text: str) -> UidSet:
    return parse_uids(text) if text else UidSet()
