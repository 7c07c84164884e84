"""Message text as people read it, for SEARCH: charsets, encoded words, transfer encodings, dates.

Nothing here raises: undecodable text stays as it is, an octet outside its charset becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import datetime as dt
import re
import sys
from collections.abc import Iterator, Sequence
from email.errors import HeaderParseError
from email.header import decode_header
from email.utils import parsedate_tz
from encodings import normalize_encoding
from encodings.aliases import aliases

from protocol.units import KIB
from replicator.imap.text.address_lists import Address
from replicator.imap.text.transfer_encodings import DECODERS, transfer_encoding
from replicator.mime.header import Header
from replicator.mime.structure import Part

# Mail is not written in Python's other codecs, some of which take quadratic time (punycode) or do not decode text.
# US-ASCII is the default and is often declared wrongly, so text in it is decoded as if no charset were named.
_CODECS = frozenset(aliases.values()) - {"ascii"}

_MARKS = {"utf_16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf_32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)}
"""Codecs whose texts may begin with a mark of their byte order."""

_PIECE_BYTES = 64 * KIB

_MAX_CHARSET = 64  # characters; RFC 2978 section 2.3 allows 40
_DAY_S = 86_400
_MAX_DATE = 200  # octets; RFC 5322 section 3.3 needs fifty, comments included

# RFC 2047 section 2, with spaces allowed in the text because senders leave them there. Adjacent words are decoded
# together, as a character may be split between two; at most a hundred, as the decoder takes quadratic time.
_WORD = r"=\?[^?\s]{1,64}\?[bBqQ]\?[^?\n]*+\?="
_WORDS = re.compile(rf"{_WORD}(?>(?:[ \t]*+{_WORD}){{0,99}})")
_LAST_UTF8 = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z")  # a last character of several octets, or a part of it
_FOLD = re.compile(r"\r?\n(?=[ \t])")


def header_text(header: Header) -> str:
    """Return the whole header, one field per line, unfolded and decoded."""
    return _decode_words(_FOLD.sub("", decode_text(header.raw[header.start : header.fields_end], None)))


def value_text(value: bytes) -> str:
    """Return an unfolded header value, decoded."""
    return _decode_words(decode_text(value, None))


def address_text(address: Address) -> str:
    """Return an address as `name <local@host>`, decoded. The name of a group stands alone."""
    where = (address.mailbox or b"") + (b"" if address.host is None else b"@" + address.host)
    return value_text(where if address.name is None else address.name + b" <" + where + b">")


def part_text(part: Part) -> list[str]:
    """Return the content of a text part, decoded, in pieces of which each takes a millisecond or two.

    Python lets other threads go on between two calls of its own functions, but not within one.
    """
    return _decoded([*_transfer_decoded(part)], _charset(part))


def beginning_text(part: Part, content: bytes, *, is_cut: bool) -> str:
    """Return the beginning of a text part, decoded. If `is_cut`, its last character may lack octets."""
    decoder = DECODERS.get(transfer_encoding(part), DECODERS[b""])()
    octets = decoder.write(content) + decoder.finish()
    return decode_text(_LAST_UTF8.sub(b"", octets) if is_cut else octets, _charset(part))


def _charset(part: Part) -> str | None:
    charset = part.content_type.decoded_parameter(b"charset")
    return None if charset is None else charset.decode("latin-1")


def decode_text(text: bytes, charset: str | None) -> str:
    """Decode from a charset. If it is None or unknown, decode as UTF-8 if valid, else as ISO 8859-1."""
    return "".join(_decoded([text], charset))


def _decoded(pieces: Sequence[bytes], charset: str | None) -> list[str]:
    """Decode like `decode_text`. A character may be split between two pieces."""
    codec = None if charset is None else _codec(charset)
    if codec is not None:
        try:
            return _by_codec(pieces, codec, "replace")
        except (LookupError, UnicodeError):  # not a text codec, or truncated UTF-16
            pass
    try:
        return _by_codec(pieces, "utf-8", "strict")
    except UnicodeDecodeError:
        return _by_codec(pieces, "latin-1", "strict")


def _by_codec(pieces: Sequence[bytes], codec: str, errors: str) -> list[str]:
    if len(pieces) == 1:
        return [pieces[0].decode(codec, errors)]
    b"x".decode(codec, errors)  # raises LookupError for a codec that is not one of text
    if codec in _MARKS and not next(filter(None, pieces), b"").startswith(_MARKS[codec]):
        codec = f"{codec}_{sys.byteorder[0]}e"  # as where the text is decoded at once
    decoder = codecs.getincrementaldecoder(codec)(errors)
    return [*map(decoder.decode, pieces), decoder.decode(b"", final=True)]


def sent_date(header: Header) -> dt.date | None:
    """Return the sender's day in the Date field, disregarding time and timezone (RFC 3501 section 6.4.4)."""
    found = _sent(header)
    return None if found is None else found[0]


def sent_ms(header: Header) -> int | None:
    """Return the time in the Date field, in milliseconds since the epoch (RFC 5256 section 2.2).

    An invalid time is midnight, an invalid time zone UTC. None if there is no valid date.
    """
    found = _sent(header)
    if found is None:
        return None
    date, (hour, minute, second), zone_s = found
    try:
        time = dt.time(hour, minute, min(second, 59))  # a leap second
    except (ValueError, OverflowError):
        time = dt.time()
    moment = dt.datetime.combine(date, time, dt.UTC)
    return (int(moment.timestamp()) - (zone_s if abs(zone_s) < _DAY_S else 0)) * 1000


def _sent(header: Header) -> tuple[dt.date, tuple[int, int, int], int] | None:
    """Return the day, the time of day as it stands there, and the zone in seconds of the Date field."""
    value = header.value(b"date")
    parsed = None if value is None else parsedate_tz(value[:_MAX_DATE].decode("latin-1"))
    if parsed is None:
        return None
    try:
        return dt.date(*parsed[:3]), parsed[3:6], parsed[9] or 0
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


def _transfer_decoded(part: Part) -> Iterator[bytes]:
    """Yield the content without its transfer encoding, in pieces; as it is if the encoding is unknown."""
    raw, start, end = part.header.raw, part.header.end, part.end
    decoder = DECODERS.get(transfer_encoding(part), DECODERS[b""])()
    for at in range(start, end, _PIECE_BYTES):
        yield decoder.write(raw[at : min(at + _PIECE_BYTES, end)])
    yield decoder.finish()
