"""Documents and docstrings name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("benchmarks", "master_election", "protocol", "replicator", "resync", "spark", "tests")
CODE = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".lark")]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
_FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|lark))`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_files_that_texts_name_exist() -> None:
    """By a path from any folder on, as `store/log/apply.py`."""
    files = [f"/{path.relative_to(ROOT)}" for path in CODE]
    for text in (*CODE, *DOCUMENTS):
        for name in _FILE.findall(text.read_text("utf-8")):
            assert any(file.endswith(f"/{name}") for file in files), f"{text} names `{name}`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for link in _LINK.findall(document.read_text("utf-8")):
        assert document.parent.joinpath(link).exists(), f"{document} links to {link}"
