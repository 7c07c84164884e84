"""The rights of clients at a listener, decided from a request's head and its route before any of its body is read.

A listener is of one kind:

- the node's own socket, a file in its data directory: who can open it is the node's user, or root, and may do
  everything;
- TCP with tokens: everything but an open route needs a token (RFC 6750) of a role that may do it;
- TCP on loopback without tokens: everybody on this machine may do everything.

By TCP, a web page gets nothing but open routes. Browsers send on what pages of any origin ask of loopback, but they say
whose page it is (`Origin`, `Sec-Fetch-Site`), and under which name it reaches the node (`Host`).
"""

from __future__ import annotations

from http import HTTPStatus

from replicator.http.message import Caller, Head, ProblemError
from replicator.http.routing import Route, Services, request_url
from replicator.http.tokens import Role, Tokens
from replicator.runtime.addresses import is_loopback

SCHEME = "bearer"
READING = frozenset({"GET", "HEAD"})
OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` (W3C Fetch Metadata, section 2.4) for pages of this node, and for no page at all."""


class Access:
    """The rules of one listener: the node's own socket (`by_own_socket`), or TCP, with `tokens` or without."""

    def __init__(self, tokens: Tokens | None = None, *, by_own_socket: bool = False) -> None:
        self._tokens = tokens
        self._by_own_socket = by_own_socket

    def admit(self, head: Head, route: Route[Services]) -> Caller:
        """Return who asks, if the request is allowed. Raises ProblemError."""
        if not route.is_open:
            _check_page(head)
        if self._by_own_socket:
            return Caller.OPERATOR
        if self._tokens is None:
            _check_host(head)
            return Caller.OPERATOR
        if "authorization" not in head.headers and route.is_open:
            return Caller.STRANGER
        _check_token(self._tokens, head, route)
        return Caller.HOLDER


def needed_role(method: str, route: Route[Services]) -> Role:
    """Return the role that a token needs here; one with the role `operate` may do everything."""
    if route.is_for_proxies:
        return Role.PROXY
    return Role.READ if method in READING and not route.is_private else Role.OPERATE


def _check_token(tokens: Tokens, head: Head, route: Route[Services]) -> None:
    """Refuse a request without a token, or with one that does not allow it (RFC 6750 section 3.1)."""
    scheme, _, secret = head.headers.get("authorization", "").partition(" ")
    if scheme.lower() != SCHEME or not secret.strip():
        raise _unauthorised("this needs a token: send `Authorization: Bearer TOKEN`; `replicator token add` makes one")
    token = tokens.holder(secret.strip())
    if token is None:
        raise _unauthorised("there is no such token; `replicator token list` lists all", 'error="invalid_token"')
    needed = needed_role(head.method, route)
    if token.role not in {needed, Role.OPERATE}:
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            f"the token {token.name!r} has the role {token.role}, but this needs one with the role {needed}",
            (("WWW-Authenticate", f'Bearer realm="replicator", error="insufficient_scope", scope="{needed}"'),),
        )


def _unauthorised(detail: str, *parameters: str) -> ProblemError:
    challenge = ", ".join(['Bearer realm="replicator"', *parameters])
    return ProblemError(HTTPStatus.UNAUTHORIZED, detail, (("WWW-Authenticate", challenge),))


def _check_host(head: Head) -> None:
    """Refuse names other than loopback's: a web page could reach the node under a name of its own (DNS rebinding)."""
    host = request_url(head).hostname
    if not is_loopback(host):
        raise ProblemError(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this node answers only requests to localhost, 127.0.0.1 and [::1], not to {host!r}",
        )


def _check_page(head: Head) -> None:
    """Refuse what a page of another origin asks, even another port of this machine."""
    site, origin = head.headers.get("sec-fetch-site"), head.headers.get("origin")
    own = {f"{scheme}://{head.headers.get('host', '').lower()}" for scheme in ("http", "https")}
    if (site is not None and site not in OWN_SITES) or (origin is not None and origin.lower() not in own):
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            f"a web page of {origin or 'another site'!r} asks for this: a node does nothing for pages of other sites",
        )
