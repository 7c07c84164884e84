"""The folders of a Maildir, in either layout.

Maildir++ has them beside each other, in directories `.Name.Sub` (`.` separates levels); Dovecot's LAYOUT=fs has them
below each other, in `Name/Sub`. Which one it is shows in the names: only those of Maildir++ begin with a dot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replicator.mail.mailstore import MAX_LEVELS

PARTS = ("new", "cur")
NO_FOLDERS = frozenset({"cur", "new", "tmp"})
PLUS_SEPARATOR, FS_SEPARATOR = b".", b"/"


class Directory(NamedTuple):
    """A folder's directory, and the levels of its name as they are written there; the Maildir itself has none.

    `is_link`: it, or its `cur` or `new`, is a link, which is not followed: it may lead to somebody else's mail.
    """

    path: Path
    levels: tuple[bytes, ...]
    is_link: bool = False


def is_maildir(path: Path) -> bool:
    """Return True if the path is a Maildir, or a directory of Maildirs, as LAYOUT=fs may be without an INBOX."""
    if _is_folder(path):
        return True
    return path.is_dir() and any(_is_folder(child) for child in _children(path) if not child.name.startswith("."))


def directories(path: Path) -> Iterator[Directory]:
    """Yield the directories of the folders, each one before those below it. Raises OSError."""
    if _is_folder(path):
        yield Directory(path, (), _has_link(path))
    for child in _children(path):
        if child.name.startswith(".") and (child / "cur").is_dir():
            levels = tuple(os.fsencode(child.name[1:]).split(PLUS_SEPARATOR))
            yield Directory(child, levels, child.is_symlink() or _has_link(child))
    yield from _below(path, ())


def separator(path: Path) -> bytes:
    """Return what separates levels in lists of the Maildir's folders. Raises OSError."""
    return FS_SEPARATOR if next(_below(path, ()), None) is not None else PLUS_SEPARATOR


def _below(path: Path, levels: tuple[bytes, ...]) -> Iterator[Directory]:
    """Yield the folders of LAYOUT=fs below a directory; a directory without mail may have some below it."""
    if len(levels) == MAX_LEVELS:
        return
    for child in _children(path):
        if child.name.startswith(".") or child.name in NO_FOLDERS:
            continue
        found, is_link = (*levels, os.fsencode(child.name)), child.is_symlink()
        if _is_folder(child):
            yield Directory(child, found, is_link or _has_link(child))
        if not is_link:
            yield from _below(child, found)


def _children(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir())


def _is_folder(path: Path) -> bool:
    return all((path / part).is_dir() for part in PARTS)


def _has_link(path: Path) -> bool:
    return any((path / part).is_symlink() for part in PARTS)
