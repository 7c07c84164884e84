"""Conversion of mailbox names between modified UTF-7 (RFC 3501 section 5.1.3) and the store's Unicode.

Decoding is strict: in modified UTF-7 a name has exactly one encoding. A name with octets above 127 is UTF-8 as a whole,
in which `&` has no special meaning (RFC 9051 section 5.1). For clients that have asked for UTF-8, every name is.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode

from replicator.mail.mailstore import canonical_name

_UNSAFE = re.compile(r"&|[^\x20-\x7e]+")
_SHOWN_OCTETS = 100  # of a name in an error: enough to find it, short enough for a line

_SHIFTED = re.compile(rb"&([^&-]*)-")  # from & to the next one at most: work in proportion to the name, in one pass


class MailboxNameError(ValueError):
    """The bytes are neither modified UTF-7 nor UTF-8. The text quotes them for people."""


def encode_name(name: str) -> bytes:
    """Return the name as modified UTF-7, not quoted."""
    return _UNSAFE.sub(_shift, name).encode("ascii")


def decode_name(encoded: bytes) -> str:
    """Return the decoded name, with INBOX in capitals. Raises MailboxNameError."""
    return canonical_name(decode_pattern(encoded))


def decode_pattern(encoded: bytes, *, utf8: bool = False) -> str:
    """Decode like `decode_name` but without INBOX in capitals: the first level of a LIST pattern may be incomplete.

    `utf8`: it is UTF-8 also if it looks like modified UTF-7.
    """
    if utf8 or not encoded.isascii():
        try:
            return encoded.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MailboxNameError(f"the mailbox name {_shown(encoded)} is not UTF-8") from error
    try:
        name = _SHIFTED.sub(_unshift, encoded).decode("utf-8")
    except (UnicodeDecodeError, binascii.Error) as error:
        raise MailboxNameError(f"the mailbox name {_shown(encoded)} is not modified UTF-7") from error
    if encode_name(name) != encoded:
        raise MailboxNameError(f"the mailbox name {_shown(encoded)} is not in the canonical form of modified UTF-7")
    return name


def _shown(encoded: bytes) -> str:
    """Return the first octets as quoted text of one line, with `?` in place of each that is not printable ASCII."""
    return '"' + "".join(chr(octet) if 0x20 <= octet <= 0x7E else "?" for octet in encoded[:_SHOWN_OCTETS]) + '"'


def _shift(unsafe: re.Match[str]) -> str:
    text = unsafe[0]
    if text == "&":
        return "&-"
    return "&" + b64encode(text.encode("utf-16-be"), b"+,").decode("ascii").rstrip("=") + "-"


def _unshift(shifted: re.Match[bytes]) -> bytes:
    if not shifted[1]:
        return b"&"
    padding = b"=" * (-len(shifted[1]) % 4)
    return b64decode(shifted[1] + padding, b"+,", validate=True).decode("utf-16-be").encode("utf-8")
