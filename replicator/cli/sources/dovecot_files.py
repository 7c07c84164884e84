"""Dovecot's files beside the mail of a Maildir: UIDs, keywords, subscriptions, and the log that tells MODSEQs.

Formats: https://doc.dovecot.org/2.3/developer_manual/design/indexes/ and the pages on Maildir and its files there.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Final

from protocol.values import UID_MAX

UIDLIST, KEYWORDS, SUBSCRIPTIONS, INDEX_LOG = (
    "dovecot-uidlist",
    "dovecot-keywords",
    "subscriptions",
    "dovecot.index.log",
)
KEYWORDS_MAX = 26  # a to z

_HEAD_1: Final = re.compile(rb"1 (\d{1,10}) (\d{1,10})\s*")
_HEAD_3: Final = re.compile(rb"3((?: [A-Z]\S*)*)\s*")
_LINE_3: Final = re.compile(rb"(\d{1,10})((?: [A-Z]\S*)*) :(.+)")
_LOG_HEAD: Final = struct.Struct("<BBHIIIIIQ")  # versions, size of this header, ids of the log; initial MODSEQ
_LOG_MAJOR: Final = 1
_LOG_RECORD_BYTES: Final = 8  # the smallest record of a log, each of which raises the MODSEQ by one at most
_MODSEQ_MAX: Final = 2**63 - 1
_ESCAPES: Final = {b"1": b"\x01", b"t": b"\t", b"r": b"\r", b"n": b"\n", b"0": b"\0"}
_ESCAPED: Final = re.compile(rb"\x01(.)", re.DOTALL)


class BrokenFileError(Exception):
    """A file that is not as Dovecot writes it. The text names the line."""


@dataclass(frozen=True, slots=True)
class UidList:
    """UIDs of the messages of a folder, by the names of their files without flags.

    `guids`: texts of GUIDs, where these are not the names of the files.
    """

    uidvalidity: int
    uidnext: int
    uids: Mapping[str, int] = field(repr=False)
    guids: Mapping[str, str] = field(repr=False)


def parse_uidlist(content: bytes) -> UidList:
    """Return a folder's UIDs, from a `dovecot-uidlist` of version 1 or 3.

    A last line without an end is one that Dovecot is writing. Raises BrokenFileError.
    """
    head, *lines = content.split(b"\n")
    if found := _HEAD_1.fullmatch(head):
        numbers, parse = (int(found[1]), int(found[2])), _line_1
    elif found := _HEAD_3.fullmatch(head):
        fields = {word[:1]: word[1:] for word in found[1].split()}
        numbers, parse = (_number(fields.get(b"V"), 1), _number(fields.get(b"N"), 1)), _line_3
    else:
        raise BrokenFileError("line 1 is not that of a list of version 1 or 3")
    uidvalidity, uidnext = numbers
    if not (0 < uidvalidity <= UID_MAX and 0 < uidnext <= UID_MAX):
        raise BrokenFileError(f"line 1: UIDVALIDITY {uidvalidity}, UIDNEXT {uidnext}")
    uids, guids, last = dict[str, int](), dict[str, str](), 0
    for number, line in enumerate(lines[:-1], 2):
        uid, guid, name = parse(line, number)
        if not last < uid < UID_MAX or name in uids:
            raise BrokenFileError(f"line {number}: UID {uid} after {last}, or a name for the second time")
        uids[name] = last = uid
        if guid:
            guids[name] = guid
    return UidList(uidvalidity, max(uidnext, last + 1), uids, guids)


def base_name(file_name: str) -> str:
    """Return the name of a message's file without its flags, as Dovecot finds its end."""
    return file_name.partition(":")[0]


def parse_keywords(content: bytes) -> Mapping[str, str]:
    """Return letter -> keyword, from lines `0 keyword` of a `dovecot-keywords`."""
    keywords = {}
    for line in content.decode("utf-8", "replace").splitlines():
        number, _, keyword = line.partition(" ")
        if number.isdecimal() and int(number) < KEYWORDS_MAX and keyword:
            keywords[ascii_lowercase[int(number)]] = keyword
    return keywords


def parse_subscriptions(content: bytes, separator: bytes) -> Sequence[Sequence[bytes]]:
    """Return the levels of the names in a `subscriptions` of either version.

    `separator` is that of the names in version 1: that of the directories.
    """
    lines = content.split(b"\n")
    if lines[0].startswith(b"V\t"):
        return [[_ESCAPED.sub(_unescaped, level) for level in line.split(b"\t")] for line in lines[1:] if line]
    return [line.split(separator) for line in lines if line]


def highest_modseq(log: bytes) -> int | None:
    """Return a number that no MODSEQ of a folder exceeds, from its `dovecot.index.log`; None if that makes no sense.

    The log's beginning tells the MODSEQ before it. How far it has come since is bounded by its length, and a
    HIGHESTMODSEQ that is too high costs a client nothing.
    """
    head = log[: _LOG_HEAD.size]
    if len(head) < _LOG_HEAD.size:
        return None
    major, _, head_size, *_, initial = _LOG_HEAD.unpack(head)
    if major != _LOG_MAJOR or head_size < _LOG_HEAD.size:
        return None
    highest = int(max(1, initial)) + len(log) // _LOG_RECORD_BYTES
    return highest if highest <= _MODSEQ_MAX else None


def _line_1(line: bytes, number: int) -> tuple[int, str, str]:
    uid, space, name = line.partition(b" ")
    if not space or not name:
        raise BrokenFileError(f"line {number} is not a UID and a name")
    return _number(uid, number), "", base_name(_text(name))


def _line_3(line: bytes, number: int) -> tuple[int, str, str]:
    found = _LINE_3.fullmatch(line)
    if found is None:
        raise BrokenFileError(f"line {number} is not a UID, fields and a name")
    guid = next((word[1:] for word in found[2].split() if word.startswith(b"G")), b"")
    return int(found[1]), _text(guid), base_name(_text(found[3]))


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _number(text: bytes | None, number: int) -> int:
    if text is None or not text.isdigit() or len(text) > len(str(UID_MAX)):
        raise BrokenFileError(f"line {number}: a number is missing")
    return int(text)


def _unescaped(escaped: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(escaped[1], escaped[1])
