"""URLs of messages and of their parts, as CATENATE has them (RFC 4469 section 3, grammar of RFC 5092 section 11).

Only relative ones, which name messages of the session's user: RFC 4469 has absolute ones refused.

    /INBOX;UIDVALIDITY=385759045/;UID=20/;SECTION=1.MIME/;PARTIAL=0.1024
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from protocol.values import UID_MAX
from replicator.imap.wire.fetch_items import Partial
from replicator.mail.mailstore import SEPARATOR, canonical_name

# bchar = achar / ":" / "@" / "/"; achar = uchar / "&" / "="; uchar = unreserved / sub-delims-sh / pct-encoded.
# A ";" or "?" is in no name, so no octet is looked at more than twice. Dot segments are names like any others.
_ENCODED = r"(?:[A-Za-z0-9\-._~!$'()*+,&=:@/]|%[0-9A-Fa-f]{2})+"
_URL = re.compile(
    rf"(?:(?P<mailbox>{_ENCODED})(?:;UIDVALIDITY=(?P<uidvalidity>[1-9][0-9]{{0,9}}))?/)?"
    r";UID=(?P<uid>[1-9][0-9]{0,9})"
    rf"(?:/;SECTION=(?P<section>{_ENCODED}))?"
    r"(?:/;PARTIAL=(?P<origin>[0-9]{1,18})(?:\.(?P<length>[1-9][0-9]{0,17}))?)?",  # RFC 5550, URL-PARTIAL
    re.IGNORECASE,
)

MAX_URL = 8192  # octets: the longest name of a folder with each octet encoded, and a section with many header fields
URL_SHOWN = 256  # octets of a URL that an answer repeats; any of them may be encoded
REASON_SHOWN = 256  # characters of the reason why a URL is refused

_ALL = 10**18  # octets: more than any message has

_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_UNSAFE = re.compile(rb"[^\x20-\x5b\x5e-\x7e]")  # beyond printable ASCII, and "]", which would end a response code


class MessageUrlError(ValueError):
    """The text is no URL of a message in the session's folders. The message says why."""


@dataclass(frozen=True, slots=True)
class MessageUrl:
    """A message, or the part of it that `section` and `partial` select. `section` is text of the grammar of FETCH."""

    mailbox: str
    uid: int
    uidvalidity: int | None = None
    section: str = ""
    partial: Partial | None = None

    @classmethod
    def parse(cls, url: bytes, selected: str | None) -> MessageUrl:
        """Return the meaning of a URL where this mailbox is selected. Raises MessageUrlError."""
        text = url.decode("latin-1")
        if text.startswith("//") or re.match(r"[a-z][a-z0-9+.\-]*:", text, re.IGNORECASE):
            raise MessageUrlError("a URL must be relative, such as /INBOX/;UID=1, and name a message of yours")
        found = _URL.fullmatch(text)
        if found is None:
            raise MessageUrlError("this is not the URL of a message, such as /INBOX/;UID=1/;SECTION=1.2")
        section = _decoded(found["section"] or "", "latin-1")
        if _CONTROLS.search(section):
            raise MessageUrlError("a section has no control characters")
        uidvalidity = None if found["uidvalidity"] is None else _number(found["uidvalidity"])
        mailbox = _absolute(found["mailbox"], selected)
        return cls(mailbox, _number(found["uid"]), uidvalidity, section, _partial(found["origin"], found["length"]))


def printed_url(url: bytes) -> str:
    """Return the URL, or its beginning, as a response code can hold it (RFC 4469 section 5, url-resp-text)."""
    shown = _UNSAFE.sub(lambda unsafe: b"%%%02X" % unsafe[0][0], url[:URL_SHOWN]).decode("ascii")
    return shown if len(url) <= URL_SHOWN else f"{shown}..."


def printed_reason(error: Exception) -> str:
    """Return the error's text, or its beginning, since it may quote a long part of a URL."""
    text = str(error)
    return text if len(text) <= REASON_SHOWN else f"{text[:REASON_SHOWN]}..."


def _absolute(encoded: str | None, selected: str | None) -> str:
    """Return the mailbox of a path; what does not begin with `/` is relative to the selected one (RFC 4469 section 3).

    Without a mailbox, it is the selected one itself.
    """
    if encoded is not None and encoded.startswith("/"):
        name = _decoded(encoded[1:], "utf-8")
    elif selected is None:
        raise MessageUrlError("the URL is relative to a mailbox, and none is selected")
    elif encoded is None:
        name = selected
    else:
        parent, separator, _ = selected.rpartition(SEPARATOR)
        name = parent + separator + _decoded(encoded, "utf-8")
    if not name:
        raise MessageUrlError("the URL names no mailbox")
    return canonical_name(name)


def _decoded(encoded: str, charset: str) -> str:
    try:
        return unquote_to_bytes(encoded).decode(charset)
    except UnicodeDecodeError as error:
        raise MessageUrlError("the URL is not percent-encoded UTF-8") from error


def _number(digits: str) -> int:
    if (number := int(digits)) > UID_MAX:
        raise MessageUrlError(f"{digits} is more than {UID_MAX}, the largest number of a message")
    return number


def _partial(origin: str | None, length: str | None) -> Partial | None:
    if origin is None:
        return None
    return Partial(int(origin), int(length) if length else _ALL)
