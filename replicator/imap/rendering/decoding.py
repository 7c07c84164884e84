"""Message text as people read it, for SEARCH: charsets, encoded words, transfer encodings, dates.

Nothing here raises: undecodable text stays as it is, an octet outside its charset becomes U+FFFD.
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

# Mail is not written in Python's other codecs, some of which take quadratic time (punycode) or do not decode text.
# US-ASCII is the default and is often declared wrongly, so text in it is decoded as if no charset were named.
_CODECS = frozenset(aliases.values()) - {"ascii"}

_MAX_CHARSET = 64  # characters; RFC 2978 section 2.3 allows 40
_MAX_DATE = 200  # octets; RFC 5322 section 3.3 needs fifty, comments included

# RFC 2047 section 2, with spaces allowed in the text because senders leave them there. Adjacent words are decoded
# together, as a character may be split between two; at most a hundred, as the decoder takes quadratic time.
_WORD = r"=\?[^?\s]{1,64}\?[bBqQ]\?[^?\n]*+\?="
_WORDS = re.compile(rf"{_WORD}(?>(?:[ \t]*+{_WORD}){{0,99}})")
_FOLD = re.compile(r"\r?\n(?=[ \t])")


def header_text(header: Header) -> str:
    """Return the whole header, one field per line, unfolded and decoded."""
    return _decode_words(_FOLD.sub("", decode_text(header.raw[header.start : header.fields_end], None)))


def value_text(value: bytes) -> str:
    """Return an unfolded header value, decoded."""
    return _decode_words(decode_text(value, None))


def part_text(part: Part) -> str:
    """Return the content of a text part, decoded."""
    charset = part.content_type.decoded_parameter(b"charset")
    return decode_text(_transfer_decoded(part), None if charset is None else charset.decode("latin-1"))


def decode_text(text: bytes, charset: str | None) -> str:
    """Decode from a charset. If it is None or unknown, decode as UTF-8 if valid, else as ISO 8859-1."""
    codec = None if charset is None else _codec(charset)
    if codec is not None:
        try:
            return text.decode(codec, "replace")
        except (LookupError, UnicodeError):  # not a text codec, or truncated UTF-16
            pass
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def sent_date(header: Header) -> dt.date | None:
    """Return the sender's day in the Date field, disregarding time and timezone (RFC 3501 section 6.4.4)."""
    value = header.value(b"date")
    parsed = None if value is None else parsedate(value[:_MAX_DATE].decode("latin-1"))
    if parsed is None:
        return None
    try:
        return dt.date(*parsed[:3])
    except (ValueError, OverflowError):  # the 31st of February; a year beyond 9999
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
