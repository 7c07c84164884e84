"""The eighth field of a passwd-file's line, Dovecot's place for words, and how a word of it is changed."""

from __future__ import annotations

import re

EXTRA_FIELD = 7
"""Index of the field in which Dovecot looks for words: after name, hash, uid, gid, gecos, home and shell."""


def with_word(line: bytes, old: re.Pattern[str], word: str | None) -> bytes:
    """Return a line, without its end, with the word once in the eighth field; None: without it. The rest stays.

    `old`: matches the word, with the spaces before it, in all fields after the hash.
    """
    fields = line.decode("utf-8", "surrogateescape").split(":", 2)
    fields[2:] = old.sub("", ":" + fields[2])[1:].split(":", EXTRA_FIELD - 2) if len(fields) > 2 else []
    if word is not None:
        fields += [""] * (EXTRA_FIELD + 1 - len(fields))
        fields[EXTRA_FIELD] = f"{fields[EXTRA_FIELD]} {word}" if fields[EXTRA_FIELD] else word
    return ":".join(fields).encode("utf-8", "surrogateescape")
