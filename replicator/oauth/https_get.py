"""Requests over HTTP to servers that the operator names: one answer, in bounded time and memory.

They fetch the keys of an identity provider, and ask a server that knows users. Nothing is followed, kept or
decompressed. Certificates are verified by the context that the caller gives.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import h11
import trio

from protocol.units import KIB
from replicator.runtime.failed_connections import reason_of

DEADLINE_S = 10.0
"""Seconds for the name look-up, TLS and the answer together: a client that logs in may be waiting."""

HEAD_BYTES_MAX = 16 * KIB
READ_BYTES = 16 * KIB


class _Request(NamedTuple):
    """A request: its method, its body, and the headers that only it has."""

    method: str
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


class HttpsError(Exception):
    """Lack of a usable answer. The text says why, without a final stop."""


async def https_get(url: str, context: ssl.SSLContext, *, body_bytes_max: int) -> bytes:
    """Return the body of the answer at an `https://` URL. Raises HttpsError."""
    try:
        with trio.fail_after(DEADLINE_S):
            status, body = await _answered(url, context, _Request("GET"), body_bytes_max)
    except trio.TooSlowError:
        raise HttpsError(f"there was no whole answer within {DEADLINE_S:g} s") from None
    if status != 200:
        raise HttpsError(f"the answer has the status {status}")
    return body


async def post_json(
    url: str,
    context: ssl.SSLContext | None,
    document: bytes,
    *,
    headers: Mapping[str, str],
    body_bytes_max: int,
) -> tuple[int, bytes]:
    """Return the status and the body of the answer to a document of JSON. Raises HttpsError.

    `context`: None for an `http://` URL. The caller sets the deadline.
    """
    more = [("Content-Type", "application/json"), ("Content-Length", str(len(document))), *headers.items()]
    return await _answered(url, context, _Request("POST", document, more), body_bytes_max)


async def _answered(
    url: str, context: ssl.SSLContext | None, request: _Request, body_bytes_max: int
) -> tuple[int, bytes]:
    try:
        return await _exchanged(urlsplit(url), context, request, body_bytes_max)
    except h11.RemoteProtocolError as error:
        raise HttpsError(f"the answer is no whole answer of HTTP: {error}") from error
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise HttpsError(f"the server's certificate cannot be verified: {cause.verify_message}") from error
        raise HttpsError(f"the connection broke: {cause or error}") from error
    except (OSError, UnicodeError) as error:
        raise HttpsError(f"there is no connection: {reason_of(error)}") from error


async def _exchanged(
    url: SplitResult, context: ssl.SSLContext | None, request: _Request, body_bytes_max: int
) -> tuple[int, bytes]:
    assert url.hostname is not None, "the configuration is checked"
    host, port = url.hostname, url.port or (80 if context is None else 443)
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    if context is not None:
        stream = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        await stream.send_all(_sent(http, url, request))
        return await _answer(http, stream, body_bytes_max)
    finally:
        await trio.aclose_forcefully(stream)


def _sent(http: h11.Connection, url: SplitResult, request: _Request) -> bytes:
    target = f"{url.path}?{url.query}" if url.query else url.path
    headers = [("Host", url.netloc), ("Accept", "application/json"), ("Connection", "close"), *request.headers]
    events: list[h11.Event] = [h11.Request(method=request.method, target=target, headers=headers)]
    events += [h11.Data(data=request.body)] if request.body else []
    return b"".join(http.send(event) or b"" for event in [*events, h11.EndOfMessage()])


async def _answer(http: h11.Connection, stream: trio.abc.ReceiveStream, body_bytes_max: int) -> tuple[int, bytes]:
    status, body = 0, bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        await trio.lowlevel.checkpoint()  # some octets can hold thousands of events
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(READ_BYTES)))
        elif isinstance(event, h11.Response):
            status = _status_of(event)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > body_bytes_max:
                raise HttpsError(f"the answer is larger than {body_bytes_max} bytes")
    return status, bytes(body)


def _status_of(answer: h11.Response) -> int:
    if 300 <= answer.status_code < 400:
        raise HttpsError(
            f"the answer is a redirection ({answer.status_code}), and none is followed; write the URL where it leads"
        )
    return answer.status_code
