"""One client's connection: frames in, responses out, within deadlines. The door's only I/O.

Output is gathered and sent in blocks; a client that does not read delays its own commands and nothing else.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf

import trio

from protocol.framing import ContinuationNeeded, Event, Frame, FrameLimits, Framer, FramingError, LargeLiteral
from protocol.units import KIB, MIB
from replicator.imap.wire.deflate_stream import DamagedStreamError, DeflateStream
from replicator.imap.wire.responses import continuation
from replicator.network.certificates import ServerContext, identity_of
from replicator.network.tls_stream import send_alert
from replicator.runtime.addresses import is_loopback
from replicator.users import Identity

WRITE_TIMEOUT_S = 60.0  # for one block: the slowest of modems needs a tenth of it

BLOCK_BYTES = 64 * KIB

_STRANGERS = FrameLimits(text=64 * KIB, literal=4 * KIB, literals_total=32 * KIB, literals=60)
"""Limits before login, when no command is longer than an ID (RFC 2971 section 3.3).

That has 30 fields of 30 octets with values of 1024. They are literals, or quoted strings that escape every octet. The
limit of one literal is that of LITERAL- (RFC 7888 section 5).
"""

WHOLE_LITERAL_BYTES = 64 * KIB
"""Largest literal held whole in memory: nearly all mail is smaller, and so are all literals but messages."""

MAX_LITERALS = 300
"""Literals of a command: messages of an APPEND, and parts of them. Each may be held in memory at up to 64 KiB."""


class ConnectionEndedError(Exception):
    """The client has disconnected, or does not read its responses. Nothing more can be sent to it."""


class CertificateRefusedError(ConnectionEndedError):
    """The client has shown a certificate that cannot be verified, which ends the handshake. The text says why."""


class InactivityError(Exception):
    """The client was silent for too long, or did not finish a message in time. The text tells it so."""


class NoLoginError(InactivityError):
    """The client did not log in, in time."""


class Connection:
    """One client's connection. `address` is its IP address as text.

    The client has `login_s` seconds to log in, and may be silent for `idle_s` seconds (RFC 9051 section 5.4).
    """

    def __init__(self, stream: trio.abc.Stream, address: str, *, secure: bool, login_s: float, idle_s: float) -> None:
        self._stream = stream
        self._framer = Framer(limits=_STRANGERS, bare_lf=True)
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._sending = False  # if a send or a response was interrupted, the client can parse nothing more
        self._login_by = trio.current_time() + login_s
        self._idle_s = idle_s
        self.address = address
        self.secure = secure
        self.compressed = False
        self.end_point: bytes | None = None
        """Data of the channel binding of the connection's TLS, if it began here and has some (see ServerContext)."""
        self.identity: Identity | None = None
        """The user whom the client's certificate names, if it has shown one in TLS that began here."""

    @property
    def private(self) -> bool:
        """True if a password may be sent here: under TLS, or on this machine."""
        return self.secure or is_loopback(self.address)

    def welcome(self, max_message_bytes: int) -> None:
        """Lift the limits that apply before login. The memory that a command takes stays bounded."""
        self._login_by = inf
        self._framer.limits = FrameLimits(
            literal=max_message_bytes, literals_total=MIB, literals=MAX_LITERALS, whole=WHOLE_LITERAL_BYTES
        )

    async def next_event(self, by: float = inf) -> Event:
        """Return the client's next event, waiting until `by`. Safe to cancel.

        Raises FramingError, ConnectionEndedError, InactivityError.
        """
        while (event := self._framer.next_event()) is None:
            silent_by = min(trio.current_time() + self._idle_s, self._login_by)
            with trio.CancelScope(deadline=min(silent_by, by)) as scope:
                self._framer.receive(await self._receive())
            if scope.cancelled_caught:
                if silent_by == self._login_by:
                    raise NoLoginError("You did not log in, in time; connect again")
                what = "Your message did not arrive in time" if by < silent_by else "No command arrived for too long"
                raise InactivityError(f"{what}; connect again")
        return event

    def refuse(self) -> None:
        """Drop the command whose literal the client waits to be allowed to send, as the last event said."""
        self._framer.refuse()

    async def next_frame(self) -> Frame:
        """Return the next frame, accepting all its literals; large ones are skipped. Raises as `next_event`."""
        while not isinstance(event := await self.next_event(), Frame):
            if isinstance(event, ContinuationNeeded) or (isinstance(event, LargeLiteral) and event.synchronising):
                await self.write([continuation("Send the literal")])
                await self.flush()
        return event

    async def write(self, chunks: Iterable[bytes]) -> None:
        """Gather output and send it once it fills a block. Raises ConnectionEndedError."""
        for chunk in chunks:
            self._output.append(chunk)
            self._output_bytes += len(chunk)
        if self._output_bytes >= BLOCK_BYTES:
            await self.flush()

    @contextmanager
    def whole_response(self) -> Iterator[None]:
        """Write one response in this block, in parts. If the block fails, no more is sent: it would be a part, too."""
        try:
            yield
        except BaseException:
            self._sending = True
            raise

    async def flush(self) -> None:
        """Send all gathered output. Raises ConnectionEndedError."""
        chunks, self._output, self._output_bytes = self._output, [], 0
        if self._sending:
            raise ConnectionEndedError(f"{self.address} has not received all earlier output")
        self._sending = True
        for block in _blocks(chunks):
            with trio.CancelScope(deadline=trio.current_time() + WRITE_TIMEOUT_S) as scope:
                await self._send(block)
            if scope.cancelled_caught:
                raise ConnectionEndedError(f"{self.address} did not read for {WRITE_TIMEOUT_S:.0f} s")
        self._sending = False

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Encrypt from here on. Raises ConnectionEndedError."""
        if self._framer.detach():  # plain text must not count as sent under TLS (RFC 3501 section 6.2.1)
            raise ConnectionEndedError(f"{self.address} sent commands before the answer to STARTTLS")
        stream = trio.SSLStream(self._stream, context, server_side=True, https_compatible=True)
        self._sending = True
        with trio.CancelScope(deadline=self._login_by) as scope:
            try:
                await stream.do_handshake()
            except (trio.BrokenResourceError, ssl.SSLError) as error:
                if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                    why = error.__cause__.verify_message
                    await send_alert(stream)
                    raise CertificateRefusedError(f"the client's certificate cannot be verified: {why}") from error
                raise ConnectionEndedError(f"{self.address}: the TLS handshake failed: {error}") from error
        if scope.cancelled_caught:
            raise ConnectionEndedError(f"{self.address} was too slow in the TLS handshake")
        self._stream = stream
        self._sending = False
        self.secure = True
        shown = stream.context  # of the name for which the client has asked
        self.end_point = shown.end_point if isinstance(shown, ServerContext) else None
        if shown.verify_mode is not ssl.CERT_NONE and (certificate := stream.getpeercert(binary_form=True)):
            self.identity = identity_of(certificate)

    async def compress(self) -> None:
        """Compress all that is sent and received from here on (RFC 4978). Raises ConnectionEndedError."""
        if self._framer.detach():
            raise ConnectionEndedError(f"{self.address} sent commands before the answer to COMPRESS")
        self._stream = DeflateStream(self._stream)
        self.compressed = True
        await trio.lowlevel.checkpoint()  # after the change: if the session ends here, its BYE is compressed

    async def close(self) -> None:
        """Close the socket without waiting for the client."""
        with trio.CancelScope(deadline=trio.current_time() + 1):  # time for TLS to say goodbye, if the client takes it
            await self._stream.aclose()

    async def _receive(self) -> bytes:
        try:
            data = await self._stream.receive_some(BLOCK_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionEndedError(f"{self.address}: {error}") from error
        except DamagedStreamError as error:
            raise FramingError(f"the compressed data is damaged: {error}", b"") from error
        if not data:
            raise ConnectionEndedError(f"{self.address} closed the connection")
        return bytes(data)

    async def _send(self, block: bytes | memoryview) -> None:
        try:
            await self._stream.send_all(block)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionEndedError(f"{self.address}: {error}") from error


def _blocks(chunks: list[bytes]) -> Iterable[bytes | memoryview]:
    """Yield the chunks in blocks of about BLOCK_BYTES: small ones joined, large ones cut without copying."""
    small: list[bytes] = []
    for chunk in chunks:
        if len(chunk) < BLOCK_BYTES:
            small.append(chunk)
            continue
        if small:
            yield b"".join(small)
            small = []
        whole = memoryview(chunk)
        for start in range(0, len(whole), BLOCK_BYTES):
            yield whole[start : start + BLOCK_BYTES]
    if small:
        yield b"".join(small)
