"""mbox (RFC 4155): one file, with messages separated by lines `From sender date`.

Such a line counts only at the beginning of the file or after an empty line, and only with a date, so that a sentence
beginning with "From" separates nothing. Lines `>From `, `>>From ` and so on lose one `>` (mboxrd; in files of the older
kind, which quoted only `From `, this is right except for lines that already began with `>From `). The date, in UTC
unless it says otherwise, is the time of reception. `Status`, `X-Status` and `X-Keywords` give the flags; `X-IMAPbase`
or `X-IMAP` of the first message gives UIDVALIDITY and the last UID, and `X-UID` the UID of each. These fields and
`Content-Length` are the file's own book-keeping, and no part of the message: Dovecot shows them to no client either. A
first message from MAILER-DAEMON with `X-IMAP` and the subject "DON'T DELETE THIS MESSAGE" is no mail at all: programs
write it for these numbers.

The file is looked through under a lock of fcntl, which programs that deliver and read mail respect, and not read on
once it has changed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from protocol.units import MIB
from protocol.values import UID_MAX
from replicator.cli.sources.local import LocalFolder, LocalSource
from replicator.cli.sources.message import ReadMessage, SourceError, SourceFolder, SourceMessage, with_crlf
from replicator.mail.flags import is_keyword
from replicator.mail.mailstore import MESSAGE_BYTES_MAX

_FROM: Final = re.compile(
    rb"From [^\r\n]*?"
    rb"((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]?[0-9] "
    rb"[0-2][0-9]:[0-9]{2}(?::[0-9]{2})?[^\r\n]*[0-9]{4}[^\r\n]*)\r?\n"
)
_QUOTED_FROM: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_HEADER_END: Final = re.compile(rb"\A(?=\r?\n)|(?<=\n)(?=\r?\n)")
_OWN: Final = re.compile(
    rb"^(?:(?:X-)?Status|X-Keywords|X-UID|X-IMAP(?:base)?|Content-Length):[^\n]*\n(?:[ \t][^\n]*\n)*",
    re.MULTILINE | re.IGNORECASE,
)
_STATUS: Final = re.compile(rb"^((?:X-)?Status):[ \t]*([A-Za-z]*)", re.MULTILINE | re.IGNORECASE)
_KEYWORDS: Final = re.compile(rb"^X-Keywords:[ \t]*([^\r\n]*)", re.MULTILINE | re.IGNORECASE)
_BASE, _BASE_WITHOUT_MAIL = (
    re.compile(rb"^%s:[ \t]*(\d{1,10})[ \t]+(\d{1,10})\b" % name, re.MULTILINE | re.IGNORECASE)
    for name in (b"X-IMAPbase", b"X-IMAP")
)
_NO_MAIL: Final = tuple(
    re.compile(field, re.MULTILINE | re.IGNORECASE)
    for field in (
        rb"^X-IMAP:[ \t]*\d",
        rb"^From:[^\n]*\bMAILER-DAEMON\b",
        rb"^Subject: DON'T DELETE THIS MESSAGE\b",
    )
)
_UID: Final = re.compile(rb"^X-UID:[ \t]*(\d{1,10})[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
# O is "old", for which IMAP no longer has a flag.
_FLAGS: Final[Mapping[tuple[str, str], str]] = {
    ("status", "R"): "\\Seen",
    ("x-status", "A"): "\\Answered",
    ("x-status", "D"): "\\Deleted",
    ("x-status", "F"): "\\Flagged",
    ("x-status", "T"): "\\Draft",
}
HEADER_BYTES_MAX: Final = 256 * 1024  # in which these fields are searched
LOCK_S: Final = 30.0
"""Seconds that another program may have the file locked; it writes one mail, or rewrites the file."""
_LOCK_PAUSE_S: Final = 0.1  # between tries: a lock that waits by itself knows no deadline
_LINE_BYTES_MAX: Final = 64 * 1024  # that are read at once
_EMPTY_LINES: Final = frozenset({b"\n", b"\r\n"})


def is_mbox(path: Path) -> bool:
    """Return True if the file begins as an mbox; an empty file is an mbox without mail. Raises OSError."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1000)
    return not start or _FROM.match(start) is not None


def read_mbox(path: Path, folder: str) -> LocalSource:
    """Return the file's mail: by its UIDs, or in its order where it has none. Raises OSError, SourceError."""
    with path.open("rb") as file, _locked(file, path):
        mailbox = _Mbox(path, file)
        base = mailbox.base()
        messages = mailbox.messages(base)
        mailbox.check()
    about = SourceFolder(
        folder,
        str(path),
        len(messages),
        base and base.uidvalidity,
        base and base.last_uid + 1,
        version=mailbox.version,
    )
    notes = []
    if base and (without := sum(message.uid is None for message in messages)):
        notes = [f"{path}: {without} messages have no UID, or one out of order; they get new ones"]
    if mailbox.is_without_first:
        notes.append(f"{path}: its first message is left out, which is there for the UIDs of the others")
    read = LocalFolder(messages, mailbox.read, has_uids=base is not None)
    return LocalSource({folder: read}, [about], notes=notes)


@contextmanager
def _locked(file: BinaryIO, path: Path) -> Iterator[None]:
    """Lock a file, as far as its file system can. Raises SourceError if another program keeps it locked."""
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                break  # there are no locks, for instance by NFS
        if time.monotonic() > until:
            raise SourceError(f"{path}: another program has locked it for more than {LOCK_S:.0f} seconds")
        time.sleep(_LOCK_PAUSE_S)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_UN)


class _Line(NamedTuple):
    """A line `From `: where it begins and ends, and its date."""

    start: int
    end: int
    date: bytes


def _from_lines(file: BinaryIO) -> Iterator[_Line]:
    """Yield the lines that begin messages. A line that is too long comes in pieces, none of which is one."""
    at, before_is_empty, is_begin = 0, True, True
    while line := file.readline(_LINE_BYTES_MAX):
        if before_is_empty and line.startswith(b"From ") and (found := _FROM.fullmatch(line)):
            yield _Line(at, at + len(line), found[1])
        at += len(line)
        before_is_empty = is_begin and line in _EMPTY_LINES
        is_begin = line.endswith(b"\n")


class _Base(NamedTuple):
    """Facts about the whole mbox, told by its first message."""

    uidvalidity: int
    last_uid: int


class _Mbox:
    """An mbox. Raises SourceError when it has changed since it was opened."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self.version = self._version()
        self._lines = list(_from_lines(file))
        self._ends = [line.start for line in self._lines[1:]] + [file.tell()]
        self.is_without_first = bool(self._lines) and _is_no_mail(self._header(0))

    def base(self) -> _Base | None:
        """Return UIDVALIDITY and the last UID, if the file has them."""
        header = self._header(0) if self._lines else b""
        found = _BASE.search(header) or (_BASE_WITHOUT_MAIL.search(header) if self.is_without_first else None)
        if found is None:
            return None
        uidvalidity, last_uid = int(found[1]), int(found[2])
        return _Base(uidvalidity, last_uid) if 0 < uidvalidity <= UID_MAX and last_uid < UID_MAX else None

    def messages(self, base: _Base | None) -> Sequence[SourceMessage]:
        """Return the messages; those without a UID come last, if others have one."""
        messages = list(self._messages())
        if base is None:
            return [replace(message, uid=None) for message in messages]
        last, checked = 0, []
        for message in messages:
            # A mail may have brought such a field along.
            uid = message.uid if message.uid is not None and last < message.uid <= base.last_uid else None
            last = uid or last
            checked.append(replace(message, uid=uid))
        return sorted(checked, key=lambda message: message.uid is None)

    def read(self, message: SourceMessage) -> ReadMessage:
        """Return a message without the file's own fields."""
        start, end = self._span(message.place)
        if end - start > MESSAGE_BYTES_MAX:
            return ReadMessage(message, error=f"larger than {MESSAGE_BYTES_MAX // MIB} MiB")
        text = self._piece(start, end - start)
        self.check()
        for separator in (b"\r\n\r\n", b"\n\n"):
            if text.endswith(separator):  # the empty line belongs to the mbox
                text = text[: -len(separator) // 2]
        text = _QUOTED_FROM.sub(rb"\1", text)
        end_of_header = _end_of_header(text)
        bare = _OWN.sub(b"", text[:end_of_header]) + text[end_of_header:]
        return ReadMessage(message, with_crlf(bare), former=None if bare == text else with_crlf(text))

    def _messages(self) -> Iterator[SourceMessage]:
        for place, line in enumerate(self._lines):
            if not place and self.is_without_first:
                continue
            header = self._header(place)
            start, end = self._span(place)
            found = _UID.search(header)
            yield SourceMessage(
                name=f"{self._path}, message {place + 1}",
                flags=_flags(header),
                received_ms=_received_ms(line.date),
                uid=int(found[1]) if found else None,
                place=place,
                size_bytes=end - start,
            )

    def _span(self, place: int) -> tuple[int, int]:
        return self._lines[place].end, self._ends[place]

    def _header(self, place: int) -> bytes:
        start, end = self._span(place)
        begin = self._piece(start, min(end - start, HEADER_BYTES_MAX))
        return begin[: _end_of_header(begin)]

    def _piece(self, start: int, size: int) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, start)

    def _version(self) -> str:
        status = self._path.stat()
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"

    def check(self) -> None:
        """Check that nobody has written to the file, in which messages might be elsewhere by now."""
        if self._version() != self.version:
            raise SourceError(f"{self._path}: has changed meanwhile; run the import again")


def _is_no_mail(header: bytes) -> bool:
    """Return True for what programs write at the beginning of a file, to keep its numbers."""
    return all(field.search(header) for field in _NO_MAIL)


def _end_of_header(text: bytes) -> int:
    """Return where the empty line after the header is; at most HEADER_BYTES_MAX."""
    found = _HEADER_END.search(text, 0, HEADER_BYTES_MAX)
    return found.start() if found else min(len(text), HEADER_BYTES_MAX)


def _flags(header: bytes) -> frozenset[str]:
    letters = [(name.decode().lower(), letter) for name, text in _STATUS.findall(header) for letter in text.decode()]
    keywords = [word.decode() for words in _KEYWORDS.findall(header) for word in words.split() if word.isascii()]
    return frozenset([*(_FLAGS[letter] for letter in letters if letter in _FLAGS), *filter(is_keyword, keywords)])


def _received_ms(date: bytes) -> int | None:
    parsed = parsedate_tz(date.decode("ascii", "replace"))
    if parsed is None:
        return None
    try:
        return max(0, mktime_tz(parsed)) * 1000
    except (ValueError, OverflowError):
        return None
