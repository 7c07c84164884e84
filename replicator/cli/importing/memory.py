"""What earlier imports have taken of a source: a file for each user and source, in a directory of the operator's.

An import without it is as complete, and slower: it reads each message to see whether it is here already. Nothing is
taken from the source's word alone: the memory of a folder counts only for the folder that it was made of, which
`mailbox_id` names, and for the UIDVALIDITY of the source.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from protocol.values import UidSet
from replicator.mail.lookup import parse_uids

WRITTEN_AFTER_S = 10.0
"""Seconds between two writes: what comes in between is done again after a crash, if it is not found here already."""
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700  # names of folders are for nobody else

Flags = frozenset[str]


@dataclass(slots=True)
class FolderMemory:
    """What was taken of a folder.

    `taken`: UIDs at the source of all mail that is here, or was. `flags`: of the mail that has the same UID here, what
    both sides had. `moved`: mails that have another UID here. `version`: the source's, if nothing was left out then.
    """

    mailbox_id: str
    uidvalidity: int | None
    highestmodseq: int | None = None
    version: str | None = None
    moved: int = 0
    taken: set[int] = field(default_factory=set)
    flags: dict[int, Flags] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Return this as JSON."""
        by_flags: dict[Flags, list[int]] = {}
        for uid, flags in self.flags.items():
            by_flags.setdefault(flags, []).append(uid)
        return {
            "mailbox_id": self.mailbox_id,
            "uidvalidity": self.uidvalidity,
            "highestmodseq": self.highestmodseq,
            "version": self.version,
            "moved": self.moved,
            "taken": str(UidSet.of(self.taken)),
            "flags": [[sorted(flags), str(UidSet.of(uids))] for flags, uids in by_flags.items()],
        }


class ImportMemory:
    """The memory of one user's source, which several threads use. `subscriptions`: those that were taken."""

    def __init__(self, file: Path, about: Mapping[str, str]) -> None:
        self.subscriptions: frozenset[str] = frozenset()
        self._file = file
        self._about = about
        self._folders: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._written_s = time.monotonic()
        self._is_written = True
        if file.is_file():
            self._read()

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

    def close(self) -> None:
        """Write the file, if there is something new. Raises OSError."""
        with self._lock:
            if not self._is_written:
                self._write()

    def _read(self) -> None:
        """Read what was remembered; a file that makes no sense is as none, since it only saves time."""
        try:
            document = cast("dict[str, Any]", json.loads(self._file.read_bytes()))
            folders, subscriptions = document["folders"], frozenset(map(str, document["subscriptions"]))
            for one in folders.values():
                _folder(one)
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        self._folders, self.subscriptions = folders, subscriptions

    def _write_at_times(self) -> None:
        if time.monotonic() - self._written_s > WRITTEN_AFTER_S:
            self._write()

    def _write(self) -> None:
        document = {**self._about, "subscriptions": sorted(self.subscriptions), "folders": self._folders}
        unfinished = self._file.with_suffix(".new")
        with os.fdopen(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "w", encoding="utf-8"
        ) as out:
            json.dump(document, out)
        unfinished.replace(self._file)
        self._written_s, self._is_written = time.monotonic(), True


def memory_of(directory: Path, user: str, source: str) -> ImportMemory:
    """Return the memory of a user's source. Raises OSError."""
    about = {"user": user, "source": source}
    directory.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
    name = hashlib.sha256(f"{user}\n{source}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return ImportMemory(directory / f"{name}.json", about)


def _folder(document: dict[str, Any]) -> FolderMemory:
    flags = {uid: frozenset(map(str, names)) for names, uids in document["flags"] for uid in _uids(uids)}
    return FolderMemory(
        mailbox_id=str(document["mailbox_id"]),
        uidvalidity=document["uidvalidity"],
        highestmodseq=document["highestmodseq"],
        version=document["version"],
        moved=int(document["moved"]),
        taken={*_uids(document["taken"])},
        flags=flags,
    )


def _uids(text: str) -> UidSet:
    return parse_uids(text) if text else UidSet()
