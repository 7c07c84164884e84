"""A Dovecot that the node connects to, at the listener of its doveadm (`service doveadm` there)."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import trio

from replicator.config import Address
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.wire.values import TAB, escape
from replicator.runtime.addresses import client_address

CONNECT_S = 15.0
COMMAND_S = 60.0
"""Seconds for its answers before a sync begins. It waits for the lock of another sync of the user."""

LINE_BYTES_MAX = 4096
HELLO = b"VERSION\tdoveadm-server\t1\t0\n"
"""The minor version 0: what follows is not wrapped in channels."""

CLOSE_S = 1.0


class DovecotUnreachableError(Exception):
    """A Dovecot that cannot be reached, or lets nobody in. The text says why."""


class DovecotRefusalError(Exception):
    """A sync of one user that a Dovecot refuses. `is_unknown`: it does not know the user."""

    def __init__(self, code: str) -> None:
        self.is_unknown = code == "NOUSER"
        super().__init__("it does not know the user" if self.is_unknown else f"it says {code}")


@dataclass(frozen=True, slots=True)
class Dovecot:
    """Its address, and how to get in. `context` returns the TLS context; None: the connection is not encrypted.

    `tells_replicator`: it is to tell its own replicator up to where both sides are equal.
    """

    address: Address
    password: Callable[[], Awaitable[bytes]]
    context: Callable[[], Awaitable[ssl.SSLContext | None]]
    tells_replicator: bool = False

    @asynccontextmanager
    async def begin_sync(self, user: str) -> AsyncIterator[tuple[Peer, str]]:
        """Have a sync of a user begun. Yield the connection, and the Dovecot's address without a port.

        Raises DovecotUnreachableError, DovecotRefusalError.
        """
        stream = await self._connect()
        try:
            with _failing("it does not answer"), trio.fail_after(COMMAND_S):
                rest = await _asked(stream, await self._password(), self._command(user))
            yield Peer(stream, rest), client_address(stream)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await stream.aclose()

    async def _connect(self) -> trio.abc.Stream:
        with _failing("it cannot be reached"), trio.fail_after(CONNECT_S):
            context = await self.context()
            stream = await trio.open_tcp_stream(self.address.host, self.address.port)
            if context is None:
                return stream
            encrypted = trio.SSLStream(stream, context, server_hostname=self.address.host, https_compatible=True)
            try:
                await encrypted.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return encrypted

    def _command(self, user: str) -> bytes:
        name = escape(user)
        words = ["", name, "dsync-server", f"-u{name}", *(["-U"] if self.tells_replicator else [])]
        return f"{TAB.join(words)}\n".encode()

    async def _password(self) -> bytes:
        password = await self.password()
        if not password:
            raise DovecotUnreachableError("the first line of its `password_file` is empty: write the password there")
        return password


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise DovecotUnreachableError for errors of a connection."""
    try:
        yield
    except trio.TooSlowError as error:
        raise DovecotUnreachableError(f"{what}: it takes too long") from error
    except trio.BrokenResourceError as error:
        raise DovecotUnreachableError(f"{what}: {error.__cause__ or 'it has closed the connection'}") from error
    except (OSError, ssl.CertificateError) as error:
        raise DovecotUnreachableError(f"{what}: {error.strerror or error}") from error


async def _asked(stream: trio.abc.Stream, password: bytes, command: bytes) -> bytes:
    """Log in, and have a sync begun by this command. Return what has come of it already."""
    lines = _Lines(stream)
    await stream.send_all(HELLO)
    if await lines.answer() == "-":
        await stream.send_all(b"PLAIN\t" + base64.b64encode(b"\0doveadm\0" + password) + b"\n")
        if await lines.answer() != "+":
            raise DovecotUnreachableError("it does not take the password of `password_file`")
    await stream.send_all(command)
    answer = await lines.answer()
    if answer != "+":
        raise DovecotRefusalError(answer.removeprefix("-"))
    return lines.rest


class _Lines:
    """Answers before a sync begins. `rest`: bytes that have come after the last one."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.rest = b""

    async def answer(self) -> str:
        """Return the next line that begins with `+` or `-`: others are of no interest here."""
        while True:
            line = (await self._line()).decode(errors="replace")
            if line[:1] in {"+", "-"}:
                return line

    async def _line(self) -> bytes:
        while b"\n" not in self.rest:
            if len(self.rest) > LINE_BYTES_MAX:
                raise DovecotUnreachableError("it sends a line without an end: is this the port of its doveadm?")
            data = bytes(await self._stream.receive_some(LINE_BYTES_MAX))
            if not data:
                raise DovecotUnreachableError("it has closed the connection")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line
