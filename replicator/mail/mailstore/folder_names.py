"""Names of folders: how they are spelled, and what a name may be.

Names are Unicode (the IMAP door translates modified UTF-7), with levels separated by `/`. INBOX is always spelled in
capitals here.
"""

from __future__ import annotations

import unicodedata

from replicator.errors import InvalidNameError

INBOX = "INBOX"
SEPARATOR = "/"
MAX_NAME_BYTES = 1000  # of a folder's full name, which is shown in lines of the peer protocol, of IMAP and of logs
MAX_LEVELS = 32


def canonical_name(name: str) -> str:
    """Return the name with INBOX in capitals, also as the first level of a name (RFC 9051 section 5.1)."""
    first, separator, rest = name.partition(SEPARATOR)
    return INBOX + separator + rest if first.upper() == INBOX else name


def check_folder_name(name: str) -> None:
    """Raise InvalidNameError for a name that no folder can have."""
    levels = name.split(SEPARATOR)
    if not all(levels):
        raise InvalidNameError("a folder name has no empty levels")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in name):
        raise InvalidNameError("a folder name has no control characters")
    if len(levels) > MAX_LEVELS or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidNameError(f"a folder name has at most {MAX_LEVELS} levels and {MAX_NAME_BYTES} bytes")
    if name != INBOX and levels[0].upper() == INBOX and levels[0] != INBOX:
        raise InvalidNameError("INBOX is spelled in capitals")


def check_new_name(name: str) -> None:
    """Raise InvalidNameError for a new name that is not Net-Unicode (RFC 6855 section 3, RFC 9051 section 5.1).

    Folders that have such a name already stay as they are.
    """
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidNameError("a new folder's name must be in Unicode's normal form C: letters with their accents")
    if any(unicodedata.category(character) in {"Zl", "Zp"} for character in name):
        raise InvalidNameError("a folder name has no line or paragraph separators")
