"""Answers of a real HTTPS server, honest and hostile ones."""

from __future__ import annotations

import ssl
import tracemalloc
from collections.abc import AsyncIterator

import pytest
import trio
import trustme

from protocol.units import KIB, MIB
from replicator.oauth import https_get as module
from replicator.oauth.https_get import HttpsError, https_get
from tests.oauth.key_server import KeyServer, answer, key_server

LIMIT = 10 * KIB


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def context(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


@pytest.fixture
async def server(ca: trustme.CA) -> AsyncIterator[KeyServer]:
    async with key_server(ca) as server:
        yield server


async def fetched(server: KeyServer, context: ssl.SSLContext) -> bytes:
    with trio.fail_after(30):
        return await https_get(server.url, context, body_bytes_max=LIMIT)


@pytest.mark.parametrize(
    "said",
    [
        answer(b"keys"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nke\r\n2\r\nys\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nkeys",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"keys"),
    ],
)
async def test_answer_of_any_form_is_read(server: KeyServer, context: ssl.SSLContext, said: bytes) -> None:
    server.says = said
    assert await fetched(server, context) == b"keys"
    [request] = server.requests
    assert request.startswith(b"GET /keys?v=1 HTTP/1.1\r\n")
    assert f"\r\nhost: localhost:{server.port}\r\n".encode() in request.lower()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(b"", "404 Not Found"), "the answer has the status 404"),
        (answer(b"keys", "503 Busy"), "the answer has the status 503"),
        (answer(b"keys", "204 No Content"), "the answer has the status 204"),
        (answer(b"x" * LIMIT + b"x"), f"the answer is larger than {LIMIT} bytes"),
        (answer(b"ke", length=4), "the answer is no whole answer of HTTP: peer closed"),
        (b"", "the answer is no whole answer of HTTP: "),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is no whole answer of HTTP: "),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "the answer is no whole answer of HTTP: "),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "the answer is no whole answer of HTTP: "),
    ],
)
async def test_other_answers_are_refused(server: KeyServer, context: ssl.SSLContext, said: bytes, why: str) -> None:
    server.says = said
    with pytest.raises(HttpsError, match=f"^{why}"):
        await fetched(server, context)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_redirections_are_not_followed(
    ca: trustme.CA, server: KeyServer, context: ssl.SSLContext, status: str
) -> None:
    async with key_server(ca) as elsewhere:
        elsewhere.says = answer(b"keys")
        server.says = answer(b"", status, more=f"Location: {elsewhere.url}\r\n")
        with pytest.raises(HttpsError, match=r"^the answer is a redirection \(30\d\), and none is followed"):
            await fetched(server, context)
        assert not elsewhere.requests


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_endless_answer_takes_bounded_memory(server: KeyServer, context: ssl.SSLContext, head: bytes) -> None:
    server.says = head
    server.endless = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    tracemalloc.start()
    try:
        with pytest.raises(HttpsError, match=f"^the answer is larger than {LIMIT} bytes"):
            await fetched(server, context)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MIB


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", answer(b"ke", length=4)])
async def test_answer_that_does_not_end_is_given_up(
    server: KeyServer, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    server.says, server.hangs = said, True
    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    with pytest.raises(HttpsError, match=r"^there was no whole answer within"):
        await fetched(server, context)


async def test_endless_early_hints_are_given_up(
    server: KeyServer, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.endless = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100
    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    with pytest.raises(HttpsError, match=r"^there was no whole answer within"):
        await fetched(server, context)


async def test_certificate_of_another_authority_or_name_is_refused(ca: trustme.CA, context: ssl.SSLContext) -> None:
    for issuing, name in ((trustme.CA(), "localhost"), (ca, "id.example.org")):
        async with key_server(issuing, name) as server:
            server.says = answer(b"keys")
            with pytest.raises(HttpsError, match=r"^the server's certificate cannot be verified: "):
                await fetched(server, context)
            assert not server.requests


async def test_server_that_is_not_there(context: ssl.SSLContext) -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))  # nobody listens there
        with pytest.raises(HttpsError, match=r"^there is no connection: Connection refused$"), trio.fail_after(30):
            await https_get(f"https://127.0.0.1:{taken.getsockname()[1]}/keys", context, body_bytes_max=LIMIT)


async def test_name_that_cannot_be_looked_up(context: ssl.SSLContext) -> None:
    with pytest.raises(HttpsError, match=r"^there is no connection: .*label"):
        await https_get(f"https://{'a' * 70}.example/keys", context, body_bytes_max=LIMIT)
