from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from benchmarks.clients.wire import Address
from benchmarks.clusters.proxy import HOST, Direction, Proxy

LONG_S = 20.0  # far more than anything here takes


def echo(server: socket.socket) -> None:
    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    with suppress(OSError):
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        with Proxy(Address(*server.getsockname()[:2])) as proxy:
            yield proxy
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with dial(proxy) as connection:
        yield connection


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=LONG_S)


def receive(connection: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes and (chunk := connection.recv(1 << 16)):
        data += chunk
    return data


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LONG_S)


def test_bytes_pass_in_order_to_the_end_and_are_counted(proxy: Proxy, client: socket.socket) -> None:
    data = b"".join(b"%07d\n" % number for number in range(200_000))

    def send() -> None:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()
    assert receive(client, len(data) + 1) == data
    assert [proxy.carried_bytes(direction) for direction in Direction] == [len(data), len(data)]


def test_delay_costs_time_once_and_not_for_each_piece(proxy: Proxy, client: socket.socket) -> None:
    proxy.delay(0.1)
    began = time.monotonic()
    for number in range(100):
        client.sendall(b"%03d\n" % number)
        while proxy.carried_bytes(Direction.FORTH) < 4 * (number + 1):
            assert time.monotonic() - began < LONG_S
    assert receive(client, 400) == b"".join(b"%03d\n" % number for number in range(100))
    assert 0.2 <= time.monotonic() - began < 100 * 0.1


def test_throttled_line_carries_no_more_than_its_rate(proxy: Proxy, client: socket.socket) -> None:
    proxy.throttle(1_000_000, [Direction.FORTH])
    began = time.monotonic()
    client.sendall(bytes(300_000))
    assert len(receive(client, 300_000)) == 300_000
    assert time.monotonic() - began >= 0.29


@pytest.mark.parametrize("direction", Direction)
def test_held_bytes_arrive_once_the_line_is_mended(proxy: Proxy, client: socket.socket, direction: Direction) -> None:
    proxy.hold([direction])
    client.sendall(b"held")
    assert is_silent(client)
    proxy.mend()
    assert receive(client, 4) == b"held"


def test_cut_resets_both_ends_and_new_connections(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionResetError), dial(proxy) as another:
        another.recv(1)
    proxy.mend()
    with dial(proxy) as third:
        third.sendall(b"y")
        assert third.recv(1) == b"y"


def test_cut_ends_held_connections(proxy: Proxy, client: socket.socket) -> None:
    proxy.hold()
    client.sendall(b"x")
    with dial(proxy):
        proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_reset_of_one_end_resets_the_other(proxy: Proxy) -> None:
    with socket.create_server((HOST, 0)) as server, Proxy(Address(*server.getsockname()[:2])) as line:
        server.settimeout(LONG_S)
        with dial(line) as near:
            far, _ = server.accept()
            near.sendall(b"unread")
            assert far.recv(1) == b"u"
            far.close()  # with unread bytes, so that the kernel sends RST
            with pytest.raises(ConnectionResetError):
                near.recv(1)
    with dial(proxy):
        pass  # the other proxy still takes connections
