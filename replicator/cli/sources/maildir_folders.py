"""The folders of a Maildir, in either layout.

Maildir++ has them beside each other, in directories `.Name.Sub` (`.` separates levels); Dovecot's LAYOUT=fs has them
below each other, in `Name/Sub`. Which one it is shows in the names: only those of Maildir++ begin with a dot. So a
folder of LAYOUT=fs with such names in it is a Maildir++ of its own, as `~/Maildir` is where somebody names `~`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replicator.cli.sources.message import SourceError
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
    """Yield the directories of the folders, each one before those below it.

    Raises OSError, and SourceError if one of those below each other is a Maildir++, whose folders would be left out.
    """
    if _is_folder(path):
        yield Directory(path, (), _has_link(path))
    for child in _children(path):
        if _is_plus_folder(child):
            levels = tuple(os.fsencode(child.name[1:]).split(PLUS_SEPARATOR))
            yield Directory(child, levels, child.is_symlink() or _has_link(child))
    for directory in _below(path, ()):
        if not directory.is_link:
            _check_layout(path, directory.path)
        yield directory


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


def _check_layout(path: Path, folder: Path) -> None:
    """Check that a folder of LAYOUT=fs at `path` is no Maildir++. Raises OSError, SourceError."""
    for child in _children(folder):
        if _is_plus_folder(child):
            raise SourceError(
                f"{path} holds a Maildir++ in {folder.relative_to(path)}/, with folders such as {child.name}:"
                f" import {folder}"
            )


def _children(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir())


def _is_folder(path: Path) -> bool:
    return all((path / part).is_dir() for part in PARTS)


def _is_plus_folder(path: Path) -> bool:
    return path.name.startswith(".") and any((path / part).is_dir() for part in PARTS)


def _has_link(path: Path) -> bool:
    return any((path / part).is_symlink() for part in PARTS)
