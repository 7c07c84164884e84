"""Maildir: one file per message in `cur/` and `new/`; its folders as `maildir_folders` finds them.

The letters after `:2,` in a file's name are flags: those of https://cr.yp.to/proto/maildir.html, and Dovecot's keywords
`a` to `z`, whose names are in the folder's `dovecot-keywords` (`P`, passed, is `$Forwarded`). The file's modification
time is the time of reception. `tmp/` holds unfinished deliveries and is ignored. UIDs are those of `dovecot-uidlist`;
a file that is not in it has none yet. Where there is such a list, Dovecot knows each mail by the GUID in it or, without
one, by the name of its file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from protocol.values import UID_MAX
from replicator.cli.sources.dovecot_files import (
    INDEX_LOG,
    KEYWORDS,
    SUBSCRIPTIONS,
    UIDLIST,
    BrokenFileError,
    UidList,
    base_name,
    highest_modseq,
    parse_keywords,
    parse_subscriptions,
    parse_uidlist,
)
from replicator.cli.sources.local import LocalFolder, LocalSource
from replicator.cli.sources.maildir_folders import PARTS, directories, separator
from replicator.cli.sources.message import ReadMessage, SourceFolder, SourceMessage, with_crlf
from replicator.cli.sources.names import below, folder_name
from replicator.cli.sources.own_files import OwnFiles
from replicator.mail.dovecot_guids import guid_of
from replicator.mail.mailstore import INBOX, MESSAGE_BYTES_MAX

FLAGS: Mapping[str, str] = {
    "D": "\\Draft",
    "F": "\\Flagged",
    "P": "$Forwarded",
    "R": "\\Answered",
    "S": "\\Seen",
    "T": "\\Deleted",
}

GZIP = b"\x1f\x8b"  # begins no message


def read_maildir(path: Path, folder: str) -> LocalSource:
    """Return the Maildir's own mail for `folder`, and that of its folders for folders of their names.

    Those are created below `folder`, unless it is INBOX. Raises OSError, SourceError.
    """
    read = dict[str, _Directory]()
    notes, unreadable = list[str](), dict[str, str]()
    files = OwnFiles(path)
    for directory in directories(path):
        name = below(folder, folder_name(directory.levels) if directory.levels else INBOX)
        if directory.is_link:
            unreadable[str(directory.path)] = "a link, which may lead to somebody else's mail; import it by itself"
            continue
        try:
            found = _Directory(directory.path, files)
        except OSError as error:
            unreadable[str(error.filename or directory.path)] = error.strerror or str(error)
            continue
        if name in read:
            notes.append(f"{directory.path}: {read[name].path} has the name {name!r} already; their mail goes together")
            read[name].join(found)
        else:
            read[name] = found
    try:
        subscribed = _subscribed(files, path)
    except OSError as error:
        unreadable[str(path / SUBSCRIPTIONS)] = error.strerror or str(error)
        subscribed = None
    return LocalSource(
        {name: LocalFolder(one.in_order(), one.read, has_uids=one.uids is not None) for name, one in read.items()},
        [one.folder(name) for name, one in read.items()],
        None if subscribed is None else [below(folder, folder_name(levels)) for levels in subscribed],
        [*notes, *(note for one in read.values() for note in one.notes)],
        unreadable=unreadable,
    )


def parse_flags(file_name: str, keywords: Mapping[str, str]) -> frozenset[str]:
    """Return the flags in a file's name; unknown letters are ignored."""
    _, _, letters = file_name.partition(":2,")
    known = {**keywords, **FLAGS}
    return frozenset(known[letter] for letter in letters if letter in known)


def _subscribed(files: OwnFiles, path: Path) -> Sequence[Sequence[bytes]] | None:
    content = files.read_if_there(path / SUBSCRIPTIONS)
    return None if content is None else parse_subscriptions(content, separator(path))


@dataclass(slots=True)
class _Directory:
    """The directory of a folder, as far as it has been read."""

    path: Path
    files: OwnFiles
    notes: list[str] = field(default_factory=list)
    messages: list[SourceMessage] = field(init=False)
    uids: UidList | None = field(init=False)
    modseq: int | None = field(init=False)
    _looks: dict[Path, dict[str, str]] = field(default_factory=dict)  # by directory: files by their names without flags

    def __post_init__(self) -> None:
        self.uids = self._uid_list()
        self.modseq = highest_modseq(self.files.read_if_there(self.path / INDEX_LOG) or b"")
        self.messages = list(self._listed())
        lost = len(self.uids.uids) - sum(one.uid is not None for one in self.messages) if self.uids else 0
        if lost:
            self.notes.append(f"{self.path}: {UIDLIST} still has UIDs of expunged mail ({lost}), as is usual")

    def join(self, other: _Directory) -> None:
        """Add the mail of another directory; both have the UIDs of this folder no more."""
        messages = [*self.messages, *other.messages]
        self.messages = [replace(one, uid=None, guid=None) for one in messages]
        self.uids = None
        self.notes += other.notes

    def folder(self, name: str) -> SourceFolder:
        """Return what there is to know of the folder."""
        return SourceFolder(
            name,
            str(self.path),
            len(self.messages),
            self.uids.uidvalidity if self.uids else None,
            self.uids.uidnext if self.uids else None,
            self.modseq if self.uids else None,
            version=self._version(),
        )

    def in_order(self) -> Sequence[SourceMessage]:
        """Return the messages by their UIDs, and those without after them, by date."""
        return sorted(
            self.messages,
            key=lambda one: (one.uid or UID_MAX, one.received_ms or 0, Path(one.name).name),
        )

    def read(self, message: SourceMessage) -> ReadMessage:
        """Return a message, even if a mail program has changed its flags meanwhile. Raises OSError."""
        try:
            text = self.files.read(message.name, MESSAGE_BYTES_MAX)
        except FileNotFoundError:
            text = self.files.read(self._name_now(message), MESSAGE_BYTES_MAX)
        if text.startswith(GZIP):
            return ReadMessage(message, error="compressed by a plugin of Dovecot's; import this mailbox by imap://")
        return ReadMessage(message, with_crlf(text))

    def _name_now(self, message: SourceMessage) -> str:
        """Return the path of a file that has another name by now. Raises OSError if it is gone.

        One look serves for all files that are gone, however many.
        """
        folder, base = Path(message.name).parents[1], base_name(Path(message.name).name)
        look = self._looks.get(folder)
        if look is None or (base in look and not Path(look[base]).exists()):
            look = self._looks[folder] = {base_name(entry.name): entry.path for entry in os.scandir(folder / "cur")}
        if base not in look:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), message.name)
        return look[base]

    def _uid_list(self) -> UidList | None:
        content = self.files.read_if_there(self.path / UIDLIST)
        if content is None:
            return None
        try:
            return parse_uidlist(content)
        except BrokenFileError as error:
            self.notes.append(f"{self.path / UIDLIST}: {error}; the folder's mail gets new UIDs")
            return None

    def _listed(self) -> Iterator[SourceMessage]:
        """Yield the messages. A file that is renamed meanwhile may be missed, so what is missing is sought twice."""
        keywords = parse_keywords(self.files.read_if_there(self.path / KEYWORDS) or b"")
        uids = dict(self.uids.uids) if self.uids else {}
        found = dict[tuple[str, int], SourceMessage]()
        for _ in range(2):
            is_whole = self._look(found, keywords)
            if is_whole and uids.keys() <= {base for base, _ in found}:
                break
        guids = {base: guid_of(self.uids.guids.get(base, base)) for base, _ in found if base} if self.uids else {}
        for (base, _), message in found.items():
            # A second file of this name has neither: Dovecot will give it another name.
            yield replace(message, uid=uids.pop(base, None), key=base, guid=guids.pop(base, None))

    def _look(self, found: dict[tuple[str, int], SourceMessage], keywords: Mapping[str, str]) -> bool:
        """Find files, by their names without flags and their inodes; return False if some vanished meanwhile."""
        is_whole = True
        for part in PARTS:
            if not (self.path / part).is_dir():
                continue
            for entry in os.scandir(self.path / part):
                if entry.name.startswith("."):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    is_whole = False
                    continue
                flags = parse_flags(entry.name, keywords) if part == "cur" else frozenset[str]()
                received_ms = status.st_mtime_ns // 1_000_000
                message = SourceMessage(entry.path, flags, received_ms, size_bytes=status.st_size)
                found[base_name(entry.name), entry.inode()] = message
        return is_whole

    def _version(self) -> str:
        digest = hashlib.sha256(f"{self.uids and (self.uids.uidvalidity, self.uids.uidnext)}".encode())
        for one in sorted(self.messages, key=lambda message: message.name):
            known = (one.name, sorted(one.flags), one.received_ms, one.uid, one.size_bytes)
            digest.update(repr(known).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()
