"""What final delivery writes at the top of a message (RFC 5321 section 4.4), and what it takes away there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import format_datetime

from protocol.units import KIB
from replicator.lmtp.machine import Envelope, ReceivedMessage

# At the top only: nobody reads a whole header for what the relay before us would have written there.
RETURN_PATHS = re.compile(rb"(?:Return-Path[ \t]*:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*)+", re.IGNORECASE)

MESSAGE_ID = re.compile(rb"^Message-ID[ \t]*:(?:[ \t]|\r\n[ \t])*([^\s]+)", re.IGNORECASE | re.MULTILINE)
HEADER_BYTES_MAX = 64 * KIB
"""In which a Message-ID is looked for, for the log alone."""


def traced(message: ReceivedMessage, *, host: str, client_ip: str | None, trace_id: str, now_ms: int) -> bytes:
    """The message with `Return-Path:` and `Received:`; a Return-Path that it began with is replaced."""
    headers = _headers(message.envelope, host=host, client_ip=client_ip, trace_id=trace_id, now_ms=now_ms)
    former = RETURN_PATHS.match(message.text)
    # A message of 50 MiB is copied once.
    return b"".join((headers, memoryview(message.text)[former.end() if former else 0 :]))


def message_id(text: bytes) -> str | None:
    """The Message-ID, None if there is none."""
    end = text.find(b"\r\n\r\n", 0, HEADER_BYTES_MAX)
    found = MESSAGE_ID.search(text, 0, end if end >= 0 else HEADER_BYTES_MAX)
    return found[1].decode("utf-8", "replace") if found else None


def host_name(sid: str, cluster: str) -> str:
    """What the node calls itself: `dc1.mail`.

    It is a Domain of RFC 5321 section 4.1.2, which has fewer characters than ids and cluster names.
    """
    labels = (re.sub(r"[^A-Za-z0-9-]", "-", label).strip("-") for label in f"{sid}.{cluster}".split("."))
    return ".".join(label for label in labels if label)


def _headers(envelope: Envelope, *, host: str, client_ip: str | None, trace_id: str, now_ms: int) -> bytes:
    """Stamp of RFC 5321 section 4.4; the protocol's name: RFC 3848, RFC 6531 section 4.3."""
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
