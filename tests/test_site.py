"""The documents as a site: what `make docs` builds, and what it refuses to build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from markdown_it import MarkdownIt

from tests.browser import browser, needs_chromium

ROOT = Path(__file__).parents[1]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
SOURCES = ("docs", "deploy", "monitoring", "mkdocs.yml", "README.md", "CHANGELOG.md", "LICENSE")
ELSEWHERE = {"README.md": "index.html", "CHANGELOG.md": "changelog.html"}
DOCUMENTS = [*(ROOT / name for name in ELSEWHERE), *sorted(ROOT.glob("docs/*.md"))]

pytestmark = pytest.mark.skipif(
    not MKDOCS.exists(), reason="the site of the documents is left out: `make docs` sets up what builds it"
)
needs_pages = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)

_TAG = re.compile(r"<(li|table|tr|td|pre|h[1-6]|code|em|strong)\b")
_OUTSIDE = re.compile(r"""href="(https?://[^"]*)""")
_ASSET = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc="?([^"\s>]+)|<link\b[^>]*?\bhref="?([^"\s>]+)""")
_FOOTNOTE = re.compile(r"\[\^\w+\](?::.*(?:\n {4}.*)*)?")
_CONTENTS = re.compile(r"^(?:- \[.+\]\(#\S+\)\n)+(?=\n## )", re.MULTILINE)
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)
_LINE_NUMBER = re.compile(r'<a id="__codelineno[^>]*></a>')


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of the sources in `root`."""
    line: list[str | Path] = [MKDOCS, "build", "--config-file", root / "mkdocs.yml", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    built = build(ROOT, directory)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def article(site: Path, document: Path) -> str:
    """Return what the site shows of a document."""
    page = (site / ELSEWHERE.get(document.name, f"{document.stem}.html")).read_text("utf-8")
    return _LINE_NUMBER.sub("", page.partition("<article")[2].partition("</article>")[0])


@needs_pages
def test_a_page_shows_what_its_document_shows_elsewhere(site: Path, document: Path) -> None:
    """Python's Markdown has rules of its own for lists and fences; CommonMark is what repositories show."""
    text = _CONTENTS.sub("", document.read_text("utf-8"), count=1)  # which stand beside the page
    text = _DIAGRAM.sub("", text)  # tables say the same
    text = _FOOTNOTE.sub("", text)  # CommonMark has none
    expected = MarkdownIt("commonmark").enable("table").render(text)
    shown = re.sub(r'<div class="footnote">.*?</div>', "", article(site, document), flags=re.DOTALL)
    assert Counter(_TAG.findall(shown)) == Counter(_TAG.findall(expected))
    assert sorted(_OUTSIDE.findall(shown)) == sorted(_OUTSIDE.findall(expected))


def test_pages_take_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(DOCUMENTS)
    for page in pages:
        assets = [one or other for one, other in _ASSET.findall(page.read_text("utf-8"))]
        assert assets
        for asset in assets:
            assert "//" not in asset, f"{page.name} takes {asset}"
            assert (page.parent / asset.partition("?")[0]).exists() or asset.startswith("/"), f"{page.name}: {asset}"


def test_links_of_the_navigation_have_targets(site: Path) -> None:
    """Mkdocs checks the links of pages, and not these."""
    page = (site / "timing.html").read_text("utf-8")
    links = re.findall(r'href="?(\w[\w.-]*)#([\w-]+)"? class="?md-nav__link', page)
    assert len(links) == 2
    for target, anchor in links:
        assert f'id="{anchor}"' in (site / target).read_text("utf-8"), f"{target}#{anchor}"


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    broken = ("no-page.md", "design.md#no-section", "../no-file.toml", "#no-heading-here")
    with (tmp_path / "docs" / "concepts.md").open("a", encoding="utf-8") as page:
        page.write("".join(f"\n[one]({link})\n" for link in broken))
    with (tmp_path / "README.md").open("a", encoding="utf-8") as page:
        page.write("\n[one](docs/design.md#no-part)\n")
    (tmp_path / "docs" / "forgotten.md").write_text("# A page that is not in the navigation\n", "utf-8")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    for name in (*broken, "design.md#no-part", "forgotten.md"):
        assert name in built.stdout + built.stderr


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site on loopback."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_a_reader_searches_and_nobody_else_is_asked(address: str, *, dark: bool) -> None:
    async with browser() as running:
        tab = await running.tab()
        await tab.look(dark=dark)
        await tab.open(f"{address}concepts.html")
        brightness = await tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] * 1")
        assert isinstance(brightness, int)
        assert (brightness < 128) is dark
        await tab.evaluate("document.querySelector('label[for=__search]').click()")
        await tab.until("document.activeElement.matches('.md-search__input')")
        await tab.type("undelete")
        await tab.until("document.querySelector('.md-search-result__link[href*=backup-and-recovery]') !== null")
        assert all(url.startswith((address, "data:", "blob:")) for url in tab.requests), tab.requests
        assert not tab.complaints
