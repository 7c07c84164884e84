"""References in documents and docstrings, which must lead to existing files and sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.headings import FENCED, anchors

ROOT = Path(__file__).parents[1]
SOURCES = ("benchmarks", "docs", "master_election", "protocol", "replicator", "resync", "spark", "tests")
CODE = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".lark")]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
_FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|lark))`")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def test_named_files_exist() -> None:
    """A path may begin at any folder, as in `store/log/apply.py`."""
    files = [f"/{path.relative_to(ROOT)}" for path in CODE]
    for text in (*CODE, *DOCUMENTS):
        for name in _FILE.findall(text.read_text("utf-8")):
            assert any(file.endswith(f"/{name}") for file in files), f"{text} names `{name}`"


def test_named_tests_exist() -> None:
    """A test is named by its file and function, as in `tests/test_documents.py::test_named_tests_exist`."""
    named = {text: _TEST.findall(text.read_text("utf-8")) for text in DOCUMENTS}
    assert named[ROOT / "docs" / "security.md"]
    for text, tests in named.items():
        for file, function in tests:
            path = ROOT / file
            assert path.is_file(), f"{text} names a test in {file}"
            assert f"def {function}(" in path.read_text("utf-8"), f"{text} names {file}::{function}"


def test_map_of_tasks_names_all_modules_that_start_tasks() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tasks = page.partition("### Tasks\n")[2].partition("\n## ")[0]
    starts = re.compile(r"nursery\.start(?:_soon)?\(")
    nodes = [path for path in CODE if ROOT / "replicator" in path.parents and "cli" not in path.parts]
    missing = [path.name for path in nodes if starts.search(path.read_text("utf-8")) and path.name not in tasks]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_have_targets(document: Path) -> None:
    for link, anchor in _LINK.findall(FENCED.sub("", document.read_text("utf-8"))):
        target = document.parent.joinpath(link).resolve() if link else document
        assert target.exists(), f"{document} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{document} links to {link}#{anchor}"


def test_anchors_match_the_rendered_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A mail's way\n\n## `status`: 2 columns\n\n```sh\n# none\n```\n\n## Same\n\n## Same\n", "utf-8")
    assert anchors(page) == {"a-mails-way", "status-2-columns", "same", "same-1"}
