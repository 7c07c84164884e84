"""Network streams of nodes and clients: listening addresses, and TLS on top (design sections 4 and 8)."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import trio

from replicator.config import Address, PeerAddress, PeerConfig, SocketPath
from replicator.network.certificates import Certificates
from replicator.network.tls_stream import TlsStream
from replicator.runtime.failed_connections import reason_of
from replicator.runtime.files.file_modes import PRIVATE_FILE

log = logging.getLogger(__name__)

BACKLOG = 64  # connections that wait to be accepted

KEEPALIVE_IDLE_S = 120
KEEPALIVE_INTERVAL_S = 30
KEEPALIVE_PROBES = 4
"""TCP asks a silent client whether it is still there, and ends the connection four minutes after a client vanished.

A client whose machine or line is gone says nothing, and would keep its place at the door for as long as a client may
be idle. Elsewhere than on Linux the system's own times count, often two hours (RFC 9293 section 3.8.4).
"""

Handler = Callable[[trio.SocketStream], Awaitable[None]]


async def listen(address: PeerAddress) -> list[trio.SocketListener]:
    """Listen on an address. Raises OSError that names the address.

    Only the node's user can open a socket in the file system. Its file stays; the next run puts its own in its place.
    """
    try:
        if isinstance(address, SocketPath):
            return [trio.SocketListener(trio.socket.from_stdlib_socket(_bound(address.path)))]
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror}{_advice(error, address)}") from error
    for listener in listeners:
        _keep_alive(listener.socket)  # the sockets of its connections inherit that
    return listeners


def _advice(error: OSError, address: PeerAddress) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "; another program may use it"
        case errno.EADDRNOTAVAIL:
            return "; this machine has no such address"
        case errno.EACCES if isinstance(address, Address):
            return "; ports below 1024 need root's rights, or the capability CAP_NET_BIND_SERVICE"
    return ""


def _keep_alive(listening: trio.socket.SocketType) -> None:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


@asynccontextmanager
async def own_socket(path: Path) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen on a socket in the file system that only its owner can open; the file goes with the block.

    There is no listener, and the log says why, where the path is too long for a socket or the file system has none.
    The caller has the only right to the path: a socket that is there is left from a run that crashed.
    """
    try:
        listening = _bound(path)
    except OSError as error:
        log.warning("%s: no socket here, so `--config` leads to `listen.http`: %s", path, error.strerror or error)
        yield []
        return
    try:
        with trio.socket.from_stdlib_socket(listening) as ours:
            yield [trio.SocketListener(ours)]
    finally:
        _remove(path)


def _bound(path: Path) -> socket.socket:
    """Return a listening socket at the path, in place of one that a run left there. Raises OSError."""
    with ExitStack() as failing:
        listening = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        if path.is_socket() and not _has_listener(path):
            _remove(path)
        listening.bind(str(path))
        path.chmod(PRIVATE_FILE)  # nobody can connect before the next step
        listening.listen(BACKLOG)
        failing.pop_all()
    return listening


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        trying.settimeout(0)  # a listener with a full queue must not hold the event loop
        try:
            trying.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            pass
        return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def guarded(handler: Handler) -> Handler:
    """Wrap a handler so that a defect in one connection is logged and does not affect the others."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await handler(stream)
        except Exception:
            log.exception("a connection ended because of a defect in this program")

    return serve


def https(stream: trio.SocketStream, context: ssl.SSLContext) -> trio.abc.Stream:
    """Return the stream of an HTTP client's connection with TLS, which begins with the first byte.

    HTTP clients may close without a closing alert: a message tells its own length (RFC 9112 section 9.8).
    """
    return trio.SSLStream(stream, context, server_side=True, https_compatible=True)


class Tls:
    """TLS on links; without certificates, plain streams."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    async def dial(self, peer: PeerConfig) -> trio.abc.Stream:
        """Connect to a peer. Raises OSError or TlsError, which say why the connection failed."""
        try:
            stream = await _connected(peer.address)
        except OSError as error:
            raise OSError(reason_of(error)) from error
        context = self._certificates.dialling()
        if context is None:
            return stream
        secured = TlsStream(trio.SSLStream(stream, context), str(peer.address), self._certificates.own())
        try:
            await secured.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(secured)
            raise
        return secured

    def accept(self, stream: trio.SocketStream) -> trio.abc.Stream:
        """Return the stream of a peer's connection, with TLS if configured."""
        context = self._certificates.accepting()
        if context is None:
            return stream
        return TlsStream(trio.SSLStream(stream, context, server_side=True), _host(stream), self._certificates.own())


def certified(stream: trio.abc.Stream) -> tuple[str, frozenset[str]] | None:
    """Return the peer's address and the names in its certificate; None if the stream has no TLS.

    The handshake must be done.
    """
    return (stream.far, stream.certified_names()) if isinstance(stream, TlsStream) else None


async def _connected(address: PeerAddress) -> trio.SocketStream:
    if isinstance(address, SocketPath):
        return await trio.open_unix_socket(address.path)
    return await trio.open_tcp_stream(address.host, address.port)


def _host(stream: trio.SocketStream) -> str:
    """Return the other end's host. Its port says nothing, and would make each log line a different one."""
    try:
        name = stream.socket.getpeername()
    except OSError:  # it has gone already
        return "a closed connection"
    return str(name[0]) if name else "a program on this machine"  # that is at the end of a socket without a name
