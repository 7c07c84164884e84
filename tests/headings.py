"""The headings of documents, to which links lead."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@cache
def anchors(document: Path) -> frozenset[str]:
    """Return the anchors that a rendered page gives its headings: lower case, hyphens for spaces, no punctuation."""
    found = set()
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(FENCED.sub("", document.read_text("utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)
