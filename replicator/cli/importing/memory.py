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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from protocol.values import UidSet
from replicator.mail.lookup import parse_uids

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

    def __init__(self, file: Path | None, about: Mapping[str, str]) -> None:
        self.subscriptions: frozenset[str] = frozenset()
        self._file = file
        self._about = about
        self._folders: dict[str, FolderMemory] = {}
        self._lock = threading.Lock()
        if file is not None and file.is_file():
            self._read(file)

    def folder(self, name: str) -> FolderMemory | None:
        """Return what is known of a folder."""
        return self._folders.get(name)

    def keep(self, name: str, folder: FolderMemory) -> None:
        """Remember a folder; the file is written. Raises OSError."""
        with self._lock:
            self._folders[name] = folder
            self._write()

    def keep_subscriptions(self, names: Iterable[str]) -> None:
        """Remember subscriptions; the file is written. Raises OSError."""
        with self._lock:
            self.subscriptions |= {*names}
            self._write()

    def _read(self, file: Path) -> None:
        """Read what was remembered; a file that makes no sense is as none, since it only saves time."""
        try:
            document = cast("dict[str, Any]", json.loads(file.read_bytes()))
            self._folders = {name: _folder(one) for name, one in document["folders"].items()}
            self.subscriptions = frozenset(map(str, document["subscriptions"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            self._folders, self.subscriptions = {}, frozenset()

    def _write(self) -> None:
        if self._file is None:
            return
        folders = {name: folder.document() for name, folder in self._folders.items()}
        document = {**self._about, "subscriptions": sorted(self.subscriptions), "folders": folders}
        unfinished = self._file.with_suffix(".new")
        with os.fdopen(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "w", encoding="utf-8"
        ) as out:
            json.dump(document, out)
        unfinished.replace(self._file)


def memory_of(directory: Path | None, user: str, source: str) -> ImportMemory:
    """Return the memory of a user's source; without a directory, an empty one. Raises OSError."""
    about = {"user": user, "source": source}
    if directory is None:
        return ImportMemory(None, about)
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
