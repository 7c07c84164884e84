"""Texts that others have chosen, as one word of a line."""

from __future__ import annotations

import json
import re

TEXT_MAX = 200
"""Characters of a text that are shown."""

_WORD = re.compile(r"[!#-'*-~]+")  # of ASCII, without spaces, quotation marks and round brackets


def word(text: str, *, without: str = "") -> str:
    """Return the text, in quotation marks unless it is a word that has none of the characters of `without`."""
    if len(text) <= TEXT_MAX and _WORD.fullmatch(text) and not set(text) & set(without):
        return text
    return json.dumps(cut(text), ensure_ascii=False)


def cut(text: str) -> str:
    """Return at most `TEXT_MAX` characters of the text, and three dots if there are more."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
