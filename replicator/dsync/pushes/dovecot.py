"""A Dovecot that the node connects to, at the listener of its doveadm (`service doveadm` there)."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from replicator.config import Address
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.wire.values import TAB, escape
from replicator.network.tls_stream import NOT_TLS
from replicator.runtime.addresses import client_address
from replicator.runtime.failed_connections import reason_of

CONNECT_S = 15.0
COMMAND_S = 60.0
"""Seconds for its answers before a sync begins. It waits for the lock of another sync of the user."""

LINE_BYTES_MAX = 4096

GREETINGS = ("* ", "220", "HTTP/")
"""How servers begin that an operator may have taken for doveadm: IMAP, LMTP and HTTP."""

SHOWN_CHARACTERS = 60

WHICH_PORT = "`address` in [[dovecot]] needs the port of its `service doveadm`"

T = TypeVar("T")

HELLO = b"VERSION\tdoveadm-server\t1\t0\n"
"""The minor version 0: what follows is not wrapped in channels."""

CLOSE_S = 1.0


class DovecotUnreachableError(Exception):
    """A Dovecot that cannot be reached, or lets nobody in. The text says why."""


class DovecotRefusalError(Exception):
    """A sync of one user that a Dovecot refuses, or does not begin. `is_unknown`: it does not know the user."""

    def __init__(self, why: str, *, is_unknown: bool = False) -> None:
        self.is_unknown = is_unknown
        super().__init__(why)


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
        context = await _read("ca", self.context)
        password = await _read("password_file", self.password)
        if not password:
            raise DovecotUnreachableError("the first line of its `password_file` is empty: write the password there")
        stream = await self._connect(context)
        try:
            lines = _Lines(stream)
            with _failing("it does not answer"), trio.fail_after(COMMAND_S):
                await _log_in(stream, lines, password)
            await _ask(stream, lines, self._command(user))
            yield Peer(stream, lines.rest), client_address(stream)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await stream.aclose()

    async def _connect(self, context: ssl.SSLContext | None) -> trio.abc.Stream:
        with _failing("it cannot be reached"), trio.fail_after(CONNECT_S):
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


async def _read(key: str, read: Callable[[], Awaitable[T]]) -> T:
    """Return what a file of the configuration says. Raises DovecotUnreachableError."""
    try:
        return await read()
    except OSError as error:
        raise DovecotUnreachableError(f"`{key}` in [[dovecot]] cannot be used: {error}") from error


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise DovecotUnreachableError for errors of a connection."""
    try:
        yield
    except trio.TooSlowError as error:
        raise DovecotUnreachableError(f"{what}: it takes too long") from error
    except trio.BrokenResourceError as error:
        raise DovecotUnreachableError(f"{what}: {_broken_by(error.__cause__)}") from error
    except OSError as error:
        raise DovecotUnreachableError(f"{what}: {reason_of(error)}") from error


def _broken_by(cause: BaseException | None) -> str:
    """Return why a connection has broken."""
    if isinstance(cause, ssl.SSLError):
        if cause.reason in NOT_TLS or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return "TLS does not begin there: its listener needs `ssl = yes`, or [[dovecot]] `tls = false`"
        return str(cause)
    return reason_of(cause) if isinstance(cause, OSError) else "it has closed the connection"


async def _log_in(stream: trio.abc.Stream, lines: _Lines, password: bytes) -> None:
    """Tell the password, if it is asked for."""
    await stream.send_all(HELLO)
    if await lines.answer() == "-":
        await stream.send_all(b"PLAIN\t" + base64.b64encode(b"\0doveadm\0" + password) + b"\n")
        if await lines.answer() != "+":
            raise DovecotUnreachableError("it does not take the password of `password_file`")


async def _ask(stream: trio.abc.Stream, lines: _Lines, command: bytes) -> None:
    """Have a sync begun by this command. What fails here may be about this user alone. Raises DovecotRefusalError."""
    try:
        with trio.fail_after(COMMAND_S):
            await stream.send_all(command)
            answer = await lines.answer()
    except (trio.TooSlowError, trio.BrokenResourceError, DovecotUnreachableError) as error:
        raise DovecotRefusalError("it does not begin the sync") from error
    if answer != "+":
        code = answer.removeprefix("-")
        is_unknown = code == "NOUSER"
        raise DovecotRefusalError(
            "it does not know the user" if is_unknown else f"it says {code}", is_unknown=is_unknown
        )


class _Lines:
    """Answers before a sync begins. `rest`: bytes that have come after the last one.

    Another server's greeting, as IMAP's, is no answer, and nothing may follow it for long.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.rest = b""

    async def answer(self) -> str:
        """Return the next line that begins with `+` or `-`: others are of no interest here."""
        while True:
            line = (await self._line()).decode(errors="replace")
            if line[:1] in {"+", "-"}:
                return line
            if line.startswith(GREETINGS):
                raise DovecotUnreachableError(f"it is no doveadm, but says {line[:SHOWN_CHARACTERS]!r}: {WHICH_PORT}")

    async def _line(self) -> bytes:
        while b"\n" not in self.rest:
            if len(self.rest) > LINE_BYTES_MAX:
                raise DovecotUnreachableError(f"it sends a line without an end: {WHICH_PORT}")
            data = bytes(await self._stream.receive_some(LINE_BYTES_MAX))
            if not data:
                hint = "; if its listener has `ssl = yes`, write `tls = true` in [[dovecot]]"
                is_plain = not isinstance(self._stream, trio.SSLStream)
                raise DovecotUnreachableError(f"it has closed the connection{hint if is_plain else ''}")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line
