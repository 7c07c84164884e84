"""An IMAP server on loopback that says what a test tells it to, in a thread: broken servers, and lies."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

TEXT = b"Subject: x\r\n\r\nx\r\n"
HONEST: Mapping[str, bytes] = {
    "CAPABILITY": b"* CAPABILITY IMAP4rev1 CONDSTORE NAMESPACE\r\n",
    "LOGIN": b"",
    "NAMESPACE": b'* NAMESPACE (("" "/")) NIL NIL\r\n',
    "LIST": b'* LIST () "/" INBOX\r\n',
    "LSUB": b'* LSUB () "/" INBOX\r\n',
    "STATUS": b"* STATUS INBOX (MESSAGES 1 UIDNEXT 8 UIDVALIDITY 5 HIGHESTMODSEQ 9)\r\n",
    "EXAMINE": b"* 1 EXISTS\r\n* OK [UIDVALIDITY 5] x\r\n",
    "FETCH": b'* 1 FETCH (UID 7 FLAGS (\\Seen) INTERNALDATE " 1-Feb-2024 10:20:30 +0000" RFC822.SIZE %d)\r\n'
    % len(TEXT),
    "UID FETCH": b"* 1 FETCH (UID 7 BODY[]<0> {%d}\r\n%s)\r\n" % (len(TEXT), TEXT),
    "LOGOUT": b"* BYE\r\n",
}
"""What a server with one message answers, without the last line, by the command."""

Answer = bytes | Callable[[bytes], bytes]
"""What is said, or how it follows from the command; if it ends without a line end, the connection ends, too.

What begins with NO or BAD refuses the command.
"""


@dataclass
class LyingServer:
    """A server that runs. `asked` are the commands that it was sent."""

    port: int
    asked: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"imap://alice@127.0.0.1:{self.port}"


@contextmanager
def lying_server(**lies: Answer) -> Iterator[LyingServer]:
    """Run a server that is honest but for these answers, by commands with `_` for a space."""
    answers: dict[str, Answer] = {**HONEST, **{name.replace("_", " "): answer for name, answer in lies.items()}}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = LyingServer(int(listener.getsockname()[1]))
        threading.Thread(target=_accept, args=(listener, server, answers), daemon=True).start()
        yield server
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, server: LyingServer, answers: Mapping[str, Answer]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection, server, answers), daemon=True).start()


def _serve(connection: socket.socket, server: LyingServer, answers: Mapping[str, Answer]) -> None:
    with connection, suppress(OSError), connection.makefile("rb") as lines:
        connection.sendall(b"* OK hello\r\n")
        for line in lines:
            found = re.fullmatch(rb"(\w+) ((UID \w+|\w+)[^\r\n]*)\r\n", line)
            if found is None:  # TLS, for instance
                return
            tag, command, name = found.groups()
            server.asked.append(command)
            answer = answers.get(name.decode().upper(), b"")
            said = answer(command) if callable(answer) else answer
            if said.startswith((b"NO ", b"BAD ")):
                connection.sendall(tag + b" " + said)
                continue
            is_whole = not said or said.endswith(b"\n")
            connection.sendall(said + tag + b" OK done\r\n" if is_whole else said)
            if not is_whole:
                return
