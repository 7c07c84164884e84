"""A GET over HTTPS, for the keys of an identity provider: one answer, in bounded time and memory.

Nothing is followed, kept or decompressed. Certificates are verified by the context that the caller gives.
"""

from __future__ import annotations

import ssl
from urllib.parse import SplitResult, urlsplit

import h11
import trio

from protocol.units import KIB

DEADLINE_S = 10.0
"""Seconds for the name look-up, TLS and the answer together: a client that logs in may be waiting."""

HEAD_BYTES_MAX = 16 * KIB
READ_BYTES = 16 * KIB


class HttpsError(Exception):
    """Lack of a usable answer. The text says why, without a final stop."""


async def https_get(url: str, context: ssl.SSLContext, *, body_bytes_max: int) -> bytes:
    """Return the body of the answer at an `https://` URL. Raises HttpsError."""
    try:
        with trio.fail_after(DEADLINE_S):
            return await _fetched(urlsplit(url), context, body_bytes_max)
    except trio.TooSlowError:
        raise HttpsError(f"there was no whole answer within {DEADLINE_S:.0f} s") from None
    except h11.RemoteProtocolError as error:
        raise HttpsError(f"the answer is no whole answer of HTTP: {error}") from error
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise HttpsError(f"the server's certificate cannot be verified: {cause.verify_message}") from error
        raise HttpsError(f"the connection broke: {cause or error}") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be looked up
        raise HttpsError(f"there is no connection: {error}") from error


async def _fetched(url: SplitResult, context: ssl.SSLContext, body_bytes_max: int) -> bytes:
    assert url.hostname is not None, "the configuration is checked"
    host, port = url.hostname, url.port or 443
    stream = trio.SSLStream(
        await trio.open_tcp_stream(host, port), context, server_hostname=host, https_compatible=True
    )
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        await stream.send_all(_request(http, url))
        return await _body(http, stream, body_bytes_max)
    finally:
        await trio.aclose_forcefully(stream)


def _request(http: h11.Connection, url: SplitResult) -> bytes:
    target = f"{url.path}?{url.query}" if url.query else url.path
    headers = [("Host", url.netloc), ("Accept", "application/json"), ("Connection", "close")]
    sent = http.send(h11.Request(method="GET", target=target, headers=headers))
    return (sent or b"") + (http.send(h11.EndOfMessage()) or b"")


async def _body(http: h11.Connection, stream: trio.abc.ReceiveStream, body_bytes_max: int) -> bytes:
    body = bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        await trio.lowlevel.checkpoint()  # some octets can hold thousands of events
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(READ_BYTES)))
        elif isinstance(event, h11.Response):
            _check_status(event)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > body_bytes_max:
                raise HttpsError(f"the answer is larger than {body_bytes_max} bytes")
    return bytes(body)


def _check_status(answer: h11.Response) -> None:
    if 300 <= answer.status_code < 400:
        raise HttpsError(
            f"the answer is a redirection ({answer.status_code}), and none is followed; write the URL where it leads"
        )
    if answer.status_code != 200:
        raise HttpsError(f"the answer has the status {answer.status_code}")
