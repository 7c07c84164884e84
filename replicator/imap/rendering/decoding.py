"""Text of messages as people read it, for SEARCH: charsets, encoded words, transfer encodings, dates.

Nothing here raises: what cannot be decoded stays as it came, an octet outside its charset becomes U+FFFD.
"""

from __future__ import annotations

import datetime as dt
import re
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message as EmailMessage
from email.utils import parsedate
from encodings import normalize_encoding
from encodings.aliases import aliases

from replicator.mime.header import Header, without_comment
from replicator.mime.structure import Part

# Python's other codecs are none that mail is written in, and some take quadratic time (punycode) or decode nothing.
# US-ASCII is what mail says that does not know, and the default; its octets are looked at as if it said nothing.
_CODECS = frozenset(aliases.values()) - {"ascii"}

_MAX_CHARSET = 64  # characters; RFC 2978 section 2.3 allows 40
_MAX_DATE = 200  # octets; RFC 5322 section 3.3 needs fifty, comments included

# RFC 2047 section 2, blanks in the text allowed because senders leave them there. Words that follow one another are
# decoded together, as a character may be cut in two; a hundred at most, as the decoder's time grows with their square.
_WORD = r"=\?[^?\s]{1,64}\?[bBqQ]\?[^?\n]*+\?="
_WORDS = re.compile(rf"{_WORD}(?:[ \t]*+{_WORD}){{0,99}}+")
_FOLD = re.compile(r"\r?\n(?=[ \t])")


def header_text(header: Header) -> str:
    """The whole header, a field a line, unfolded and decoded."""
    return _decode_words(_FOLD.sub("", decode_text(header.raw[header.start : header.fields_end], None)))


def value_text(value: bytes) -> str:
    """An unfolded header value, decoded."""
    return _decode_words(decode_text(value, None))


def part_text(part: Part) -> str:
    """The body of a text part, decoded."""
    charset = part.content_type.decoded_parameter(b"charset")
    return decode_text(_transfer_decoded(part), None if charset is None else charset.decode("latin-1"))


def decode_text(text: bytes, charset: str | None) -> str:
    """Decode from a charset. From none, or one that is unknown, as UTF-8 if it is that, else as ISO 8859-1."""
    codec = None if charset is None else _codec(charset)
    if codec is not None:
        try:
            return text.decode(codec, "replace")
        except (LookupError, UnicodeError):  # a codec that is not of text; UTF-16 cut short
            pass
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def sent_date(header: Header) -> dt.date | None:
    """The day in the Date field as its sender wrote it, disregarding time and timezone (RFC 3501 section 6.4.4)."""
    value = header.value(b"date")
    parsed = None if value is None else parsedate(value[:_MAX_DATE].decode("latin-1"))
    if parsed is None:
        return None
    try:
        return dt.date(*parsed[:3])
    except (ValueError, OverflowError):  # the 31st of February; the year of the beast to the power of four
        return None


def _codec(charset: str) -> str | None:
    name = charset.partition("*")[0]  # RFC 2231 section 5: a language may follow
    if len(name) > _MAX_CHARSET or not name.isascii():
        return None
    codec = normalize_encoding(name).lower()
    codec = aliases.get(codec, codec)
    return codec if codec in _CODECS else None


def _decode_words(text: str) -> str:
    return _WORDS.sub(_decode_run, text)


def _decode_run(run: re.Match[str]) -> str:
    try:
        pieces = decode_header(run[0])
    except HeaderParseError:
        return run[0]
    return "".join(piece if isinstance(piece, str) else decode_text(piece, charset) for piece, charset in pieces)


def _transfer_decoded(part: Part) -> bytes:
    encoding = without_comment(part.header.value(b"content-transfer-encoding") or b"").lower()
    if encoding not in {b"base64", b"quoted-printable"}:
        return part.body
    message = EmailMessage()
    message["Content-Transfer-Encoding"] = encoding.decode("ascii")
    message.set_payload(part.body.decode("ascii", "surrogateescape"))
    decoded = message.get_payload(decode=True)
    assert isinstance(decoded, bytes), "of a single part"
    return decoded
