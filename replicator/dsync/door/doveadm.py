"""The server side of a doveadm connection over TCP, without I/O, up to where dsync begins.

Feed it with `receive`, then call `advance`, which returns an attempt to log in, and after `admit` the command, once it
is here. `take_output` returns the bytes to send. The version is not told to the client: it would have the rest wrapped
in channels.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from enum import Enum, auto
from hmac import compare_digest

from replicator.dsync.wire.values import TAB, unescape

TLS_RECORD = b"\x16\x03"
"""Begin of a TLS connection: a record of the handshake, of version 3 (RFC 8446 section 5.1)."""

LINE_BYTES_MAX = 8 * 1024
"""Longest line: a command with its arguments."""

USER = b"doveadm"
COMMAND = "dsync-server"


class Refusal(Enum):
    """Words by which doveadm knows errors, and their exit codes."""

    NO_USER = "NOUSER"
    TEMPORARY = "TEMPFAIL"
    USAGE = "USAGE"


@dataclass(frozen=True, slots=True)
class Command:
    """A request for a sync of this user's mail."""

    user: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to log in. What is not understood has empty words."""

    user: bytes = b""
    password: bytes = field(default=b"", repr=False)

    def fits(self, password: bytes) -> bool:
        """Return True if this is the password, and there is one."""
        is_right = compare_digest(self.user, USER) & compare_digest(self.password, password)
        return is_right and bool(password)


class _State(Enum):
    GREETED = auto()
    ATTEMPTED = auto()
    AUTHENTICATED = auto()
    COMMANDED = auto()
    CLOSED = auto()


class DoveadmMachine:
    """One connection. `refused`: why it is closed, for the log; `rest`: what came after the command."""

    def __init__(self) -> None:
        self._state = _State.GREETED
        self._buffer = bytearray()
        self._output = [b"-\n"]  # a password is needed
        self.refused: str | None = None

    @property
    def closed(self) -> bool:
        """True once the connection is to be closed."""
        return self._state is _State.CLOSED

    @property
    def rest(self) -> bytes:
        """Bytes that the client has sent after its command."""
        return bytes(self._buffer)

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._buffer += data

    def take_output(self) -> bytes:
        """Return the bytes to send."""
        output, self._output = b"".join(self._output), []
        return output

    def advance(self) -> Attempt | Command | None:
        """Go on with what has arrived. Return what is to be decided; None: nothing yet, or the connection is closed."""
        if self._state is _State.GREETED and self._buffer.startswith(TLS_RECORD):
            self._close("the client begins TLS, and this listener is without: write tcp: there, in place of tcps:")
        while self._state in (_State.GREETED, _State.AUTHENTICATED):
            end = self._buffer.find(b"\n")
            if end > LINE_BYTES_MAX or (end < 0 and len(self._buffer) > LINE_BYTES_MAX):
                self._close("a line is too long")
                return None
            if end < 0:
                return None
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            found = self._take(line)
            if found is not None:
                return found
        return None

    def admit(self) -> None:
        """Tell the client that its password is right."""
        self._output.append(b"+\n")
        self._state = _State.AUTHENTICATED

    def deny(self, why: str) -> None:
        """Tell the client that it may not log in. `why` is for the log."""
        self._output.append(b"-\n")
        self._close(why)

    def accept(self) -> None:
        """Tell the client that its command has begun: what follows in both directions is dsync's."""
        self._output.append(b"\n+\n")

    def refuse(self, refusal: Refusal, why: str) -> None:
        """Tell the client that its command fails. The protocol has a word for that; `why` is for the log."""
        self._output.append(f"\n-{refusal.value}\n".encode())
        self._close(why)

    def close(self) -> None:
        """Note that the client has left, or is to."""
        self._state = _State.CLOSED

    def _take(self, line: bytes) -> Attempt | Command | None:
        if line.startswith(b"VERSION\t"):
            if not line.startswith(b"VERSION\tdoveadm-server\t1\t"):
                self._close("this port speaks doveadm's protocol, version 1")
            return None
        if self._state is _State.GREETED:
            self._state = _State.ATTEMPTED
            return _attempt_of(line)
        return self._command(line)

    def _command(self, line: bytes) -> Command | None:
        try:
            words = [unescape(word) for word in line.decode().split(TAB)]
        except UnicodeDecodeError:
            words = []
        if len(words) < 3 or words[2] != COMMAND or not words[1]:
            self.refuse(Refusal.USAGE, "this server only takes part in syncs of one user's mail, as dsync-server")
            return None
        self._state = _State.COMMANDED
        return Command(words[1])

    def _close(self, why: str) -> None:
        self.refused = why
        self._state = _State.CLOSED


def _attempt_of(line: bytes) -> Attempt:
    """Return the attempt of a line: `PLAIN`, and the message of that mechanism (RFC 4616) in base64."""
    method, _, encoded = line.partition(TAB.encode())
    try:
        words = base64.b64decode(encoded, validate=True).split(b"\0")
    except binascii.Error:
        words = []
    return Attempt(words[1], words[2]) if method == b"PLAIN" and len(words) == 3 else Attempt()
