"""A server that speaks as much of LDAP as it takes to say what no real one does, in BER (RFC 4511 section 5.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

BIND, SEARCH, STARTTLS, UNBIND = 0x60, 0x63, 0x77, 0x42
_ANSWERED_BY = {BIND: 0x61, SEARCH: 0x65, STARTTLS: 0x78}

Serve = Callable[[trio.SocketStream, int, int], Awaitable[None]]
"""A server's reaction to a request on a stream, by its operation and the id of its message."""


def tagged(tag: int, *content: bytes) -> bytes:
    """Return a value of BER, with a length of four octets."""
    body = b"".join(content)
    return bytes([tag, 0x84]) + len(body).to_bytes(4, "big") + body


def message(number: int, operation: bytes) -> bytes:
    """Return a message of LDAP."""
    return tagged(0x30, tagged(0x02, number.to_bytes(5, "big")), operation)


def result(number: int, operation: int, code: int = 0) -> bytes:
    """Return the answer to a request: its result code."""
    return message(number, tagged(_ANSWERED_BY[operation], tagged(0x0A, bytes([code])), tagged(4), tagged(4)))


def entry(number: int, dn: bytes, attribute: bytes, value: bytes) -> bytes:
    """Return an entry that a search finds."""
    values = tagged(0x30, tagged(4, attribute), tagged(0x31, tagged(4, value)))
    return message(number, tagged(0x64, tagged(4, dn), tagged(0x30, values)))


@asynccontextmanager
async def fake_ldap(serve: Serve) -> AsyncIterator[str]:
    """Yield the URL of a server. Requests are small, so each comes in one piece."""

    async def serve_connection(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                while request := await stream.receive_some(65536):
                    start = 2 + (request[1] & 0x7F if request[1] & 0x80 else 0)
                    end = start + 2 + request[start + 1]
                    operation, number = request[end], int.from_bytes(request[start + 2 : end], "big")
                    if operation != UNBIND:
                        await serve(stream, operation, number)
        except trio.BrokenResourceError:
            pass  # the client has heard enough

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve_connection, 0, host="127.0.0.1"))
        yield f"ldap://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()
