"""GUIDs of mails: 16 bytes here, texts on the wire."""

from __future__ import annotations

import re
from hashlib import sha1

_HEX_DIGITS = 32
_HEX = re.compile("[0-9a-fA-F]*")


def guid_of(text: str) -> bytes:
    """Return the 16 bytes of a GUID. One that is no such number, as in a Maildir, is hashed as Dovecot does."""
    if len(text) == _HEX_DIGITS and _HEX.fullmatch(text) is not None:
        return bytes.fromhex(text)
    return sha1(text.encode(errors="surrogateescape"), usedforsecurity=False).digest()[-16:]
