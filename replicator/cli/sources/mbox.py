"""mbox (RFC 4155): one file, with messages separated by lines `From sender date`.

Such a line counts only at the beginning of the file or after an empty line, and only with a date, so that a sentence
beginning with "From" separates nothing. Lines `>From `, `>>From ` and so on lose one `>` (mboxrd; in files of the older
kind, which quoted only `From `, this is right except for lines that already began with `>From `). The date, in UTC
unless it says otherwise, is the time of reception. `Status`, `X-Status` and `X-Keywords` give the flags and stay in the
message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from replicator.cli.sources.message import MailSource, SourceMessage
from replicator.mail.flags import is_keyword

# The literal prefix makes the search fast.
_FROM: Final = re.compile(
    rb"From (?:(?<=\AFrom )|(?<=\n\nFrom )|(?<=\n\r\nFrom ))[^\r\n]*?"
    rb"((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]?[0-9] "
    rb"[0-2][0-9]:[0-9]{2}(?::[0-9]{2})?[^\r\n]*[0-9]{4}[^\r\n]*)\r?\n"
)
_QUOTED_FROM: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_HEADER_END: Final = re.compile(rb"\r?\n\r?\n")
_STATUS: Final = re.compile(rb"^((?:X-)?Status):[ \t]*([A-Za-z]*)", re.MULTILINE | re.IGNORECASE)
_KEYWORDS: Final = re.compile(rb"^X-Keywords:[ \t]*([^\r\n]*)", re.MULTILINE | re.IGNORECASE)
# O is "old", for which IMAP no longer has a flag.
_FLAGS: Final[Mapping[tuple[str, str], str]] = {
    ("status", "R"): "\\Seen",
    ("x-status", "A"): "\\Answered",
    ("x-status", "D"): "\\Deleted",
    ("x-status", "F"): "\\Flagged",
    ("x-status", "T"): "\\Draft",
}
HEADER_BYTES_MAX: Final = 256 * 1024  # in which Status is searched


def is_mbox(path: Path) -> bool:
    """Return True if the file begins as an mbox; an empty file is an mbox without mail. Raises OSError."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1000)
    return not start or _FROM.match(start) is not None


def read_mbox(path: Path, folder: str) -> MailSource:
    """Return the file's mail, in its order. Raises OSError."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return MailSource((folder,), ())
    with path.open("rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    starts = list(_FROM.finditer(data))
    ends = [match.start() for match in starts[1:]] + [len(data)]
    messages = (
        SourceMessage(
            name=f"{path}, message {number}",
            folder=folder,
            flags=_flags(data[match.end() : min(end, match.end() + HEADER_BYTES_MAX)]),
            received_ms=_received_ms(match[1]),
            read=partial(_read, data, match.end(), end),
        )
        for number, (match, end) in enumerate(zip(starts, ends, strict=True), 1)
    )
    return MailSource((folder,), tuple(messages))


def _read(data: mmap, start: int, end: int) -> bytes:
    text = data[start:end]
    for separator in (b"\r\n\r\n", b"\n\n"):
        if text.endswith(separator):  # the empty line belongs to the mbox
            text = text[: -len(separator) // 2]
    return _QUOTED_FROM.sub(rb"\1", text)


def _flags(start: bytes) -> frozenset[str]:
    header = _HEADER_END.split(start, maxsplit=1)[0]
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
