"""mbox, as `replicator.cli.sources.mbox` reads it (mboxrd): a file `Name.mbox` for each folder; levels are directories.

`Status`, `X-Status` and `X-Keywords` at the beginning of each mail have its flags; such fields of the mail itself are
left out, since readers would take them for its flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import asctime, gmtime
from typing import BinaryIO, Final

from protocol.units import KIB
from replicator.cli.api.mail_stream import Mail
from replicator.cli.writers.destination import PRIVATE_DIRECTORY, create, not_taken, with_lf
from replicator.mail.mailstore import SEPARATOR

_FROM: Final = re.compile(rb"^(>*From )", re.MULTILINE)
_STATUS: Final = re.compile(rb"^(?:(?:X-)?Status|X-Keywords):[^\n]*\n(?:[ \t][^\n]*\n)*", re.MULTILINE | re.IGNORECASE)
_LETTERS: Final = {"\\Answered": "A", "\\Flagged": "F", "\\Draft": "T", "\\Deleted": "D"}
_LIKE_A_FILE: Final = re.compile(r"\.mbox(?:_\d+)?\Z", re.IGNORECASE)  # a directory of this name may be in the way
_EMPTY_LINE: Final = re.compile(rb"\A\n|\n\n")

HEADER_BYTES_MAX: Final = 512 * KIB
"""Octets in which the end of a header is searched; a longer one is written as it is. So is a longer line."""


class MboxWriter:
    """Writes each folder as an mbox below `directory`, which is empty."""

    def __init__(self, directory: Path) -> None:
        self.notes: list[str] = []
        self._directory = directory

    @contextmanager
    def folder(self, name: str, uidvalidity: int, uidnext: int) -> Iterator[_Mbox]:  # noqa: ARG002 - an mbox has no UIDs
        """See `MailWriter`."""
        # A level such as `..` leads out of the directory, and one that begins with a dot is hidden.
        levels = ["_" + level[1:] if level.startswith(".") else level for level in name.split(SEPARATOR)]
        above = [f"{level}_" if _LIKE_A_FILE.search(level) else level for level in levels[:-1]]
        wanted = self._directory.joinpath(*above, f"{levels[-1]}.mbox")
        for directory in reversed([*wanted.parents][: len(above)]):
            directory.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        path = not_taken(wanted)
        if path != self._directory / f"{name}.mbox":
            self.notes.append(
                f"{name}: a file cannot have this name; the folder is {path.relative_to(self._directory)}"
            )
        with create(path) as file:
            yield _Mbox(path, file)


class _Mbox:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file

    def write(self, mail: Mail) -> None:
        """See `FolderWriter`."""
        with ExitStack() as failure:
            failure.callback(self._cut, self._file.tell())
            self._file.write(b"From MAILER-DAEMON %s\n%s" % (_date(mail.received_ms), _flags(mail.flags)))
            last = b"\n"
            for piece in _quoted(_bare(with_lf(mail.pieces))):
                self._file.write(piece)
                last = piece[-1:] or last
            self._file.write(b"\n" if last == b"\n" else b"\n\n")
            failure.pop_all()

    def _cut(self, end: int) -> None:
        self._file.seek(end)
        self._file.truncate()


def _date(received_ms: int) -> bytes:
    return asctime(gmtime(received_ms // 1000)).encode("ascii")


def _flags(flags: frozenset[str]) -> bytes:
    """Return the fields that tell the flags, of which O means that the mail is not new."""
    lines = ["Status: RO" if "\\Seen" in flags else "Status: O"]
    letters = "".join(letter for flag, letter in _LETTERS.items() if flag in flags)
    keywords = " ".join(sorted(flag for flag in flags if not flag.startswith("\\")))
    lines += [f"X-Status: {letters}"] if letters else []
    lines += [f"X-Keywords: {keywords}"] if keywords else []
    return "".join(f"{line}\n" for line in lines).encode()


def _bare(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a mail without its own fields that tell flags."""
    rest = iter(pieces)
    begin = b""
    for piece in rest:
        begin += piece
        if (end := _EMPTY_LINE.search(begin)) is not None:
            header = begin[: end.end()]
            yield _STATUS.sub(b"", header)
            begin = begin[end.end() :]
            break
        if len(begin) > HEADER_BYTES_MAX:
            break
    else:  # there is nothing but a header
        begin = _STATUS.sub(b"", begin)
    yield begin
    yield from rest


def _quoted(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces with a further `>` before each line that begins with `From `, or with that and some `>`."""
    held, is_at_line = b"", True  # what may be the beginning of such a line, and whether it begins one
    for piece in pieces:
        whole = held + piece
        end = whole.rfind(b"\n") + 1
        if not end and len(whole) > HEADER_BYTES_MAX:
            end = len(whole)
        if not end:
            held = whole
            continue
        yield _quote(whole[:end], is_at_line=is_at_line)
        held, is_at_line = whole[end:], whole[end - 1 : end] == b"\n"
    yield _quote(held, is_at_line=is_at_line)


def _quote(lines: bytes, *, is_at_line: bool) -> bytes:
    if is_at_line:
        return _FROM.sub(rb">\1", lines)
    first, newline, rest = lines.partition(b"\n")
    return first + newline + _FROM.sub(rb">\1", rest)
