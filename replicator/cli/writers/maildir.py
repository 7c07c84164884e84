"""Maildir++, as `replicator.cli.sources.maildir` reads it: one file per message in `cur/`.

The letters of keywords are in `dovecot-keywords`, UIDs in `dovecot-uidlist` (version 3), by which Dovecot goes on with
them, so that clients keep what they have. `.` separates levels, and becomes `_` within one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase
from typing import BinaryIO

from replicator.cli.api.mail_stream import Mail
from replicator.cli.sources.dovecot_files import KEYWORDS_MAX
from replicator.cli.sources.maildir import FLAGS
from replicator.cli.writers.destination import PRIVATE_DIRECTORY, create, not_taken, with_lf
from replicator.imap.wire.mailbox_names import encode_name
from replicator.mail.mailstore import INBOX, SEPARATOR

LETTERS = {flag: letter for letter, flag in FLAGS.items()}
PARTS = ("cur", "new", "tmp")


class MaildirWriter:
    """Writes folders as a Maildir++ in `directory`, which is empty."""

    def __init__(self, directory: Path) -> None:
        self.notes: list[str] = []
        self._directory = directory

    @contextmanager
    def folder(self, name: str, uidvalidity: int, uidnext: int) -> Iterator[_MaildirFolder]:
        """See `MailWriter`."""
        path = self._directory
        if name != INBOX:
            encoded = encode_name(name).decode("ascii")
            levels = encoded.replace(".", "_").split(SEPARATOR)
            path = not_taken(path / ("." + ".".join(levels)))
            path.mkdir(PRIVATE_DIRECTORY)
            create(path / "maildirfolder").close()  # as Maildir++ wants it
            if "." in name or path.name != "." + encoded.replace(SEPARATOR, "."):
                self.notes.append(f"{name}: a Maildir cannot have this name; the folder is {path.name}")
        for part in PARTS:
            (path / part).mkdir(PRIVATE_DIRECTORY)
        with create(path / "dovecot-uidlist") as uids:
            folder = _MaildirFolder(path, uids, uidnext)
            uids.write(_first_line(uidvalidity, folder.next_uid))
            try:
                yield folder
            finally:
                folder.write_keywords()
            if folder.unkept:
                words = ", ".join(sorted(folder.unkept))
                self.notes.append(f"{name}: a Maildir has {KEYWORDS_MAX} keywords at most; not kept: {words}")
            uids.seek(0)  # mail may have come since; the line takes as much room as before
            uids.write(_first_line(uidvalidity, folder.next_uid))


class _MaildirFolder:
    """A folder. `unkept`: keywords for which there was no letter."""

    def __init__(self, path: Path, uids: BinaryIO, next_uid: int) -> None:
        self.path = path
        self.unkept: set[str] = set()
        self.next_uid = next_uid
        self._uids = uids
        self._keywords: dict[str, str] = {}  # letters

    def write(self, mail: Mail) -> None:
        """See `FolderWriter`."""
        seconds, milliseconds = divmod(mail.received_ms, 1000)
        # The UID keeps the order of mail that was received in the same millisecond.
        base = f"{seconds}.M{1000 * milliseconds:06}U{mail.uid:010}.replicator"
        unfinished = self.path / "tmp" / base
        try:
            with create(unfinished) as file:
                for piece in with_lf(mail.pieces):
                    file.write(piece)
                size = file.tell()
            os.utime(unfinished, ns=(mail.received_ms * 1_000_000, mail.received_ms * 1_000_000))
            name = f"{base},S={size}"
            unfinished.rename(self.path / "cur" / f"{name}:2,{self._letters(mail)}")
        finally:
            unfinished.unlink(missing_ok=True)
        self._uids.write(f"{mail.uid} :{name}\n".encode())
        self.next_uid = max(self.next_uid, mail.uid + 1)

    def write_keywords(self) -> None:
        """Write the names of keywords."""
        if self._keywords:
            with create(self.path / "dovecot-keywords") as file:
                file.write("".join(f"{at} {word}\n" for at, word in enumerate(self._keywords)).encode())

    def _letters(self, mail: Mail) -> str:
        found = set[str]()
        for flag in sorted(mail.flags):
            letter = LETTERS.get(flag, "")
            if not flag.startswith("\\"):  # $Forwarded, too: Dovecot does not know its letter
                letter += self._letter_of(flag)
            found.update(letter)
            if not letter:
                self.unkept.add(flag)
        return "".join(sorted(found))

    def _letter_of(self, keyword: str) -> str:
        """Return the letter of a keyword, or nothing if there are no more."""
        if keyword not in self._keywords and len(self._keywords) < KEYWORDS_MAX:
            self._keywords[keyword] = ascii_lowercase[len(self._keywords)]
        return self._keywords.get(keyword, "")


def _first_line(uidvalidity: int, next_uid: int) -> bytes:
    return f"3 V{uidvalidity} N{next_uid:010}\n".encode()
