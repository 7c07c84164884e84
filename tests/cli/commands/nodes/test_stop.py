"""Who answers where a node was: what tells `replicator stop` that the node was started anew."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicator.cli.commands.nodes import stop
from replicator.cli.commands.nodes.stop import is_started_anew
from replicator.cli.target import NodeUrl, parse_url

BODY = b'{"detail": "not yet"}'
ANSWER = b"HTTP/1.1 %s\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "ANSWER_S", 0.2)
    monkeypatch.setattr(stop, "ANEW_S", 1.0)


def url(door: socket.socket) -> NodeUrl:
    host, port = door.getsockname()
    return parse_url(f"http://{host}:{port}")


@contextmanager
def answering(door: socket.socket, answer: bytes) -> Iterator[None]:
    """Give one client an answer."""

    def serve() -> None:
        connection, _ = door.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield
    finally:
        server.join()


@pytest.mark.parametrize("status", [b"503 Service Unavailable", b"401 Unauthorized"])
def test_a_refusal_is_another_run(status: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        answering(door, ANSWER % (status, len(BODY), BODY)),
    ):
        assert is_started_anew(url(door))


def test_silence_at_a_connection_is_another_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:  # the kernel connects, and nobody answers
        assert is_started_anew(url(door))
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "http.sock"))
        own.listen()
        assert is_started_anew(NodeUrl("", 0, socket=tmp_path / "http.sock"))


def test_nobody_at_the_door_is_none() -> None:
    with socket.socket() as bound:  # and so nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        assert not is_started_anew(url(bound))


def test_a_door_that_takes_no_connection_is_none() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):  # the kernel drops those that follow
            assert not is_started_anew(url(full))
