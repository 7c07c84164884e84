"""An HTTP client over a memory stream that can send any bytes, and parses answers with h11."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import h11
import trio
import trio.testing

from replicator.http.server import HttpServer


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return cast("dict[str, object]", json.loads(self.body))


class Conversation:
    """One connection, seen from the client. The framing of an answer depends on the `method` of its request."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._received = b""

    async def ask(self, request: bytes, method: bytes = b"GET") -> Answer:
        """Send bytes as they are and read one answer."""
        await self.stream.send_all(request)
        return await self.answer(method)

    async def send(self, method: str, target: str, body: bytes = b"", content_type: str = "message/rfc822") -> Answer:
        """Send a request with a body and read the answer."""
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return await self.ask(head.encode() + body, method.encode())

    async def answer(self, method: bytes = b"GET") -> Answer:
        """Read one answer."""
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method=method, target="/", headers=[("Host", "localhost")]))
        http.send(h11.EndOfMessage())
        if self._received:  # h11 takes empty input for the end of the connection
            http.receive_data(self._received)
        head: h11.Response | None = None
        body = b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await self.stream.receive_some()))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._received = http.trailing_data[0]
                assert head is not None
                return Answer(head.status_code, {k.decode(): v.decode() for k, v in head.headers}, body)

    async def rest(self) -> bytes:
        """Return all that the server sends until it closes."""
        rest = self._received
        async for chunk in self.stream:
            rest += chunk
        return rest


@asynccontextmanager
async def conversation(server: HttpServer) -> AsyncIterator[Conversation]:
    client, served = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, served)
        async with client:
            yield Conversation(client)
