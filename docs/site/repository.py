"""A hook of mkdocs for what lies outside of `docs`: README.md, CHANGELOG.md, and the files that pages link to.

Links in the documents lead from file to file of the repository. Here those that leave `docs` are turned to where the
site has the same file, and files that are no pages are copied. A link to something that is not there stays as it is, so
that mkdocs refuses it. A link whose text is a document's file shows the document's title, and the contents above the
first section are left out: the site has them beside the page. So are Mermaid's diagrams, whose program would be
another host's; the table below each says the same.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Documents outside of `docs` -> their pages."""

SECTIONS = {
    "Configuration keys": "configuration.html#keys-section-by-section",
    "Metrics": "monitoring.html#the-node-itself",
}
"""Sections of other pages that the navigation has under `Reference`, too."""

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)((?:#[^)\s]+)?\))")
_NAMED = re.compile(r"\[([\w-]+\.md)\](?=\((?:docs/|\.\./)?\1\))")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)
_CONTENTS = re.compile(r"^(?:- \[.+\]\(#\S+\)\n)+(?=\n## )", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the files of the repository that pages link to."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    for document, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(root / document)))
    for text in (*(root / document for document in PAGES), *docs.glob("*.md")):
        for link, _ in _LINK.findall(text.read_text("utf-8")):
            path = posixpath.normpath(posixpath.join(text.parent.relative_to(root).as_posix(), link))
            if _is_copied(root, path) and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(root / path)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG001
    """Add links to sections of pages that stand elsewhere in the navigation."""
    [reference] = (item for item in nav.items if isinstance(item, Section) and item.title == "Reference")
    reference.children[1:1] = [Link(title, url) for title, url in SECTIONS.items()]
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn the links that leave `docs`, or come from outside of it."""
    root = Path(config.config_file_path).parent
    source = Path(page.file.abs_src_path or "").parent.relative_to(root).as_posix()

    def turned(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(source, match[1]))
        if path in PAGES:
            path = PAGES[path]
        elif path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif not _is_copied(root, path):
            return match[0]
        return f"]({path}{match[2]}"

    def titled(match: re.Match[str]) -> str:
        documents = [each for each in (root / match[1], root / "docs" / match[1]) if each.is_file()]
        titles = [_TITLE.search(document.read_text("utf-8")) for document in documents]
        return f"[{titles[0][1]}]" if titles and titles[0] else match[0]

    return _LINK.sub(turned, _NAMED.sub(titled, _DIAGRAM.sub("", _CONTENTS.sub("", markdown, count=1))))


def _is_copied(root: Path, path: str) -> bool:
    return not path.startswith(("docs/", "../")) and path not in PAGES and (root / path).is_file()
