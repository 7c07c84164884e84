"""Who may ask for what at a listener, decided from a request's head and its route before any of its body is read.

A listener is of one kind:

- the node's own socket, a file in its data directory: who can open it is the node's user, or root, and may do
  everything;
- TCP on loopback: everybody on this machine may do everything, except by a web page. Browsers send on what pages of
  any origin ask of loopback, but they say whose page it is (`Origin`, `Sec-Fetch-Site`) and under which name it reaches
  the node (`Host`).
"""

from __future__ import annotations

from http import HTTPStatus

from replicator.http.message import Head, ProblemError
from replicator.http.routing import Route, Services, request_url
from replicator.runtime.addresses import is_loopback

OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` (W3C Fetch Metadata, section 2.4) for pages of this node, and for no page at all."""


class Access:
    """The rules of one listener. `by_own_socket`: it is the node's own socket."""

    def __init__(self, *, by_own_socket: bool = False) -> None:
        self._by_own_socket = by_own_socket

    def admit(self, head: Head, route: Route[Services]) -> None:
        """Return if the request is allowed. Raises ProblemError."""
        if not self._by_own_socket:
            _check_host(head)
        if not route.is_open:
            _check_page(head)


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
