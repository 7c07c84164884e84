"""The word of a passwd-file's line that disables a user: `nologin`, in any field after the hash, or `nologin=yes`.

It is Dovecot's own word, and its place there is the eighth field. So a Dovecot that reads the same file keeps the user
out as well, and the hash stays readable: `!` before it, as usermod(8) writes, would stop passwords alone, and not
access tokens or certificates.
"""

from __future__ import annotations

import re

from replicator.users.words.extra_field import with_word

WORD = "nologin"

_YES = {"", "y", "yes", "1", "true"}
_WORDS = re.compile(rf"(?:^|(?<=[:\s])){WORD}(?:=([^:\s]*))?(?=[:\s]|$)")
_REMOVED = re.compile(rf"(?:(?<=:)|\s+){WORD}(?:=[^:\s]*)?(?=[:\s]|$)")


def is_disabled(fields: str) -> bool:
    """Return True if the fields after the hash say that the user may not log in. Raises ValueError for another value.

    `nologin=no` is such a value: Dovecot takes it for the word alone.
    """
    values: list[str] = _WORDS.findall(fields)
    wrong = next((value for value in values if value.lower() not in _YES), None)
    if wrong is not None:
        raise ValueError(
            f"{WORD}: expected the word alone, or `{WORD}=yes`, not {wrong!r};"
            " until it is corrected, the user is disabled"
        )
    return bool(values)


def with_nologin(line: bytes, *, disabled: bool) -> bytes:
    """Return a line, without its end, with the word once in the eighth field, or without it. The rest stays."""
    return with_word(line, _REMOVED, WORD if disabled else None)
