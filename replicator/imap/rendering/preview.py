"""PREVIEW of a message (RFC 8970): the beginning of its text, as a list of messages shows it. Pure functions.

Nothing here raises. Of the message's texts, the first one that has any words counts. Quotations, the lines that
introduce them, and signatures are left out, unless there is nothing else. Text that is encrypted has no preview.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, tee

from replicator.imap.text.decoding import beginning_text
from replicator.imap.text.html_text import html_lines
from replicator.imap.text.transfer_encodings import DECODERS, transfer_encoding
from replicator.mime.header import Parameterised
from replicator.mime.skeleton import BEGIN_BYTES, Gap, Skeleton
from replicator.mime.structure import Part

MAX_CHARACTERS = 200
"""Length of a preview (RFC 8970 section 3.3)."""

_MAX_LINES = 1_000  # that are looked at; some milliseconds
_LINE_CHARACTERS = 4_000
_PARTS = 10  # texts that are looked at

_ENCRYPTED = "-----BEGIN PGP MESSAGE-----"
_SIGNATURE = "--"  # RFC 3676 section 4.3, without the space at its end
_RULE = re.compile(r"[-=_*~#+.]{3,}")
_FIELD = re.compile(r"\*{0,2}[^\s:]{1,20} ?:\*{0,2}(?:\s|$)")
_DATE_OR_ADDRESS = re.compile(r"[0-9@]")
_WROTE_CHARACTERS = 40
_UNDERLINE_CHARACTERS = 10

# Format characters that nobody sees, with which newsletters fill up what lists of messages show. Joiners count where
# they join two characters, as in emoji and in Persian.
_UNSEEN = re.compile(
    "[\0-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]"
)
_LOOSE_JOINERS = re.compile(r"[\u200c\u200d](?![^\s\u200c\u200d])|(?<![^\s\u200c\u200d])[\u200c\u200d]")
_BLANK = "\u2800"  # looks like a space


def preview(body: Part, skeleton: Skeleton) -> str | Gap:
    """Return the preview, empty if there is none; or the gap that has the text, if its beginning is not known.

    Of the texts that were cut out only the first one counts: if the beginning of one is known, others are passed over.
    """
    is_one_known = any(gap.begin is not None for gap in skeleton.gaps)
    for part in islice(_texts(body), _PARTS):
        content = _content(part, skeleton)
        if isinstance(content, Gap):
            if not is_one_known:
                return content
        elif found := _beginning(part, content):
            return found
    return ""


def _texts(part: Part) -> Iterator[Part]:
    """Yield the texts of a message, the better ones first."""
    kind, subtype = part.content_type.value, part.content_type.subtype
    if _is_attachment(part) or (kind, subtype) == (b"MULTIPART", b"ENCRYPTED"):
        return
    children = part.children if part.nested is None else (part.nested,)
    if subtype == b"ALTERNATIVE":
        children = tuple(sorted(children, key=lambda child: child.content_type.subtype != b"PLAIN"))
    for child in children:
        yield from _texts(child)
    if not children and kind == b"TEXT" and subtype in {b"PLAIN", b"HTML"}:
        yield part


def _is_attachment(part: Part) -> bool:
    disposition = part.header.value(b"content-disposition") or b""
    return Parameterised.parse(disposition).value.lower() == b"attachment"


def _content(part: Part, skeleton: Skeleton) -> bytes | Gap:
    """Return the beginning of a text as it is encoded, or the gap that has it."""
    start = part.header.end
    for gap in skeleton.gaps:
        if gap.at == start:
            return gap if gap.begin is None else gap.begin
    return skeleton.raw[start : min(part.end, start + BEGIN_BYTES)]


def _beginning(part: Part, content: bytes) -> str:
    if transfer_encoding(part) not in DECODERS:
        return ""
    text = beginning_text(part, content, is_cut=len(content) >= BEGIN_BYTES)
    if text.lstrip().startswith(_ENCRYPTED):
        return ""
    is_html = part.content_type.subtype == b"HTML"
    lines, again = tee(_lines(text, is_html=is_html))
    return _joined(_own(lines)) or _joined(line.lstrip("> ") for line in again)


def _lines(text: str, *, is_html: bool) -> Iterator[str]:
    """Yield the lines without what is not seen, with single spaces in them."""
    for line in islice(html_lines(text) if is_html else text.splitlines(), _MAX_LINES):
        seen = _UNSEEN.sub("", line[:_LINE_CHARACTERS]).replace(_BLANK, " ")
        yield " ".join(_LOOSE_JOINERS.sub("", seen).split())


def _joined(lines: Iterable[str]) -> str:
    """Return the beginning of the lines as one."""
    found: list[str] = []
    length = -1
    for line in lines:
        if line and not _RULE.fullmatch(line):
            found.append(line)
            length += 1 + len(line)
        if length >= MAX_CHARACTERS:
            break
    return " ".join(found)[:MAX_CHARACTERS].rstrip()


def _own(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that the sender has written, up to the signature or an earlier message below."""
    held: list[str] = []  # may introduce a quotation
    in_fields = began = False
    for line in lines:
        if line == _SIGNATURE or (began and _is_heading(line)):
            break
        if _is_heading(line):
            in_fields = True
        elif line.startswith(">"):
            yield from _without_introduction(held)
            held = []
        elif not line:
            in_fields = False
            if held and not held[-1].endswith(":"):
                yield from held
                held = []
        elif not (in_fields and _FIELD.match(line)):
            in_fields, began = False, True
            held.append(line)
            if len(held) > 2:
                yield held.pop(0)
    yield from held


def _is_heading(line: str) -> bool:
    """Return True for the line above a forwarded message, or above an earlier one below the answer."""
    if line.startswith("---"):
        return line.endswith("---") and bool(line.strip("- "))
    return len(line) >= _UNDERLINE_CHARACTERS and not line.strip("_")


def _without_introduction(lines: list[str]) -> list[str]:
    """Return the lines before a quotation without `On Monday, Ann wrote:`, in any language; it may take two lines."""
    if not lines or not lines[-1].endswith(":"):
        return lines
    is_wrapped = len(lines[-1]) <= _WROTE_CHARACTERS and _DATE_OR_ADDRESS.search(lines[0])
    return [] if is_wrapped else lines[:-1]
