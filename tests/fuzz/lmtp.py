"""Input of a mail server: commands, and messages that end where only CRLF "." CRLF is."""

from __future__ import annotations

from replicator.lmtp.machine import ERRORS_MAX, LINE_BYTES_MAX
from tests.fuzz.target import Target, pieces_of
from tests.lmtp.machine_client import LIMIT, MachineClient

START = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\n"
REPLY_OCTETS_MAX = 512  # RFC 5321 section 4.5.3.1.5


def check(data: bytes) -> None:
    """Hold the same conversation whole and in pieces, with messages within their limit and bounded memory."""
    whole, pieces = pieces_of(data)
    at_once, cut = MachineClient(), MachineClient()
    said = at_once.send(whole)
    assert "".join(map(cut.send, pieces)) == said
    assert cut.messages == at_once.messages
    assert cut.machine.closed == at_once.machine.closed
    for client in (at_once, cut):
        assert client.machine.buffered_bytes <= LINE_BYTES_MAX
        assert all(len(message.body) <= LIMIT for message in client.messages)
        assert client.messages == [] or all(message.envelope.recipients for message in client.messages)
    lines = said.encode().split(b"\r\n")
    assert lines.pop() == b""
    assert all(len(line) + 2 <= REPLY_OCTETS_MAX and line.isascii() and line[:3].isdigit() for line in lines)
    assert sum(line.startswith((b"500 ", b"501 ", b"503 ", b"555 ")) for line in lines) <= ERRORS_MAX


TARGET = Target(
    "lmtp",
    check,
    seeds=(
        b"\x07" + START + b"RCPT TO:<nobody@here>\r\nDATA\r\nSubject: x\r\n\r\n..dot\r\nend\r\n.\r\nQUIT\r\nNOOP\r\n",
        b"\x03" + START + b"DATA\r\n.\r\nRSET\r\nNOOP x\r\nVRFY x\r\nHELP\r\n",
        b'\x02LHLO [IPv6:::1]\r\nMAIL FROM:<"a \\" > b"@x> SIZE=20 BODY=8BITMIME SMTPUTF8\r\nRCPT TO:<@a:bob+x@y>\r\n',
        b"\x3f" + START + b"DATA\r\n" + b"x" * (LIMIT + 9) + b"\r\n.\r\nNOOP\r\n",
    ),
    words=(
        *(
            b"\r\n",
            b".\r\n",
            b"\r\n.\r\n",
            b"\r",
            b"\n",
            b".",
            b" ",
            b"<",
            b">",
            b"@",
            b'"',
            b"\\",
            b"+",
            b",",
            b":",
            b"[",
            b"]",
        ),
        *(
            b"LHLO x\r\n",
            b"MAIL FROM:<",
            b"RCPT TO:<",
            b"DATA\r\n",
            b"RSET\r\n",
            b"QUIT\r\n",
            b"NOOP",
            b"HELO",
            b"alice",
        ),
        *(b" SIZE=", b" BODY=8BITMIME", b" SMTPUTF8", b"9" * 21, b"\xc3\xa9", b"\xff", b"\0", b"x" * 512, START),
    ),
)
