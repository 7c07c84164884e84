"""A real HTTPS server on loopback that answers as a test says."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import trio
import trustme


def answer(body: bytes, status: str = "200 OK", *, more: str = "", length: int | None = None) -> bytes:
    """Return an answer of HTTP; `more` are further lines of its head."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{more}\r\n".encode() + body


@dataclass
class KeyServer:
    """`says` is what each request is answered with, for which it then waits if `hangs`; `requests` came."""

    port: int
    says: bytes = b""
    hangs: bool = False
    endless: bytes = b""
    """Sent again and again after what it says, until the client has gone."""
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/keys?v=1"

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError, ssl.SSLError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := await stream.receive_some(65536)):
                    return
                head += data
            self.requests.append(bytes(head))
            await stream.send_all(self.says)
            while self.endless:
                await stream.send_all(self.endless)
            if self.hangs:
                await trio.sleep_forever()
            await stream.aclose()


@asynccontextmanager
async def key_server(ca: trustme.CA, *names: str) -> AsyncIterator[KeyServer]:
    """Run a server whose certificate is for these names."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert(*(names or ("localhost",))).configure_cert(context)
    async with trio.open_nursery() as nursery:
        [listener, *_] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = KeyServer(int(listener.socket.getsockname()[1]))
        secured = [trio.SSLListener(listener, context, https_compatible=True)]
        await nursery.start(partial(trio.serve_listeners, server.serve, secured))
        yield server
        nursery.cancel_scope.cancel()
