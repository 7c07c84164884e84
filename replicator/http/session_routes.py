"""Routes of the sessions of mail clients and MTAs at this node, in whichever process, and of its drain and its end.

| route | answers |
|---|---|
| `GET /api/v1/sessions?user=&address=&id=` | `SessionStatus` of each session, the oldest of each process first |
| `DELETE /api/v1/sessions?user=&address=&id=` | those that are ended thereby; one of the three must be named |
| `POST /api/v1/drain` | `DrainStatus`: from now on `/healthz` answers 503, so balancers send new clients elsewhere |
| `DELETE /api/v1/drain` | the same, when that has ended |
| `POST /api/v1/stop` | 202: the node ends in order, as by SIGTERM, once the client has the answer |

Sessions have all that is named: the user, the IP address or one of the network, and the id. All need the role
`operate`: sessions tell where users are, and what they do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_network

from replicator.http.documents import StoppingDocument
from replicator.http.message import ProblemError, Request, Response, encode_list, json_response
from replicator.http.routing import Route
from replicator.http.services import HttpServices
from replicator.runtime.addresses import is_in
from replicator.runtime.drain import DrainStatus
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.sessions import SessionStatus
from replicator.users import folded

log = logging.getLogger(__name__)


async def get_sessions(services: HttpServices, request: Request) -> Response:
    """Return the sessions."""
    return await _answer(services, await services.sessions.list(await _user(services, request), _wanted(request)))


async def delete_sessions(services: HttpServices, request: Request) -> Response:
    """End the sessions, and return them."""
    if not request.query:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "query: name at least one of user, address and id")
    ended = await services.sessions.end(await _user(services, request), _wanted(request))
    log.info("an operator has ended sessions %s", LogFields({**request.query, "ended": len(ended)}))
    return await _answer(services, ended)


async def post_drain(services: HttpServices, _request: Request) -> Response:
    """Begin to drain the node. Idempotent."""
    if services.drain.status.since_ms is None:
        log.info("an operator drains the node: it calls itself unhealthy, and serves whoever comes")
    services.drain.begin()
    return json_response(asdict(services.drain.status))


async def delete_drain(services: HttpServices, _request: Request) -> Response:
    """Let the node be healthy again. Idempotent."""
    if services.drain.status.since_ms is not None:
        log.info("an operator has ended the drain of the node")
    services.drain.end()
    return json_response(asdict(services.drain.status))


async def post_stop(services: HttpServices, _request: Request) -> Response:
    """End the node's process in order, as SIGTERM does. Idempotent."""
    ending = services.ending
    if ending is None:
        raise ProblemError(HTTPStatus.NOT_IMPLEMENTED, "this node is a part of a program that ends it")
    response = json_response({"sid": services.sid, "managed": ending.is_managed}, HTTPStatus.ACCEPTED)
    return replace(response, then=partial(ending.begin, "a request of an operator"))


async def _user(services: HttpServices, request: Request) -> str | None:
    name = request.query.get("user")
    return None if name is None else folded(await services.owner(name))


def _wanted(request: Request) -> Callable[[SessionStatus], bool]:
    """Return whether a session has the address and the id that are named. Raises ProblemError."""
    network, named = _network(request), request.query.get("id")

    def is_wanted(session: SessionStatus) -> bool:
        return named in {None, session.id} and (network is None or is_in(session.address, [network]))

    return is_wanted


def _network(request: Request) -> IPv4Network | IPv6Network | None:
    text = request.query.get("address")
    try:
        return None if text is None else ip_network(text, strict=False)
    except ValueError:
        what = f"{text!r} is neither an IP address nor a network"
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: address: {what}") from None


async def _answer(services: HttpServices, found: Sequence[SessionStatus]) -> Response:
    return Response(HTTPStatus.OK, await services.run_in_thread(partial(encode_list, found, asdict)))


_NAMED = frozenset({"user", "address", "id"})
SESSION_ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/api/v1/sessions", get_sessions, query=_NAMED, is_private=True, answer=list[SessionStatus]),
    Route("DELETE", "/api/v1/sessions", delete_sessions, query=_NAMED, answer=list[SessionStatus]),
    Route("POST", "/api/v1/drain", post_drain, answer=DrainStatus),
    Route("DELETE", "/api/v1/drain", delete_drain, answer=DrainStatus),
    Route("POST", "/api/v1/stop", post_stop, answer=StoppingDocument),
)
