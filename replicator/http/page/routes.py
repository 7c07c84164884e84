"""Routes of the page for operators.

| route | answers |
|---|---|
| `GET /` | the page |
| `GET /page/NAME` | a file that the page needs |
| `GET /api/v1/events` | the node's overview, again and again: see `events` |

The page and its files are open to everybody who reaches the listener, because they are the same at every node. What the
page shows comes from the API, which asks for a token where the listener does.

Names of folders and users, and what peers say, are hostile text. The page's scripts put them in by `textContent` alone.
Should one ever do otherwise, the policy below keeps the browser from running them as scripts, and, by Trusted Types
(W3C), from reading them as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePosixPath

from replicator.http.message import Headers, ProblemError, Request, Response
from replicator.http.page.events import get_events
from replicator.http.routing import Route
from replicator.http.services import HttpServices

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
START = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Headers = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),  # for browsers that do not know `frame-ancestors`
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def _read() -> Mapping[str, Response]:
    """Return the answer for each file of the page, by its name."""
    answers = {}
    for file in files(__package__).joinpath("files").iterdir():
        kind = TYPES[PurePosixPath(file.name).suffix]
        answers[file.name] = Response(HTTPStatus.OK, file.read_bytes(), kind, HEADERS)
    return answers


FILES = _read()


async def get_page(_services: HttpServices, _request: Request) -> Response:
    """Return the page."""
    return FILES[START]


async def get_file(_services: HttpServices, request: Request) -> Response:
    """Return a file that the page needs."""
    name = request.path["name"]
    if name not in FILES:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"the page has no file {name!r}")
    return FILES[name]


PAGE_ROUTES = (
    Route("GET", "/", get_page, is_open=True),
    Route("GET", "/page/{name}", get_file, is_open=True),
    Route("GET", "/api/v1/events", get_events),
)
