"""Answers for proxies of mail clients: if a user may log in, and which server has the user's mail.

Questions and answers are those of nginx's mail module (its directive `auth_http`): headers of a GET, and headers of its
answer, whose status is 200 whether the user may or not. docs/scaling.md shows how Dovecot's proxy asks in the same way.
The server is the door of the user's cluster that the configuration names.

Proxies let strangers ask without end, and each question holds a connection of the HTTP door. So few passwords of one
client are checked at a time, none waits for long, and all together leave room for others, such as `/healthz`.
"""

from __future__ import annotations

import logging
import socket
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

import trio

from replicator.config import Address
from replicator.errors import MailError, UnavailableError
from replicator.http.message import ProblemError, Request, Response
from replicator.http.routing import Route
from replicator.http.services import HttpServices, MailServers
from replicator.runtime.addresses import network_of, plain_address
from replicator.runtime.logs.fields import LogFields

log = logging.getLogger(__name__)

WITH_PASSWORD, WITHOUT = "plain", "none"
"""Values of `Auth-Method`: the client's password is in `Auth-Pass`; the proxy asks for the server alone."""

FAILED = "[AUTHENTICATIONFAILED] Wrong user name or password"
UNKNOWN = "[UNAVAILABLE] The server of this mail is not known now; try again later"
BUSY = "[UNAVAILABLE] Too many logins are waiting; try again later"
WAIT_S = 2
"""Seconds for which a proxy lets a client wait that is refused: there it costs nothing."""

PATIENCE_S = 2.0
"""Seconds for which an attempt waits here, after failures or for others to be checked."""

ASKING_MAX = 4
"""Passwords of one client's network that are checked at a time. A password that was right lately takes no time."""

RESOLVE_S = 10.0
"""Seconds for finding the IP address of a server's name."""


async def get_login(services: HttpServices, request: Request) -> Response:
    """Answer a proxy. Raises ProblemError if the question makes no sense, or no cluster is configured."""
    if services.servers is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "this node knows no servers, since no [[cluster]] is configured")
    asked = request.headers
    method, protocol = asked.get("auth-method", WITH_PASSWORD).lower(), asked.get("auth-protocol", "imap").lower()
    if method not in {WITH_PASSWORD, WITHOUT}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"Auth-Method must be {WITH_PASSWORD} or {WITHOUT}, not {method!r}")
    if protocol not in {"imap", "lmtp"}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"Auth-Protocol must be imap or lmtp, not {protocol!r}")
    try:
        name, password = (_text(asked.get(header, "")) for header in ("auth-user", "auth-pass"))
        address = plain_address(asked["client-ip"]) if "client-ip" in asked else None
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"Auth-User, Auth-Pass or Client-IP: {error}") from None
    servers, who = services.servers, {"user": name, "client": address}
    try:
        if method == WITH_PASSWORD and not await _is_right(services, servers, name, password, address):
            log.info("a proxy's login failed %s", LogFields({**who, "reason": "wrong user name or password"}))
            return _refused(FAILED)
        server = await _server(servers, name, protocol)
    except _BusyError:
        services.refusals.refused("http", "http_connections")
        return _refused(BUSY)
    except MailError as error:
        log.warning("a proxy's login failed %s", LogFields({**who, "reason": error}))
        return _refused(UNKNOWN)
    if server is None:
        return _refused(FAILED)
    log.info("a proxy's login ok %s", LogFields({**who, "server": server}))
    return _answer(("Auth-Status", "OK"), ("Auth-Server", server.host), ("Auth-Port", str(server.port)))


class _BusyError(Exception):
    """Too many attempts are in work."""


async def _is_right(
    services: HttpServices, servers: MailServers, name: str, password: str, address: str | None
) -> bool:
    """Return True if the password is right. Raises MailError, and _BusyError."""
    network, asking = network_of(address or ""), servers.asking
    room = max(1, services.limits.http_connections // 2)
    if asking.total() >= room or (network and asking[network] >= ASKING_MAX):
        raise _BusyError
    asking[network] += 1
    try:
        found = await servers.users.verify_anywhere(name, password, address=address, patience_s=PATIENCE_S)
    finally:
        asking[network] -= 1
        if not asking[network]:
            del asking[network]
    return found is not None


async def _server(servers: MailServers, name: str, protocol: str) -> Address | None:
    """Return the server of a user by its IP address; None: there is no such user. Raises MailError."""
    home = servers.users.home_of(name)
    if home is None:
        return None
    user, cluster = home
    found = next((listed for listed in servers.clusters if listed.name == cluster), None)
    door = None if found is None else found.imap if protocol == "imap" else found.lmtp
    if door is None:
        raise UnavailableError(f"no server is configured for the mail of {user} ({protocol}, cluster {cluster!r})")
    return await _resolved(door)


async def _resolved(door: Address) -> Address:
    """Return the address with an IP address as its host: proxies expect no name. Raises UnavailableError."""
    try:
        with trio.fail_after(RESOLVE_S):
            [(*_, (host, *_)), *_] = await trio.socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, trio.TooSlowError) as error:  # UnicodeError: no host can have this name
        raise UnavailableError(f"the server {door.host!r} cannot be found now: {error}") from error
    return Address(str(host), door.port)


def _text(value: str) -> str:
    """Return a name or password as the client sent it. Raises ValueError."""
    return unquote_to_bytes(value).decode("utf-8")


def _refused(status: str) -> Response:
    return _answer(("Auth-Status", status), ("Auth-Wait", str(WAIT_S)))


def _answer(*headers: tuple[str, str]) -> Response:
    return Response(HTTPStatus.OK, b"", headers=headers)


PROXY_ROUTES: tuple[Route[HttpServices], ...] = (Route("GET", "/proxy/login", get_login, is_for_proxies=True),)
