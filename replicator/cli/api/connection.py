"""The connection to a node's JSON API: requests, answers, and why there is none.

Answers are validated when they are parsed, so that a node of another version is recognised.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

from protocol.units import KIB, MIB
from replicator.cli.api.documents import parsed
from replicator.cli.target import AUTHORITIES_VARIABLE, TOKEN_VARIABLE, CommandError, NodeUrl

TIMEOUT_S = 90.0  # longer than any wait of the node itself
RECEIVE_BYTES = 64 * KIB
ANSWER_BYTES_MAX = 256 * MIB  # the list of a million mailboxes
SHOWN_MAX = 200  # characters of an answer that makes no sense
TOKEN_NEEDED = (
    f"this needs a token: name a file with one by --token-file, or put it into the variable {TOKEN_VARIABLE};"
    " `replicator token add` makes one"
)
OTHER_NAME = {62, 64}  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}

D = TypeVar("D")
T = TypeVar("T")


class NodeError(CommandError):
    """A node's failure to do what was asked. `detail` is the message without the node's name."""

    def __init__(self, url: NodeUrl, detail: str) -> None:
        super().__init__(f"{url.name}: {detail}")
        self.detail = detail


class UnreachableError(NodeError):
    """The node does not answer. `is_connected`: it takes connections, and may have done what was asked."""

    def __init__(self, url: NodeUrl, detail: str, *, is_connected: bool = True) -> None:
        super().__init__(url, detail)
        self.is_connected = is_connected


class RefusedError(NodeError):
    """The node answered with a refusal or an error."""

    def __init__(self, url: NodeUrl, detail: str, status: int) -> None:
        super().__init__(url, detail)
        self.status = status


class NodeConnection:
    """A connection to one node, for one thread. Blocks."""

    def __init__(self, url: NodeUrl, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._connection = _connection(url, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "message/rfc822",
        *,
        accepted: Collection[int] = (),
    ) -> object:
        """Return the JSON of an answer. Raises UnreachableError, and RefusedError unless its status is `accepted`."""
        headers = {} if body is None else {"Content-Type": content_type}
        with self.answering():
            response = self.request(method, _target(path, query), body, headers)
            answer = response.read(ANSWER_BYTES_MAX)
        document = self.parsed_by(json.loads, answer)
        if response.status >= HTTPStatus.BAD_REQUEST and response.status not in accepted:
            raise self.refusal(response, document)
        return document

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._connection.close()

    @property
    def _shows_token(self) -> bool:
        return self._url.token is not None and self._url.socket is None

    def request(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request and return the answer, of which the head has arrived. Raises as `_answering` expects."""
        shown = {"Authorization": f"Bearer {self._url.token}"} if self._shows_token else {}
        self._connection.request(method, target, body, {**(headers or {}), **shown})
        return self._connection.getresponse()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise UnreachableError if the connection fails in this block."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            is_connected = self._connection.sock is not None
            self._connection.close()
            raise UnreachableError(self._url, _why_unreachable(self._url, error), is_connected=is_connected) from error

    def refusal(self, response: http.client.HTTPResponse, document: object) -> RefusedError:
        """Return the error that an answer tells."""
        detail = document.get("detail") if isinstance(document, dict) else None
        if response.status == HTTPStatus.UNAUTHORIZED and not self._shows_token:
            detail = TOKEN_NEEDED
        return RefusedError(self._url, str(detail or response.reason), response.status)

    def read(self, kind: type[T], document: object) -> T:
        """Return the document as this kind. Raises UnreachableError if it is none."""
        return self.parsed_by(partial(parsed, kind), document)

    def parsed_by(self, parse: Callable[[D], T], document: D) -> T:
        """Return what is made of the document. Raises UnreachableError if that fails."""
        try:
            return parse(document)
        except (KeyError, TypeError, ValueError) as error:
            raise self.senseless(repr(error)) from error

    def senseless(self, why: str) -> UnreachableError:
        """Return the error of an answer that makes no sense."""
        return UnreachableError(self._url, f"unexpected answer ({why}); is this a node, and of the same version?")

    @contextmanager
    def streamed(self, path: str, query: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Ask for an answer without an end, or a large one; return its chunks, which raise UnreachableError.

        Raises UnreachableError, RefusedError.
        """
        with self.answering():
            response = self.request("GET", _target(path, query))
            if response.status != HTTPStatus.OK:
                raise self.refusal(response, self.parsed_by(json.loads, response.read(ANSWER_BYTES_MAX)))
        try:
            yield self.chunks(response)
        finally:
            response.close()  # it may not have been read to its end
            self.close()

    def chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield an answer as it arrives."""
        while True:
            with self.answering():
                chunk = response.read1(RECEIVE_BYTES)
            if not chunk:
                return
            yield chunk


class _OwnSocketConnection(http.client.HTTPConnection):
    """HTTP at a socket in the file system."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        """Connect. Raises OSError."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.settimeout(self._timeout_s)
            connecting.connect(str(self._path))
        except OSError:
            connecting.close()
            raise
        self.sock = connecting


def _connection(url: NodeUrl, timeout_s: float) -> http.client.HTTPConnection:
    if url.socket is not None:
        return _OwnSocketConnection(url.socket, timeout_s)
    if url.tls:
        return http.client.HTTPSConnection(url.host, url.port, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(url.host, url.port, timeout=timeout_s)


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{'&'.join(f'{name}={segment(value)}' for name, value in query.items())}" if query else path


def _why_unreachable(url: NodeUrl, error: OSError | http.client.HTTPException) -> str:
    """Return why there is no answer, and what to do."""
    told = " ".join(str(error).split())[:SHOWN_MAX]  # it may be what another server has sent
    where = f" at {url}" if url.sid else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = f"if you trust its CA, name the file of that in {AUTHORITIES_VARIABLE}"
        if error.verify_code in OTHER_NAME:
            advice = "use a name that is in the certificate"
        return f"the certificate{where} is not trusted: {error.verify_message.rstrip('.')}; {advice}"
    if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        return f"no TLS {where.strip() or 'here'}; if it is a node's `listen.http` on loopback, use http://"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return f"no HTTP server{where}: it answers {told!r}; give the address of the node's `listen.http`"
    reason = (error.strerror if isinstance(error, OSError) else None) or told or type(error).__name__
    may_be_tls = isinstance(error, ConnectionResetError) and not url.tls and not url.socket
    advice = " If it takes HTTPS only, use https://" if may_be_tls else ""
    return f"no answer{where} ({reason}); is the node running?{advice}"


def segment(text: str) -> str:
    """Return the text for one place in a URL. Raises CommandError."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:  # the shell has passed octets that are no text
        raise CommandError(f"{text!r} is not UTF-8, as names are") from error
