"""The word of a passwd-file's line that disables a user: `nologin`, in any field after the hash, or `nologin=yes`.

It is Dovecot's own word, and its place there is the eighth field. So a Dovecot that reads the same file keeps the user
out as well, and the hash stays readable: `!` before it, as usermod(8) writes, would stop passwords alone, and not
access tokens or certificates.
"""

from __future__ import annotations

import re

WORD = "nologin"
EXTRA_FIELD = 7
"""Index of the field in which Dovecot looks for words: after name, hash, uid, gid, gecos, home and shell."""

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
    fields = line.decode("utf-8", "surrogateescape").split(":", 2)
    fields[2:] = _REMOVED.sub("", ":" + fields[2])[1:].split(":", EXTRA_FIELD - 2) if len(fields) > 2 else []
    if disabled:
        fields += [""] * (EXTRA_FIELD + 1 - len(fields))
        fields[EXTRA_FIELD] = f"{fields[EXTRA_FIELD]} {WORD}" if fields[EXTRA_FIELD] else WORD
    return ":".join(fields).encode("utf-8", "surrogateescape")
