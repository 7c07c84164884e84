"""Names of folders, from how other servers write them to how a node does."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from replicator.imap.wire.mailbox_names import MailboxNameError, decode_name
from replicator.mail.mailstore import INBOX, SEPARATOR, canonical_name


def folder_name(levels: Sequence[bytes]) -> str:
    """Return the name of a folder from its levels, each in modified UTF-7.

    Characters that no node has in a level become `_`, and so does an empty level.
    """
    return canonical_name(SEPARATOR.join(_tidied(_decoded(level)) for level in levels))


def below(parent: str, name: str) -> str:
    """Return the name that a folder of a source gets when its mail is imported into `parent`: INBOX is that itself."""
    if name == INBOX:
        return parent
    return name if parent == INBOX else f"{parent}{SEPARATOR}{name}"


def _decoded(level: bytes) -> str:
    try:
        return decode_name(level)
    except MailboxNameError:
        # Dovecot can be configured to write UTF-8, and some other software writes names unchanged.
        return level.decode("utf-8", "replace")


def _tidied(level: str) -> str:
    return "".join("_" if _is_foreign(character) else character for character in level) or "_"


def _is_foreign(character: str) -> bool:
    return character == SEPARATOR or unicodedata.category(character) in {"Cc", "Cs"}
