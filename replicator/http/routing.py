"""Routing from a request's head to its handler: checks path, method and query, in that order.

It decides before any of the body is read, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from replicator.http.message import EventStream, Head, PieceStream, ProblemError, Request, Response

Services = TypeVar("Services")

QUERY_FIELDS_MAX = 16  # no route has more than a handful


@dataclass(frozen=True, slots=True)
class Route(Generic[Services]):
    """One method on one path. Segments `{name}` of `path` match any one segment.

    `body_type` is the media type that the body must have; None: a body is refused. A route with a body never accepts a
    type that web pages may send to another origin without a preflight request, so no page can write here through an
    operator's browser (there is no CORS). `is_open`: for everybody, whatever the listener's rules. `is_for_proxies`:
    for proxies of mail clients, whose tokens are good for nothing else. `is_private`: it tells more of users than
    tokens for reading are good for. `needed`: those of `query` that must be there. `answer` and `takes` are the types
    of the JSON in answer and body, for `openapi`; None: it is no JSON. `also`: codes above 299 of such an answer.
    """

    method: str
    path: str
    handler: Callable[[Services, Request], Awaitable[Response | EventStream | PieceStream]]
    query: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    body_type: str | None = None
    is_open: bool = False
    is_for_proxies: bool = False
    is_private: bool = False
    answer: object = None
    also: tuple[HTTPStatus, ...] = ()
    takes: object = None

    def match(self, segments: Sequence[str]) -> Mapping[str, str] | None:
        """Return the values of the named segments, or None if the path does not match."""
        pattern = self.path.split("/")
        if len(pattern) != len(segments):
            return None
        values = {}
        for expected, segment in zip(pattern, segments, strict=True):
            if expected.startswith("{"):
                values[expected[1:-1]] = segment
            elif expected != segment:
                return None
        return values


def find_route(routes: Sequence[Route[Services]], head: Head) -> tuple[Route[Services], Request]:
    """Return the route for this head, and the request without its body. Raises ProblemError."""
    url = request_url(head)
    segments = [_decode(segment) for segment in url.path.split("/")]
    matching = [(route, values) for route in routes if (values := route.match(segments)) is not None]
    if not matching:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"there is nothing at {url.path!r}")
    method = "GET" if head.method == "HEAD" else head.method
    for route, values in matching:
        if route.method == method:
            _check_body(route.body_type, head)
            return route, Request(path=values, query=_parse_query(url.query, route), headers=head.headers)
    methods = [route.method for route, _ in matching]
    allowed = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
    raise ProblemError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"{head.method} is not allowed at {url.path!r}, only {allowed}",
        (("Allow", allowed),),
    )


def request_url(head: Head) -> SplitResult:
    """Return the target as a URL. Its host is that of an absolute target (RFC 9112 section 3.2.2), else of `Host`.

    Raises ProblemError.
    """
    target = head.target
    if target.startswith("/"):
        target = f"http://{head.headers.get('host', '')}{target}"
    try:
        url = urlsplit(target)
        _ = url.port  # raises if it is not a number
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"request target or Host: {error}") from None
    if url.scheme not in {"http", "https"}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"the request target {head.target!r} is not a path")
    return url


def _decode(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"{segment!r} is not percent-encoded UTF-8") from None


def _parse_query(query: str, route: Route[Services]) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {error}") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in route.query:
            accepted = ", ".join(sorted(route.query)) or "none"
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name!r} is unknown here; known: {accepted}")
        if name in values:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name!r} is given twice")
        values[name] = value
    if missing := route.needed - values.keys():
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {min(missing)} is missing")
    return values


def _check_body(body_type: str | None, head: Head) -> None:
    if body_type is None:
        if head.has_body:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{head.method} takes no body here")
        return
    given = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != body_type:
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must have Content-Type {body_type}, not {given!r}"
        )
