"""Maildir and Maildir++: one file per message, `cur/` and `new/`, subfolders `.Name.Sub/` beside them.

The letters after `:2,` in a file's name are flags: those of https://cr.yp.to/proto/maildir.html, and Dovecot's keywords
`a` to `z`, whose names are in the folder's `dovecot-keywords` (`P`, passed, is `$Forwarded`). The file's modification
time is the time of reception. `tmp/` holds unfinished deliveries and is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from replicator.cli.sources.message import MailSource, SourceMessage
from replicator.imap.wire.mailbox_names import MailboxNameError, decode_name
from replicator.mail.mailstore import INBOX, SEPARATOR

FLAGS: Mapping[str, str] = {
    "D": "\\Draft",
    "F": "\\Flagged",
    "P": "$Forwarded",
    "R": "\\Answered",
    "S": "\\Seen",
    "T": "\\Deleted",
}
KEYWORDS_MAX = 26  # a to z


def is_maildir(path: Path) -> bool:
    """Return True if the path is a Maildir."""
    return (path / "cur").is_dir() and (path / "new").is_dir()


def read_maildir(path: Path, folder: str) -> MailSource:
    """Return the Maildir's own mail for `folder`, and that of its subfolders for folders of their names.

    Those are created below `folder`, unless it is INBOX. Raises OSError.
    """
    directories = {folder: path}
    for subdirectory in sorted(path.glob(".*/")):
        if (subdirectory / "cur").is_dir():
            directories[_folder_name(subdirectory.name, folder)] = subdirectory
    messages = [message for name, directory in directories.items() for message in _messages(directory, name)]
    messages.sort(key=lambda message: (message.received_ms, Path(message.name).name))
    return MailSource(tuple(directories), tuple(messages))


def parse_flags(file_name: str, keywords: Mapping[str, str]) -> frozenset[str]:
    """Return the flags in a file's name; unknown letters are ignored."""
    _, _, letters = file_name.partition(":2,")
    known = {**keywords, **FLAGS}
    return frozenset(known[letter] for letter in letters if letter in known)


def _folder_name(directory_name: str, parent: str) -> str:
    encoded = os.fsencode(directory_name[1:]).replace(b".", SEPARATOR.encode())
    try:
        name = decode_name(encoded)
    except MailboxNameError:
        # Dovecot can be configured to write UTF-8, and some other software writes names unchanged.
        name = encoded.decode("utf-8", "replace")
    return name if parent == INBOX else f"{parent}{SEPARATOR}{name}"


def _messages(directory: Path, folder: str) -> Iterator[SourceMessage]:
    keywords = _keywords(directory / "dovecot-keywords")
    for part in ("new", "cur"):
        for entry in os.scandir(directory / part):
            if entry.name.startswith(".") or not entry.is_file():
                continue
            yield SourceMessage(
                name=entry.path,
                folder=folder,
                flags=parse_flags(entry.name, keywords) if part == "cur" else frozenset(),
                received_ms=entry.stat().st_mtime_ns // 1_000_000,
                read=partial(_read, entry.path),
            )


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _keywords(file: Path) -> Mapping[str, str]:
    """Return letter -> keyword, from lines `0 keyword`."""
    if not file.is_file():
        return {}
    keywords = {}
    for line in file.read_text("utf-8", "replace").splitlines():
        number, _, keyword = line.partition(" ")
        if number.isdecimal() and int(number) < KEYWORDS_MAX and keyword:
            keywords[chr(ord("a") + int(number))] = keyword
    return keywords
