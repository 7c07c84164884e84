"""A connection to an IMAP server: imaplib with limits, for one thread. It blocks.

The server may be broken, or lie: what it sends in answer to one command has a limit in octets and in time.
"""

from __future__ import annotations

import imaplib
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar, cast

from protocol.units import KIB, MIB
from replicator.cli.sources.imap.urls import ImapUrl
from replicator.cli.sources.imap.values import Answer, SenselessAnswerError, Value, answers, pairs
from replicator.cli.sources.message import SourceError
from replicator.network.tls_stream import NOT_TLS
from replicator.runtime.addresses import is_loopback

SILENT_S: Final = 60.0
"""Seconds that a server may be silent while an answer is due."""
COMMAND_S: Final = 600.0
"""Seconds that an answer may take."""
ANSWER_BYTES: Final = 4 * MIB
"""Octets of an answer, unless the caller expects more: lists of 10,000 folders, or of the flags of 2000 messages."""
LINE_BYTES: Final = 1_000_000
"""Octets of a line, as imaplib limits them."""
_READ_BYTES: Final = 64 * KIB
_BAD: Final = "command error: BAD"  # how imaplib tells that a server does not know a command
SHOWN_MAX: Final = 200  # characters of what a server says, in an error
T = TypeVar("T")


class _Limits:
    """Limit of what a server may send, and a deadline. Mixed into classes of imaplib, which read by both methods."""

    left_bytes = ANSWER_BYTES
    until = float("inf")

    def read(self, size: int) -> bytes:
        """Read the octets of a literal."""
        self._take(size)
        read = bytearray()
        while len(read) < size:
            self._take(0)
            piece = cast("bytes", super().read(min(size - len(read), _READ_BYTES)))  # type: ignore[misc]
            if not piece:
                break
            read += piece
        return bytes(read)

    def readline(self) -> bytes:
        """Read a line. Other users of imaplib in this process may have raised its own limit."""
        line = cast("bytes", super().readline())  # type: ignore[misc]
        if len(line) > LINE_BYTES:
            raise imaplib.IMAP4.error(f"got more than {LINE_BYTES} bytes")
        self._take(len(line))
        return line

    def _take(self, size: int) -> None:
        self.left_bytes -= size
        if self.left_bytes < 0:
            raise imaplib.IMAP4.abort("the answer is longer than it can be")
        if time.monotonic() > self.until:
            raise imaplib.IMAP4.abort(f"the answer takes longer than {COMMAND_S:.0f} seconds")


class _Plain(_Limits, imaplib.IMAP4):
    """Without TLS at first."""


class _Tls(_Limits, imaplib.IMAP4_SSL):
    """With TLS from the beginning."""


class ImapConnection:
    """A connection to a server, logged in. Every method raises SourceError."""

    def __init__(self, url: ImapUrl, login: str, password: str) -> None:
        self._url = url
        self.is_broken = False
        self._imap = self._run(lambda: _connected(url))
        try:
            self._log_in(login, password)
            self.capabilities = self._capabilities()
            self.is_dovecot = self._says_dovecot()
        except SourceError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Log out and close. A server that has misbehaved is not waited for."""
        if not self.is_broken:
            with suppress(SourceError):
                self._done(lambda: self._imap.xatom("LOGOUT"))
        with suppress(OSError):
            self._imap.shutdown()

    def has(self, *capabilities: str) -> bool:
        """Return True if the server has all of these."""
        return {*capabilities} <= self.capabilities

    def ask(
        self, command: str, answered: str, *arguments: bytes | str, most_bytes: int = ANSWER_BYTES
    ) -> list[list[Value]]:
        """Send a command; return the values of each answer of the kind `answered`."""
        self._done(lambda: self._imap.xatom(command, *cast("tuple[str, ...]", arguments)), most_bytes)
        return self._answers(answered)

    def examine(self, mailbox: bytes) -> dict[str, bytes]:
        """Open a mailbox for reading; return what the server tells of it, by name: EXISTS, UIDVALIDITY."""
        self._done(lambda: self._imap.select(cast("str", quoted(mailbox)), readonly=True))
        names = ("EXISTS", "UIDVALIDITY")
        told = {name: self._imap.response(name)[1] for name in names}
        return {name: data[-1] for name, data in told.items() if data and isinstance(data[-1], bytes)}

    def fetch(self, messages: str, items: str, *, by_uid: bool, most_bytes: int = ANSWER_BYTES) -> list[list[Value]]:
        """Fetch items of messages; return the values of each answer."""
        run = (
            (lambda: self._imap.uid("FETCH", messages, items))
            if by_uid
            else (lambda: self._imap.fetch(messages, items))
        )
        data = self._done(run, most_bytes)
        return self._run(lambda: list(answers(cast("Sequence[Answer | None]", data))))

    def wrong(self, what: str) -> SourceError:
        """Return the error of a server that says what makes no sense."""
        return SourceError(f"{self._url}: {what}")

    def _answers(self, kind: str) -> list[list[Value]]:
        data = self._imap.response(kind)[1]
        return self._run(lambda: list(answers(cast("Sequence[Answer | None]", data))))

    def _capabilities(self) -> frozenset[str]:
        [data] = self._done(self._imap.capability)[-1:] or [b""]
        return frozenset(str(data, "ascii", "replace").upper().split()) if isinstance(data, bytes) else frozenset()

    def _says_dovecot(self) -> bool:
        """Return True if the server says that it is a Dovecot (RFC 2971). To others, items of Dovecot's are errors."""
        if not self.has("ID"):
            return False
        try:
            self._done(lambda: self._imap.xatom("ID", "NIL"))
            told = list(answers(cast("Sequence[Answer | None]", self._imap.response("ID")[1])))
            name = pairs(told[0][0]).get(b"NAME") if told and told[0] else None
        except SenselessAnswerError:
            return False
        except SourceError:
            if self.is_broken:
                raise
            return False
        return isinstance(name, bytes) and name.lower() == b"dovecot"

    def _log_in(self, login: str, password: str) -> None:
        if any(character in login + password for character in "\r\n\0"):
            raise SourceError(f"{self._url}: a name or a password has a control character")
        name = login.encode("utf-8", "surrogateescape")  # as it was typed
        if "AUTH=PLAIN" in self._imap.capabilities:
            shown = b"\0".join((b"", name, password.encode()))
            self._done(lambda: self._imap.authenticate("PLAIN", lambda _: shown))
        else:
            # imaplib's own `login` quotes no names, and takes ASCII only.
            arguments = (quoted(name), quoted(password.encode()))
            self._done(lambda: self._imap.xatom("LOGIN", *cast("tuple[str, str]", arguments)))
            self._imap.state = "AUTH"

    def _done(
        self, command: Callable[[], tuple[str, Sequence[object]]], most_bytes: int = ANSWER_BYTES
    ) -> Sequence[object]:
        """Run a command; return what came of it. Raises SourceError if the server refuses it."""
        self._imap.left_bytes, self._imap.until = most_bytes, time.monotonic() + COMMAND_S
        condition, data = self._run(command)
        if condition != "OK":
            said = data[-1] if data else b""
            raise SourceError(f"{self._url}: {_shown(said)}")
        return data

    def _run(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except imaplib.IMAP4.abort as error:
            self.is_broken = True
            raise SourceError(f"{self._url}: the connection is lost: {_shown(error)}") from error
        except imaplib.IMAP4.error as error:
            self.is_broken = _BAD not in str(error)  # what follows a line that is too long makes no sense
            raise SourceError(f"{self._url}: {_shown(error)}") from error
        except SenselessAnswerError as error:
            self.is_broken = True
            raise SourceError(f"{self._url}: an answer makes no sense: {_shown(error)}") from error
        except ssl.SSLCertVerificationError as error:
            self.is_broken = True
            raise SourceError(f"{self._url}: the certificate is not trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            self.is_broken = True
            if error.reason not in NOT_TLS:
                raise SourceError(f"{self._url}: no answer ({_shown(error)})") from error
            raise SourceError(f"{self._url}: TLS does not begin at this port; for STARTTLS write imap://") from error
        except OSError as error:
            self.is_broken = True
            raise SourceError(f"{self._url}: no answer ({error.strerror or _shown(error)})") from error


def quoted(text: bytes) -> bytes:
    """Return a quoted string. The text has no line ends."""
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _connected(url: ImapUrl) -> _Plain | _Tls:
    """Connect, with TLS unless the server is on this machine. Raises OSError, imaplib's errors."""
    if url.tls:
        return _Tls(url.host, url.port, ssl_context=ssl.create_default_context(), timeout=SILENT_S)
    plain = _Plain(url.host, url.port, timeout=SILENT_S)
    try:
        if not is_loopback(url.host):
            _check_starttls(plain)
            plain.starttls(ssl.create_default_context())
    except (imaplib.IMAP4.error, OSError):
        with suppress(OSError):
            plain.shutdown()
        raise
    return plain


def _check_starttls(plain: _Plain) -> None:
    if "STARTTLS" not in plain.capabilities:
        raise imaplib.IMAP4.error("no STARTTLS there: a password is not sent unencrypted; try imaps://")


def _shown(said: object) -> str:
    """Return what a server says in one line of printable text."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if isinstance(said, BaseException) and said.args and isinstance(said.args[0], bytes):
        text = said.args[0].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "?" for character in text)[:SHOWN_MAX]
