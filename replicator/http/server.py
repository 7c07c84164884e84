"""Trio adapter of HTTP/1.1: one task per connection, h11, one request at a time.

Pipelined requests wait in the socket's buffer while one is served, so a connection never holds more than a head, a body
and a response, or one event or piece of a stream. Every wait here has a deadline. Errors of the peer, of the request
and of the mail store become problem documents in `_Connection._answer` and `_Connection.serve`, nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

import h11
import trio

from protocol.units import KIB, MIB
from replicator.errors import MailError
from replicator.http.access import Access
from replicator.http.api import ROUTES
from replicator.http.message import (
    EVENTS_TYPE,
    JSON_TYPE,
    Caller,
    EventStream,
    Head,
    Headers,
    PieceStream,
    ProblemError,
    Request,
    Response,
    problem_of,
)
from replicator.http.routing import Route, find_route
from replicator.http.services import HttpServices
from replicator.runtime.addresses import client_address
from replicator.runtime.places import Limit, Place, PlaceLimits, Places
from replicator.runtime.process.loop_watch import doing

HEAD_BYTES_MAX = 16 * KIB  # request line and headers; other servers allow as much
BODY_BYTES_MAX = 64 * MIB  # the largest message that can be imported: it is held in memory
JSON_BYTES_MAX = 4 * MIB  # a full batch of a repair plan has 1 MiB; large ones are parsed in a thread
BODIES_MAX = 8  # read or handled at once: with BODY_BYTES_MAX, this bounds the memory of requests
RECEIVE_BYTES = 64 * KIB
BODY_S = 60.0  # 1 MiB/s for the largest body
HANDLER_S = 60.0  # longer than every deadline of the mail store
SEND_S = 60.0  # for a client that does not read
# Fields that decide what a request may do and how its body is read. A proxy may have gone by another one of two.
ONCE = (
    "authorization", "origin", "sec-fetch-site", "content-type",
    "auth-method", "auth-user", "auth-pass", "auth-protocol", "client-ip",
)  # fmt: skip
NO_ROUTE = "none"  # its name in metrics
DRAIN_S = 5.0  # lets a client finish sending a refused body, so that it sees the reason and not a reset

# Responses describe the moment and must not be cached, nor interpreted as another content type.
COMMON_HEADERS: Headers = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))


Stream: TypeAlias = EventStream | PieceStream


class HttpServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: HttpServices, access: Access | None = None) -> None:
        limits = PlaceLimits(
            total=Limit(services.limits.http_connections, "http_connections"),
            strangers_per_address=Limit(services.limits.http_heads_per_address, "http_heads_per_address"),
        )
        self._services = services
        self._access = access or Access()
        self._places = Places(limits, partial(services.refusals.refused, "http"))
        self._bodies = trio.CapacityLimiter(BODIES_MAX)
        # Streams keep their places for long, so they leave half of them to others.
        self._streams = trio.CapacityLimiter(
            max(1, min(services.limits.http_streams, services.limits.http_connections // 2))
        )

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until either side ends it, and close it. Safe to cancel."""
        try:
            async with stream:
                connection = _Connection(stream, self._services, self._access, self._bodies, self._streams)
                async with self._places.admit(client_address(stream)) as place:
                    if place is not None:
                        await connection.serve(place)
                if place is None:
                    detail = f"{self._services.limits.http_connections} requests are in work already; try again later"
                    await connection.refuse(ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail))
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read


class _Connection:
    def __init__(
        self,
        stream: trio.abc.Stream,
        services: HttpServices,
        access: Access,
        bodies: trio.CapacityLimiter,
        streams: trio.CapacityLimiter,
    ) -> None:
        self._stream = stream
        self._services = services
        self._access = access
        self._bodies = bodies
        self._streams = streams
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._method = ""
        self._route = NO_ROUTE
        self._admit: Callable[[], Caller] | None = None  # decides anew if the last request is allowed

    async def serve(self, place: Place) -> None:
        """Serve requests until the connection cannot take another."""
        try:
            while (head := await self._receive_head()) is not None:
                with ExitStack() as in_work:
                    answer = await self._answer(head, partial(in_work.enter_context, place.busy()))
                    response = answer if isinstance(answer, Response) else await self._stream_out(answer)
                    if response is not None:
                        try:
                            await self._respond(response, last=self._http.their_state is not h11.DONE)
                        finally:
                            if response.then is not None:
                                response.then()
                if self._http.our_state is not h11.DONE:
                    break
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            await self.refuse(ProblemError(status, f"not a valid HTTP request: {error}"))
        except ProblemError as problem:  # of a head
            await self.refuse(problem)
        await self._drain()

    async def refuse(self, problem: ProblemError) -> None:
        """Send the reason for closing the connection, unless a response has begun."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self._respond(problem.response(), last=True)

    async def _answer(self, head: Head, keep_place: Callable[[], object]) -> Response | Stream:
        """Answer a request. Strangers do not keep their places: one who does not read would have it for a minute."""
        try:
            if not head.has_body:
                await self._receive_body()  # of no bytes: the request is complete, and the next may follow its answer
            route, request = find_route(ROUTES, head)
            self._route = route.path
            self._admit = partial(self._access.admit, head, route)
            request = replace(request, caller=self._admit())
            if request.caller is not Caller.STRANGER:
                keep_place()
            doing("http", None, f"{route.method} {route.path}")
            if not head.has_body:
                return await self._handle(route, request)
            async with self._bodies:
                body = await self._receive_body(JSON_BYTES_MAX if route.body_type == JSON_TYPE else BODY_BYTES_MAX)
                return await self._handle(route, replace(request, body=body))
        except ProblemError as problem:
            return problem.response()
        except MailError as error:
            return problem_of(error).response()

    async def _handle(self, route: Route[HttpServices], request: Request) -> Response | Stream:
        try:
            with trio.fail_after(HANDLER_S):
                return await route.handler(self._services, request)
        except trio.TooSlowError:
            detail = f"the request did not finish within {HANDLER_S:.0f} s; its change may or may not have been made"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None

    async def _receive_head(self) -> Head | None:
        """Return the next request's head, or None once the client has closed or was silent for too long.

        Raises ProblemError if a field of ONCE is there twice (RFC 9110 section 5.3).
        """
        self._method, self._route = "", NO_ROUTE
        with trio.move_on_after(self._services.limits.http_head_seconds):
            event = await self._next_event()
            if isinstance(event, h11.Request):
                self._method = event.method.decode("ascii")
                headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
                _check_repeated(name.decode("ascii") for name, _ in event.headers)
                return Head(self._method, event.target.decode("latin-1"), headers)
            return None
        self._services.refusals.refused("http", "http_head_seconds")
        return None

    async def _receive_body(self, bytes_max: int = 0) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            with trio.fail_after(BODY_S):
                while isinstance(event := await self._next_event(), h11.Data):
                    chunks.append(bytes(event.data))
                    size += len(event.data)
                    if size > bytes_max:
                        detail = f"the body is larger than {bytes_max >> 20} MiB, the limit here"
                        raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
        except trio.TooSlowError:
            detail = f"the body did not arrive within {BODY_S:.0f} s"
            raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, detail) from None
        return b"".join(chunks)

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(bytes(await self._stream.receive_some(RECEIVE_BYTES)))
        return event

    async def _respond(self, response: Response, *, last: bool) -> None:
        size = ("Content-Length", str(len(response.body)))
        head = self._head(response.status, response.content_type, (size, *response.headers), last=last)
        body = b"" if self._method == "HEAD" else response.body
        with trio.fail_after(SEND_S):
            await self._send(head, h11.Data(data=body), h11.EndOfMessage())

    async def _stream_out(self, stream: Stream) -> Response | None:
        """Send a stream until it ends or the client may no longer ask. Return a refusal if none can be sent."""
        try:
            self._streams.acquire_nowait()
        except trio.WouldBlock:
            self._services.refusals.refused("http", "http_streams")
            detail = (
                f"{self._streams.total_tokens} streams are open already, the limit here; close some pages, or try later"
            )
            return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail).response()
        try:
            if isinstance(stream, EventStream):
                await self._send_events(stream)
            else:
                await self._send_pieces(stream)
        finally:
            self._streams.release()
        return None

    async def _send_events(self, stream: EventStream) -> None:
        """Send the events in chunks, or to a client of HTTP/1.0 as they are. A step that takes too long ends it."""
        ends_at = trio.current_time() + stream.most_s
        with trio.fail_after(SEND_S):
            await self._send(self._head(HTTPStatus.OK, EVENTS_TYPE, (), last=True))
        while self._method != "HEAD" and trio.current_time() < ends_at:
            with trio.fail_after(HANDLER_S):
                event = await stream.next()
            if not self._is_admitted():
                break
            with trio.fail_after(SEND_S):
                await self._send(h11.Data(data=event))
        with trio.fail_after(SEND_S):
            await self._send(h11.EndOfMessage())

    async def _send_pieces(self, stream: PieceStream) -> None:
        """Send the pieces in chunks. A client of HTTP/1.1 notices if they are broken off: the last chunk is missing."""
        async with aclosing(stream.pieces) as pieces:
            with trio.fail_after(SEND_S):
                await self._send(self._head(HTTPStatus.OK, stream.content_type, (), last=True))
            while self._method != "HEAD":
                with trio.fail_after(HANDLER_S):
                    piece = await anext(pieces, None)
                if piece is None:
                    break
                if not self._is_admitted():
                    raise trio.BrokenResourceError("the client may no longer ask")
                with trio.fail_after(SEND_S):
                    await self._send(h11.Data(data=piece))
            with trio.fail_after(SEND_S):
                await self._send(h11.EndOfMessage())

    def _is_admitted(self) -> bool:
        assert self._admit is not None
        try:
            self._admit()
        except ProblemError:
            return False
        return True

    def _head(self, status: int, content_type: str, more: Headers, *, last: bool) -> h11.Response:
        """Return the head of a response, which is counted."""
        self._services.metrics.answered(self._route, status)
        headers = [
            ("Date", formatdate(self._services.clock_ms() / 1000, usegmt=True)),
            ("Content-Type", content_type),
            *COMMON_HEADERS,
            *more,
            *([("Connection", "close")] if last else ()),
        ]
        return h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)

    async def _send(self, *events: h11.Event) -> None:
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))

    async def _drain(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        with trio.move_on_after(DRAIN_S):
            while await self._stream.receive_some(RECEIVE_BYTES):
                pass


def _check_repeated(names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1 and name in ONCE:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"the header {name!r} is there {count} times; send it once")
