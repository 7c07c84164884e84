"""The comparator i;unicode-casemap (RFC 5051), by which SEARCH, SORT and THREAD compare text (RFC 5255 section 4.2).

Two texts are equal if their mapped forms are, a text contains another one if its mapped form does, and texts are in the
order of their mapped forms.
"""

from __future__ import annotations

import unicodedata

_CACHED = 20_000  # characters; mail in most scripts has fewer


class _Mapping(dict[int, str]):
    """A cache of the mapped form of each character that is not ASCII, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        """Map a character: titlecase, then decomposed (RFC 5051 section 2)."""
        char = chr(code)
        title = char.title()
        # A title of several characters is none of UnicodeData.txt, to which the RFC refers.
        mapped = unicodedata.normalize("NFKD", title if len(title) == 1 else char)
        if len(self) >= _CACHED:
            self.clear()
        self[code] = mapped
        return mapped


_MAPPING = _Mapping()


def casemap(text: str) -> str:
    """Return the form of a text in which it is compared. Maps each character alone, so texts may be cut anywhere."""
    return text.upper() if text.isascii() else text.translate(_MAPPING)
