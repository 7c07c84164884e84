"""Answers for proxies of mail clients: if a user may log in, and which server has the user's mail.

Questions and answers are those of nginx's mail module (its directive `auth_http`): headers of a GET, and headers of its
answer, whose status is 200 whether the user may or not. docs/scaling.md shows how Dovecot's proxy asks in the same way.
The server is the door of the user's cluster that the configuration names.
"""

from __future__ import annotations

import logging
import socket
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes

import trio

from replicator.config import Address
from replicator.errors import MailError, UnavailableError
from replicator.http.message import ProblemError, Request, Response
from replicator.http.routing import Route
from replicator.http.services import HttpServices, Site
from replicator.runtime.log_fields import LogFields

log = logging.getLogger(__name__)

WITH_PASSWORD, WITHOUT = "plain", "none"
"""Values of `Auth-Method`: the client's password is in `Auth-Pass`; the proxy asks for the server alone."""

FAILED = "[AUTHENTICATIONFAILED] Wrong user name or password"
WAIT_S = 2
"""Seconds for which a proxy lets a client wait that has failed. The node itself delays its attempts, too."""

RESOLVE_S = 10.0
"""Seconds for finding the IP address of a server's name."""


async def get_login(services: HttpServices, request: Request) -> Response:
    """Answer a proxy. Raises ProblemError if the question makes no sense, or no cluster is configured."""
    if services.site is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "this node knows no servers, since no [[cluster]] is configured")
    asked = request.headers
    method, protocol = asked.get("auth-method", WITH_PASSWORD).lower(), asked.get("auth-protocol", "imap").lower()
    if method not in {WITH_PASSWORD, WITHOUT}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"Auth-Method must be {WITH_PASSWORD} or {WITHOUT}, not {method!r}")
    if protocol not in {"imap", "lmtp"}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"Auth-Protocol must be imap or lmtp, not {protocol!r}")
    try:
        name, password = (_text(asked.get(header, "")) for header in ("auth-user", "auth-pass"))
        address = str(ip_address(asked["client-ip"])) if "client-ip" in asked else None
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"Auth-User, Auth-Pass or Client-IP: {error}") from None
    who = {"user": name, "client": address}
    try:
        server = await _server(services.site, name, password if method == WITH_PASSWORD else None, address, protocol)
    except MailError as error:
        log.warning("a proxy's login failed %s", LogFields({**who, "reason": error}))
        return _answer(("Auth-Status", f"[UNAVAILABLE] {error}"))
    if server is None:
        log.info("a proxy's login failed %s", LogFields({**who, "reason": "wrong user name or password"}))
        return _answer(("Auth-Status", FAILED), ("Auth-Wait", str(WAIT_S)))
    log.info("a proxy's login ok %s", LogFields({**who, "server": server}))
    return _answer(("Auth-Status", "OK"), ("Auth-Server", server.host), ("Auth-Port", str(server.port)))


async def _server(site: Site, name: str, password: str | None, address: str | None, protocol: str) -> Address | None:
    """Return the server of a user by its IP address, or None for a wrong name or password. Raises MailError."""
    if password is not None and await site.users.verify_anywhere(name, password, address=address) is None:
        return None
    home = site.users.home_of(name)
    if home is None:
        return None
    user, cluster = home
    found = next((listed for listed in site.clusters if listed.name == cluster), None)
    door = None if found is None else found.imap if protocol == "imap" else found.lmtp
    if door is None:
        raise UnavailableError(f"no server is configured for the mail of {user} ({protocol}, cluster {cluster!r})")
    return await _resolved(door)


async def _resolved(door: Address) -> Address:
    """Return the address with an IP address as its host: proxies expect no name. Raises UnavailableError."""
    try:
        with trio.fail_after(RESOLVE_S):
            [(*_, (host, *_)), *_] = await trio.socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)
    except (OSError, trio.TooSlowError) as error:
        raise UnavailableError(f"the server {door.host!r} cannot be found now: {error}") from error
    return Address(str(host), door.port)


def _text(value: str) -> str:
    """Return a name or password as the client sent it. Raises ValueError."""
    return unquote_to_bytes(value).decode("utf-8")


def _answer(*headers: tuple[str, str]) -> Response:
    return Response(HTTPStatus.OK, b"", headers=headers)


PROXY_ROUTES: tuple[Route[HttpServices], ...] = (Route("GET", "/proxy/login", get_login, is_for_proxies=True),)
