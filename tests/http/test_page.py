"""The page's files as the node serves them. `tests/end_to_end/page` has the page in a browser."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Tokens
from tests.http.conversation import Answer, conversation

FILES = {file.name: file.read_text("utf-8") for file in files("replicator.http.page").joinpath("files").iterdir()}
FETCHED = re.compile(r"(?:src|href)=\"(/[^\"]*)\"|from \"\./([^\"]*)\"")
READ_AS_HTML = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\b|new Function"
)


async def get(services: HttpServices, path: str, *headers: str, access: Access | None = None) -> Answer:
    async with conversation(HttpServer(services, access)) as talk:
        lines = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost:1080", *headers, "", ""])
        return await talk.ask(lines.encode())


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
async def test_files_come_with_a_policy_that_runs_nothing_else(services: HttpServices, path: str) -> None:
    answer = await get(services, path)
    assert answer.status == 200
    assert answer.body.decode() == FILES[path.removeprefix("/page/").removeprefix("/") or "index.html"]
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[:5] == [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self'",
    ]  # fmt: skip
    assert {"frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} <= set(policy)
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_files_have_their_types(services: HttpServices) -> None:
    for path, kind in (("/", "text/html"), ("/page/page.css", "text/css"), ("/page/page.js", "text/javascript")):
        assert (await get(services, path)).headers["content-type"] == f"{kind}; charset=utf-8"
    assert (await get(services, "/page/icon.svg")).headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize("path", ["/page/none.js", "/page/..%2Froutes.py", "/page/", "/page"])
async def test_there_is_nothing_but_the_files(services: HttpServices, path: str) -> None:
    assert (await get(services, path)).status == 404


async def test_page_is_open_to_strangers_and_what_it_shows_is_not(services: HttpServices, tmp_path: Path) -> None:
    access = Access(Tokens(tmp_path / "http.tokens"))
    for path, status in (("/", 200), ("/page/page.js", 200), ("/api/v1/events", 401), ("/api/v1/mailboxes", 401)):
        assert (path, (await get(services, path, access=access)).status) == (path, status)


async def test_page_of_another_site_cannot_listen(services: HttpServices) -> None:
    for header in ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site"):
        assert (await get(services, "/api/v1/events", header)).status == 403


def test_page_names_only_files_that_there_are() -> None:
    named = {path or f"/page/{module}" for text in FILES.values() for path, module in FETCHED.findall(text)}
    assert named <= {f"/page/{name}" for name in FILES}


def test_page_has_no_inline_scripts_and_styles_which_the_policy_forbids() -> None:
    page = FILES["index.html"]
    assert not re.search(r"<style|style=|\son\w+=|javascript:|<script(?![^>]* src=)", page)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_never_read_texts_as_html(name: str) -> None:
    assert not READ_AS_HTML.search(FILES[name])
