"""The route of traces: the live protocol between this node and its peers, as server-sent events.

| route | answers |
|---|---|
| `GET /api/v1/trace?peer=&command=&user=&mailbox=` | commands and replies from now on, until the client goes |

The events are those of `replicator.tracing.traced`. A comment is sent when there is none for `BEAT_S`. The stream ends
with an event `end` if it is of one peer, and the link to it ends. It needs the role `operate`: commands tell what users
do with their mail. It has neither mail nor secrets.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import AsyncGenerator
from http import HTTPStatus

from protocol.units import KIB
from replicator.http.message import EVENTS_TYPE, PieceStream, ProblemError, Request, encode_json
from replicator.http.routing import Route
from replicator.http.services import HttpServices
from replicator.mail.mailstore import canonical_name
from replicator.runtime.logs.fields import LogFields
from replicator.tracing.descriptions import CHOICES
from replicator.tracing.traced import EVENTS, TraceEnded, TraceEvent, document_of
from replicator.tracing.tracer import TRACES_MAX, TooManyTracesError, Wanted
from replicator.users import folded

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * KIB
FULL = f"{TRACES_MAX} traces run at this node already, the limit; end one of them"
BEAT = b":\n\n"
"""A comment (WHATWG HTML, section 9.2)."""

_NAME_OF = {kind: name for name, kind in EVENTS.items()}


async def get_trace(services: HttpServices, request: Request) -> PieceStream:
    """Return the commands between this node and its peers, as they are sent and received."""
    wanted = await _wanted(services, request)
    if services.tracer.is_full:
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, FULL)
    if wanted.peer is not None and not services.tracer.is_linked(wanted.peer):
        detail = f"there is no link to {wanted.peer} now; `replicator status` says why"
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    log.info("an operator traces commands %s", LogFields(dict(request.query)))
    return PieceStream(_pieces(services, wanted), EVENTS_TYPE)


async def _pieces(services: HttpServices, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """Yield the events, several at once if they wait."""
    try:
        with services.tracer.trace(wanted) as trace:
            yield BEAT  # from here on nothing is missed
            gathered = b""
            event: TraceEvent | None = None
            while not isinstance(event, TraceEnded):
                event = await trace.next()
                gathered += BEAT if event is None else _encoded(event)
                if not trace.has_more or len(gathered) >= PIECE_BYTES:
                    yield gathered
                    gathered = b""
    except TooManyTracesError:  # another began in the same moment
        yield _encoded(TraceEnded(FULL))


def _encoded(event: TraceEvent) -> bytes:
    return b"event: " + _NAME_OF[type(event)].encode() + b"\ndata: " + encode_json(document_of(event)) + b"\n"


async def _wanted(services: HttpServices, request: Request) -> Wanted:
    """Return what is asked for. Raises ProblemError."""
    peer, user, mailbox = (request.query.get(name) for name in ("peer", "user", "mailbox"))
    if peer is not None and peer not in services.peers:
        known = ", ".join(sorted(services.peers)) or "none"
        raise ProblemError(HTTPStatus.NOT_FOUND, f"{services.sid} has no peer {peer!r}; its peers: {known}")
    return Wanted(
        peer,
        _commands(request.query["command"]) if "command" in request.query else frozenset(),
        None if user is None else folded(await services.owner(user)),
        None if mailbox is None else canonical_name(mailbox),
    )


def _commands(text: str) -> frozenset[str]:
    """Return the names in a list with commas. Raises ProblemError."""
    commands = frozenset(name.strip().upper() for name in text.split(",") if name.strip())
    if not commands:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "query: command names none; leave it out for all commands")
    for command in sorted(commands - CHOICES):
        near = difflib.get_close_matches(command, CHOICES, n=1)
        advice = f"did you mean {near[0]}?" if near else f"the names are {', '.join(sorted(CHOICES))}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: traces show no command {command!r}; {advice}")
    return commands


TRACE_ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/api/v1/trace", get_trace, query=frozenset({"peer", "command", "user", "mailbox"}), is_private=True),
)
