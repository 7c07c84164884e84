"""Headers that final delivery adds at the top of a message (RFC 5321 section 4.4), and removes there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime

from protocol.units import KIB
from replicator.lmtp.events import Envelope

HEADER_END = b"\r\n\r\n"

# At the top only, where the previous relay would have written it; the rest of the header is not searched.
RETURN_PATHS = re.compile(rb"(?:Return-Path[ \t]*:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*)+", re.IGNORECASE)

MESSAGE_ID = re.compile(rb"^Message-ID[ \t]*:(?:[ \t]|\r\n[ \t])*([^\s]+)", re.IGNORECASE | re.MULTILINE)
HEADER_BYTES_MAX = 64 * KIB
"""Octets in which a Message-ID and former trace headers are searched; so much is buffered until the header ends."""


@dataclass(slots=True)
class Top:
    """The top of an incoming message, up to the end of its header or to `HEADER_BYTES_MAX`.

    The result does not depend on how the message is cut into pieces.
    """

    _text: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> bool:
        """Add the next octets. Return True once there are enough."""
        searched = max(0, len(self._text) - len(HEADER_END) + 1)
        self._text += data
        return len(self._text) >= HEADER_BYTES_MAX or self._text.find(HEADER_END, searched) >= 0

    def message_id(self) -> str | None:
        """Return the Message-ID, or None if there is none."""
        end = self._text.find(HEADER_END, 0, HEADER_BYTES_MAX)
        found = MESSAGE_ID.search(self._text, 0, end if end >= 0 else HEADER_BYTES_MAX)
        return found[1].decode("utf-8", "replace") if found else None

    def traced(self, headers: bytes) -> bytes:
        """Return the octets so far below these headers, without a Return-Path at their beginning."""
        former = RETURN_PATHS.match(self._text, 0, HEADER_BYTES_MAX)
        return b"".join((headers, memoryview(self._text)[former.end() if former else 0 :]))


def host_name(sid: str, cluster: str) -> str:
    """Return the node's host name: `dc1.mail`.

    It is a Domain of RFC 5321 section 4.1.2, which allows fewer characters than SIDs and cluster names.
    """
    labels = (re.sub(r"[^A-Za-z0-9-]", "-", label).strip("-") for label in f"{sid}.{cluster}".split("."))
    return ".".join(label for label in labels if label)


def trace_headers(envelope: Envelope, *, host: str, client_ip: str | None, trace_id: str, now_ms: int) -> bytes:
    """Return `Return-Path:` and `Received:` (RFC 5321 section 4.4), and `Delivered-To:` (RFC 9228) of an alias.

    The protocol's name follows RFC 3848 and RFC 6531 section 4.3.
    """
    client = f"{envelope.client} ({_literal(client_ip)})" if client_ip else envelope.client
    protocol = ("UTF8LMTP" if envelope.utf8 else "LMTP") + ("S" if envelope.secure else "")
    date = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    return (
        f"Return-Path: <{envelope.sender or ''}>\r\n{_delivered_to(envelope)}"
        f"Received: from {client}\r\n"
        f"\tby {host} with {protocol} id {trace_id}{_for(envelope)};\r\n"
        f"\t{date}\r\n"
    ).encode()


def _delivered_to(envelope: Envelope) -> str:
    """Return a header with the alias by which the message came, if there is exactly one recipient; see `_for`."""
    match envelope.recipients:
        case [recipient] if recipient.is_alias:
            return f"Delivered-To: {recipient.address}\r\n"
    return ""


def _for(envelope: Envelope) -> str:
    """Return the `for` clause if there is exactly one recipient, with the domain that a Path must have.

    Recipients must not learn of other recipients (RFC 5321 section 7.6).
    """
    match envelope.recipients:
        case [recipient] if recipient.address.domain:
            return f"\r\n\tfor <{recipient.address}>"
    return ""


def _literal(ip: str) -> str:
    """Return the address literal of RFC 5321 section 4.1.3."""
    return f"[IPv6:{ip}]" if ":" in ip else f"[{ip}]"
