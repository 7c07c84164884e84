"""Blocks of code in the documents, which tests run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENTS = Path(__file__).parents[3] / "docs"


def blocks(page: str, heading: str, kind: str = "") -> list[str]:
    """Return the blocks of code of this kind in a section of a page."""
    section = (DOCUMENTS / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def block(page: str, heading: str, kind: str = "") -> str:
    """Return the first of these blocks."""
    return blocks(page, heading, kind)[0]


def put(text: str, *changes: tuple[str, str]) -> str:
    """Replace what the page says by what holds here."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text
