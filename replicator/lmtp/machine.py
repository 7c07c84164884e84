"""The server side of an LMTP connection, without I/O: bytes in, replies and messages out.

Feed it with `receive`, then call `advance` until it returns None. A message comes out in pieces as they arrive, so that
memory does not grow with it: `MessageBegun`, any number of `MessageData`, then either `MessageEnded`, after which the
caller reports the outcome by `delivered`, or `MessageDropped`, which the machine answers itself. `take_output` returns
the bytes to send. Commands are legal only in the states that `LEGAL` lists.

Only CRLF "." CRLF ends a message. A lone LF or CR is an ordinary byte of it, so that no other sequence which another
server takes for the end can smuggle in a second message (RFC 5321 section 4.1.1.4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto

from replicator.errors import MailError, UserNotLearnedError
from replicator.lmtp import replies
from replicator.lmtp.events import (
    Envelope,
    Event,
    MessageBegun,
    MessageData,
    MessageDropped,
    MessageEnded,
    Recipient,
    Rejection,
    TlsAccepted,
    UserAsked,
)
from replicator.lmtp.replies import Reply, reply_for
from replicator.lmtp.syntax import Path, parse_from, parse_host, parse_to

LINE_BYTES_MAX = 4096
"""Longest command line in octets, with room for all extensions that we announce.

RFC 5321 section 4.5.3.1.4 requires 512, RFC 6531 more.
"""

RECIPIENTS_MAX = 100
"""Recipients of one message; RFC 5321 section 4.5.3.1.8 requires at least 100. Senders retry for the rest."""

USERS_MAX = 1000
"""Users whom the recipients of one message reach by aliases: as many as one alias may (`users.aliases.recipients`)."""

ERRORS_MAX = 20
"""Syntax and order errors in one connection. Unknown users do not count: relays cannot know our users."""

DISCARD_FACTOR = 10
"""Multiple of the largest message size that is skipped before the connection is closed."""

END_OF_DATA = b"\r\n.\r\n"


class State(Enum):
    """Protocol state of the connection."""

    GREETED = auto()  # LHLO is expected
    READY = auto()  # no transaction
    SENDER = auto()  # MAIL was accepted
    RECIPIENTS = auto()  # and at least one RCPT
    RECEIVING = auto()  # DATA was accepted
    DISCARDING = auto()  # the message is too large: its rest is skipped
    STARTING_TLS = auto()  # STARTTLS was accepted; `tls_began` is expected
    DELIVERING = auto()  # the message is complete; `delivered` is expected
    CLOSED = auto()


BETWEEN = frozenset({State.GREETED, State.READY, State.SENDER, State.RECIPIENTS})

LEGAL: dict[str, frozenset[State]] = {
    "LHLO": BETWEEN,
    "MAIL": frozenset({State.READY}),
    "RCPT": frozenset({State.SENDER, State.RECIPIENTS}),
    "DATA": frozenset({State.RECIPIENTS}),
    "RSET": BETWEEN,
    "NOOP": BETWEEN,
    "VRFY": BETWEEN,
    "HELP": BETWEEN,
    "QUIT": BETWEEN,
    "STARTTLS": frozenset({State.READY}),
}


class LmtpMachine:
    """One connection. `find_users` maps an `Address.name` to its users, or to none; it may raise MailError.

    UserNotLearnedError from it becomes the event `UserAsked`, and the line is processed again with what `tell` says.
    `offers_tls`: STARTTLS is offered (RFC 3207).
    """

    def __init__(
        self,
        host: str,
        max_message_bytes: int,
        find_users: Callable[[str], tuple[str, ...]],
        *,
        offers_tls: bool = False,
    ) -> None:
        self._host = host
        self._max_message_bytes = max_message_bytes
        self._find_users = find_users
        self._offers_tls = offers_tls
        self._secure = False
        self._state = State.GREETED
        self._envelope = Envelope("")
        self._errors = 0
        self._buffer = bytearray()
        self._message_bytes = 0  # octets of the current message so far, dots unstuffed
        self._told: tuple[str, ...] | MailError | None = None  # the answer to `UserAsked`, for the next line
        self._to_skip = 0  # at the front of the buffer: the line end of DATA is not part of the message
        self._events: deque[Event] = deque()
        self._rejections: list[Rejection] = []
        self._output: list[bytes] = []
        self._answer(Reply(220, None, f"{host} LMTP ready"))

    @property
    def closed(self) -> bool:
        """True if nothing more will be answered: send the remaining output and close."""
        return self._state is State.CLOSED

    @property
    def in_message(self) -> bool:
        """True if the next bytes belong to a message."""
        return self._state in {State.RECEIVING, State.DISCARDING}

    @property
    def buffered_bytes(self) -> int:
        """Memory that the connection's input takes."""
        return len(self._buffer)

    def receive(self, data: bytes | bytearray) -> None:
        """Take bytes from the client."""
        self._buffer += data

    def take_output(self) -> bytes:
        """Return the bytes to send, and clear them."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def take_rejections(self) -> list[Rejection]:
        """Return the refused RCPTs, and clear them. Their number is bounded by the received bytes."""
        rejections, self._rejections = self._rejections, []
        return rejections

    def advance(self) -> Event | None:
        """Process the received bytes. Return the next event, or None if more bytes are needed."""
        while not self._events and self._step():
            pass
        return self._events.popleft() if self._events else None

    def tell(self, users: tuple[str, ...] | MailError) -> None:
        """Answer `UserAsked`: with the users, or with why they are unknown."""
        self._told = users

    def delivered(self, outcomes: Sequence[Reply]) -> None:
        """Answer a message that has ended: one reply for each recipient, in order (RFC 2033 section 4.2)."""
        assert self._state is State.DELIVERING
        assert len(outcomes) == len(self._envelope.recipients)
        for outcome in outcomes:
            self._answer(outcome)
        self._reset()

    def tls_began(self) -> None:
        """Begin again under TLS, without a greeting. What the client said before counts no more (RFC 3207 4.2)."""
        assert self._state is State.STARTING_TLS
        assert not self._buffer
        self._secure = True
        self._envelope = Envelope("")
        self._state = State.GREETED

    def close(self, reply: Reply) -> None:
        """Send a reply that says why, and end the connection."""
        self._answer(reply)
        self.disconnected()

    def disconnected(self) -> None:
        """End the connection: no more input is processed."""
        self._buffer.clear()
        self._state = State.CLOSED

    # ---- lines and data ----------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Process one line, or the available part of a message. Return False if more bytes are needed."""
        if self._state in BETWEEN:
            return self._take_line()
        return self.in_message and self._take_data()

    def _take_line(self) -> bool:
        end = self._buffer.find(b"\n", 0, LINE_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= LINE_BYTES_MAX:
                self.close(replies.LINE_TOO_LONG)
            return False
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        try:
            self._command(line)
        except UserNotLearnedError as asked:
            self._buffer[:0] = line
            self._events.append(UserAsked(asked.name))
        return True

    def _take_data(self) -> bool:
        """Pass on the octets that certainly belong to the message. Return False if its end is not here yet."""
        end = self._buffer.find(END_OF_DATA)
        self._give(self._unstuffed(len(self._buffer) - self._end_begun() if end < 0 else end + 2))
        if end < 0 or self.closed:
            return False
        del self._buffer[: len(END_OF_DATA) - 2]
        if self._state is State.DISCARDING:
            self._refuse_size()
        else:
            self._state = State.DELIVERING
            self._events.append(MessageEnded())
        return True

    def _end_begun(self) -> int:
        """Return the number of octets at the buffer's end that may begin the end of data."""
        return next((size for size in (4, 3, 2, 1) if self._buffer.endswith(END_OF_DATA[:size])), 0)

    def _unstuffed(self, size: int) -> bytes:
        """Take `size` octets, dots unstuffed (RFC 5321 section 4.5.2). The cut never falls behind a CRLF or its dot."""
        with memoryview(self._buffer) as view, view[:size] as part:
            data = bytes(part)
        del self._buffer[:size]
        return data.replace(b"\r\n.", b"\r\n")

    def _give(self, data: bytes) -> None:
        """Pass on the next octets of the message unless it is too large."""
        if data:
            data, self._to_skip = data[self._to_skip :], 0
        self._message_bytes += len(data)
        if self._message_bytes > DISCARD_FACTOR * self._max_message_bytes:
            # A relay that has not read SIZE may finish its message, but no real message is this long.
            self.close(replies.TOO_MUCH_DATA)
        elif self._state is State.RECEIVING and self._message_bytes > self._max_message_bytes:
            self._state = State.DISCARDING
            self._events.append(MessageDropped())
        elif self._state is State.RECEIVING and data:
            self._events.append(MessageData(data))

    def _refuse_size(self) -> None:
        self._state = State.DELIVERING
        self.delivered([replies.too_large(self._max_message_bytes)] * len(self._envelope.recipients))

    # ---- commands ----------------------------------------------------------------------------------------------

    def _command(self, line: bytes) -> None:
        reply = self._perform(line)
        self._answer(reply)
        if reply.code in {500, 501, 503, 555}:
            self._errors += 1
            if self._errors >= ERRORS_MAX:
                self.close(replies.TOO_MANY_ERRORS)

    def _perform(self, line: bytes) -> Reply:
        if not line.endswith(b"\r\n"):
            return replies.BARE_LF
        try:
            text = line[:-2].decode()
        except UnicodeDecodeError:
            return replies.NOT_UTF8
        verb, _, argument = text.partition(" ")
        verb = verb.upper()
        if verb in {"HELO", "EHLO"}:
            return replies.NOT_SMTP
        if verb not in LEGAL:
            return replies.UNKNOWN_COMMAND
        if self._state not in LEGAL[verb]:
            return replies.NO_RECIPIENTS if verb == "DATA" and self._state is State.SENDER else replies.WRONG_ORDER
        return self._handler(verb)(argument)

    def _handler(self, verb: str) -> Callable[[str], Reply]:
        match verb:
            case "LHLO":
                return self._lhlo
            case "MAIL":
                return self._mail
            case "RCPT":
                return self._rcpt
            case "DATA":
                return self._data
            case "RSET":
                return self._rset
            case "QUIT":
                return self._quit
            case "STARTTLS":
                return self._starttls
            case "VRFY":
                return lambda _: replies.CANNOT_VERIFY
            case "HELP":
                return lambda _: replies.HELP
        return lambda _: replies.OK  # NOOP, with or without words

    def _lhlo(self, argument: str) -> Reply:
        client = parse_host(argument)
        if client is None:
            return replies.BAD_LHLO
        self._envelope = Envelope(client)
        self._reset()
        starttls = ("STARTTLS",) if self._offers_tls and not self._secure else ()
        for extension in (self._host, "PIPELINING", "ENHANCEDSTATUSCODES", "8BITMIME", "SMTPUTF8", *starttls):
            self._output.append(f"250-{extension}\r\n".encode())
        return Reply(250, None, f"SIZE {self._max_message_bytes}")

    def _starttls(self, argument: str) -> Reply:
        if argument.strip(" "):
            return replies.NO_ARGUMENTS
        if self._secure or not self._offers_tls:
            return replies.NO_TLS
        self._state = State.STARTING_TLS
        self._events.append(TlsAccepted())
        return replies.START_TLS

    def _mail(self, argument: str) -> Reply:
        path = parse_from(argument)
        if path is None:
            return replies.BAD_SENDER
        utf8 = "SMTPUTF8" in path.parameters
        problem = self._mail_problem(path, utf8=utf8)
        if problem is not None:
            return problem
        self._envelope = Envelope(self._envelope.client, path.address, utf8=utf8, secure=self._secure)
        self._state = State.SENDER
        return replies.SENDER_OK

    def _mail_problem(self, path: Path, *, utf8: bool) -> Reply | None:
        if not utf8 and not str(path.address).isascii():
            return replies.NEEDS_SMTPUTF8
        for name, value in path.parameters.items():
            match name, value and value.upper():
                case "SIZE", str(size) if size.isascii() and size.isdigit():  # RFC 1870: up to 20 digits
                    if len(size) > 20 or int(size) > self._max_message_bytes:
                        return replies.too_large(self._max_message_bytes)
                case ("BODY", "7BIT" | "8BITMIME") | ("SMTPUTF8", None):
                    pass
                case _:
                    return replies.UNKNOWN_PARAMETER
        return None

    def _rcpt(self, argument: str) -> Reply:
        reply = self._recipient(argument)
        if reply != replies.RECIPIENT_OK:
            self._rejections.append(Rejection(self._envelope.sender, argument, reply))
        return reply

    def _recipient(self, argument: str) -> Reply:
        path = parse_to(argument)
        if path is None or path.address is None:
            return replies.BAD_RECIPIENT
        if path.parameters:
            return replies.UNKNOWN_PARAMETER
        if not self._envelope.utf8 and not str(path.address).isascii():
            return replies.NEEDS_SMTPUTF8
        if len(self._envelope.recipients) >= RECIPIENTS_MAX:
            return replies.TOO_MANY_RECIPIENTS
        try:
            users = self._users_of(path.address.name)
        except UserNotLearnedError:
            raise
        except MailError as error:
            return reply_for(error)
        if not users:
            return replies.UNKNOWN_USER
        recipients = (*self._envelope.recipients, Recipient(path.address, users))
        envelope = replace(self._envelope, recipients=recipients)
        if len(recipients) > 1 and len(users) > 1 and len(envelope.users) > USERS_MAX:
            return replies.TOO_MANY_RECIPIENTS
        self._envelope = envelope
        self._state = State.RECIPIENTS
        return replies.RECIPIENT_OK

    def _users_of(self, name: str) -> tuple[str, ...]:
        """Return the users of a recipient; none if there are none. Raises MailError."""
        told, self._told = self._told, None
        if told is None:
            return self._find_users(name)
        if isinstance(told, MailError):
            raise told
        return told

    def _data(self, argument: str) -> Reply:
        if argument.strip(" "):
            return replies.NO_ARGUMENTS
        # A dot may follow DATA directly, so the line end of this command is put back in front of the message.
        self._buffer[:0] = b"\r\n"
        self._to_skip = 2
        self._message_bytes = 0
        self._state = State.RECEIVING
        self._events.append(MessageBegun(self._envelope))
        return replies.SEND_MESSAGE

    def _rset(self, argument: str) -> Reply:
        if argument.strip(" "):
            return replies.NO_ARGUMENTS
        if self._state is not State.GREETED:
            self._reset()
        return replies.OK

    def _quit(self, argument: str) -> Reply:
        if argument.strip(" "):
            return replies.NO_ARGUMENTS
        self.disconnected()
        return replies.BYE

    def _reset(self) -> None:
        self._envelope = Envelope(self._envelope.client)
        self._state = State.READY

    def _answer(self, reply: Reply) -> None:
        self._output.append(reply.encode())
