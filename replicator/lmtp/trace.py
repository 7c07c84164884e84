"""What final delivery writes at the top of a message (RFC 5321 section 4.4), and what it takes away there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime

from protocol.units import KIB
from replicator.lmtp.machine import Envelope

HEADER_END = b"\r\n\r\n"

# At the top only: nobody reads a whole header for what the relay before us would have written there.
RETURN_PATHS = re.compile(rb"(?:Return-Path[ \t]*:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*)+", re.IGNORECASE)

MESSAGE_ID = re.compile(rb"^Message-ID[ \t]*:(?:[ \t]|\r\n[ \t])*([^\s]+)", re.IGNORECASE | re.MULTILINE)
HEADER_BYTES_MAX = 64 * KIB
"""In which a Message-ID is looked for, and what is to be replaced: so much of a message waits for its header's end."""


@dataclass(slots=True)
class Top:
    """The top of a message as it comes in, until its header has ended or is longer than `HEADER_BYTES_MAX`.

    However the message is cut, the same is taken off it.
    """

    _text: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> bool:
        """Take the next octets. Whether there are enough of them."""
        searched = max(0, len(self._text) - len(HEADER_END) + 1)
        self._text += data
        return len(self._text) >= HEADER_BYTES_MAX or self._text.find(HEADER_END, searched) >= 0

    def message_id(self) -> str | None:
        """The Message-ID, None if there is none."""
        end = self._text.find(HEADER_END, 0, HEADER_BYTES_MAX)
        found = MESSAGE_ID.search(self._text, 0, end if end >= 0 else HEADER_BYTES_MAX)
        return found[1].decode("utf-8", "replace") if found else None

    def traced(self, headers: bytes) -> bytes:
        """All that came so far under these headers; a Return-Path that it began with is gone."""
        former = RETURN_PATHS.match(self._text, 0, HEADER_BYTES_MAX)
        return b"".join((headers, memoryview(self._text)[former.end() if former else 0 :]))


def host_name(sid: str, cluster: str) -> str:
    """What the node calls itself: `dc1.mail`.

    It is a Domain of RFC 5321 section 4.1.2, which has fewer characters than ids and cluster names.
    """
    labels = (re.sub(r"[^A-Za-z0-9-]", "-", label).strip("-") for label in f"{sid}.{cluster}".split("."))
    return ".".join(label for label in labels if label)


def trace_headers(envelope: Envelope, *, host: str, client_ip: str | None, trace_id: str, now_ms: int) -> bytes:
    """`Return-Path:` and `Received:` (RFC 5321 section 4.4); the protocol's name: RFC 3848, RFC 6531 section 4.3."""
    client = f"{envelope.client} ({_literal(client_ip)})" if client_ip else envelope.client
    protocol = "UTF8LMTP" if envelope.utf8 else "LMTP"
    date = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    return (
        f"Return-Path: <{envelope.sender or ''}>\r\n"
        f"Received: from {client}\r\n"
        f"\tby {host} with {protocol} id {trace_id}{_for(envelope)};\r\n"
        f"\t{date}\r\n"
    ).encode()


def _for(envelope: Envelope) -> str:
    """Nobody is told of other recipients (RFC 5321 section 7.6); a Path has a domain."""
    match envelope.recipients:
        case [recipient] if recipient.address.domain:
            return f"\r\n\tfor <{recipient.address}>"
    return ""


def _literal(ip: str) -> str:
    """RFC 5321 section 4.1.3."""
    return f"[IPv6:{ip}]" if ":" in ip else f"[{ip}]"
