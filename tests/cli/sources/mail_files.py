"""Files of mail to import, Maildirs and mboxes, and what a source tells of them."""

from __future__ import annotations

import os
from pathlib import Path

from replicator.cli.sources import MailSource, SourceMessage

FROM = b"From ann@example.org Thu Nov 17 00:49:30 1994\n"


def make_maildir(path: Path) -> Path:
    for part in ("cur", "new", "tmp"):
        (path / part).mkdir(parents=True)
    return path


def put(directory: Path, name: str, text: bytes, mtime_s: int = 1000) -> Path:
    file = directory / name
    file.write_bytes(text)
    os.utime(file, (mtime_s, mtime_s))
    return file


def names(source: MailSource) -> list[str]:
    return [folder.name for folder in source.folders]


def listed(source: MailSource, name: str = "INBOX") -> list[SourceMessage]:
    [folder] = [folder for folder in source.folders if folder.name == name]
    with source.open(folder) as reader:
        return [*reader.listing(None).messages]


def texts(source: MailSource, name: str = "INBOX") -> list[bytes]:
    [folder] = [folder for folder in source.folders if folder.name == name]
    with source.open(folder) as reader:
        return [read.text for read in reader.texts(reader.listing(None).messages)]
