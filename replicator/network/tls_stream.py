"""TLS on a link, with errors that tell an operator whose certificate was refused, by whom and why."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple

import trio

from replicator.network.certificates import Certificate

S = TypeVar("S", bound=trio.abc.Stream)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CONFIGURED = "is not signed by this node's [tls] ca; all nodes need certificates of one CA"
UNVERIFIED: Mapping[int, str] = {
    2: _CONFIGURED,
    9: "is not valid yet; check the clocks of both nodes",
    10: "has expired",
    18: _CONFIGURED,
    19: _CONFIGURED,
    20: _CONFIGURED,
    21: _CONFIGURED,
}
"""Faults of a node's certificate, by OpenSSL's X509_V_ERR code."""

_REFUSED: Mapping[str, str] = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "has expired, by the clock of the other side",
    "TLSV1_ALERT_UNKNOWN_CA": "is not signed by the other side's [tls] ca; all nodes need certificates of one CA",
}
"""Faults that the other side finds with this node's certificate, by the alert of RFC 8446 section 6.2."""

NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})
"""OpenSSL's reasons for a failed handshake with another side that does not speak TLS."""


def names_of(handshaken: ssl.SSLObject | trio.SSLStream[trio.SocketStream]) -> frozenset[str]:
    """Return the DNS names and common names in the certificate that the other side has shown in the handshake."""
    certificate: Mapping[str, Any] = handshaken.getpeercert() or {}
    names = {name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"}
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    return frozenset(names | {value for kind, value in subject if kind == "commonName"})


async def send_alert(stream: trio.SSLStream[S]) -> None:
    """Tell the other side what this one has refused, so that both know: trio leaves the alert unsent."""
    alert = stream._outgoing.read()  # noqa: SLF001
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
        await stream.transport_stream.send_all(alert)


class TlsError(trio.BrokenResourceError):
    """TLS with the other side failed. The text says why."""


class TlsStream(trio.abc.Stream):
    """A connection to `far`, an address, on which `stream` runs TLS with this node's certificate `own`.

    All methods raise TlsError where trio's stream hides the reason in a BrokenResourceError.
    """

    def __init__(self, stream: trio.SSLStream[trio.SocketStream], far: str, own: Certificate) -> None:
        self.far = far
        self._stream = stream
        self._own = own
        self._is_trusted = False  # True once the other side has sent something that TLS accepts

    async def do_handshake(self) -> None:
        """Run the handshake, which otherwise is part of the first reading or writing."""
        await self._explained(self._stream.do_handshake)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio.abc.ReceiveStream."""
        data = await self._explained(self._stream.receive_some, max_bytes)
        self._is_trusted = True
        return bytes(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream."""
        await self._explained(self._stream.send_all, data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    def certified_names(self) -> frozenset[str]:
        """Return the names in the other side's certificate, once the handshake is done."""
        return names_of(self._stream)

    async def _explained(self, operation: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call the operation. Raises TlsError if TLS fails."""
        try:
            return await operation(*args)
        except trio.BrokenResourceError as error:
            if not isinstance(error.__cause__, ssl.SSLError):
                raise
            if not self._is_trusted:
                await send_alert(self._stream)
            raise TlsError(f"TLS with {self.far}: {self._reason(error.__cause__)}") from error

    def _reason(self, error: ssl.SSLError) -> str:
        name = error.reason or ""
        if isinstance(error, ssl.SSLCertVerificationError):
            what = UNVERIFIED.get(error.verify_code, f"cannot be used: {error.verify_message}")
            shown = self._shown()
            return f"its certificate {what}{f' ({shown})' if shown else ''}"
        if name in _REFUSED:
            return f"this node's certificate {_REFUSED[name]} ({self._own})"
        if name in {"PEER_DID_NOT_RETURN_A_CERTIFICATE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"}:
            return "a client without a certificate has connected; nodes need one, see [tls]"
        if name in NOT_TLS:
            return "the other side does not speak TLS; if it is a node, it needs [tls] too"
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # versions of Python differ
            if self._is_trusted:
                return "the connection broke"
            return "the other side closed the connection before TLS began: either it has no [tls], or its log says why"
        return f"{name.lower().replace('_', ' ') or error}; this node's certificate is {self._own}"

    def _shown(self) -> Certificate | None:
        """Return the certificate that this side has refused.

        None if it cannot be read, or if OpenSSL does not keep it, as where it accepts.
        """
        # Public from Python 3.13 on, as `SSLObject.get_unverified_chain`.
        chain = self._stream._ssl_object._sslobj.get_unverified_chain()  # type: ignore[attr-defined]  # noqa: SLF001
        with suppress(ValueError):  # OpenSSL takes some that cannot be read here
            return Certificate.of_pem(chain[0].public_bytes().encode()) if chain else None
        return None
