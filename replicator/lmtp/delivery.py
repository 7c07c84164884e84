"""From a received message to the mail store, and back to replies."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from email.utils import format_datetime

import trio

from replicator.errors import MailError
from replicator.lmtp.machine import Envelope, ReceivedMessage
from replicator.lmtp.replies import DELIVERED, Reply, reply_for
from replicator.lmtp.services import LmtpServices
from replicator.mailstore import INBOX, NewMessage

log = logging.getLogger(__name__)

SAVES_AT_ONCE = 16
"""Of one message: enough to share group commits, not enough to crowd out other connections."""


async def deliver(services: LmtpServices, message: ReceivedMessage, client_ip: str | None) -> list[Reply]:
    """Store the message in the INBOX of each of its users, once each. A reply for each recipient, in order.

    Cancelled, it may have stored some: none has been reported then, and the sender tries again.
    """
    envelope = message.envelope
    now_ms = services.clock_ms()
    headers = trace_headers(envelope, node_name=services.node_name, client_ip=client_ip, now_ms=now_ms)
    # Nothing in it depends on the recipient: the text is the same for all, and is stored as one.
    new = NewMessage(headers + message.text, received_ms=now_ms)
    users = tuple(dict.fromkeys(envelope.users))
    outcomes = await _save_all(services, users, new)
    for user in users:
        outcome = outcomes[user]
        log.info(
            "from <%s> to %r, %d bytes: %d %s", envelope.sender or "", user, len(new.text), outcome.code, outcome.text
        )
    return [outcomes[user] for user in envelope.users]


async def _save_all(services: LmtpServices, users: tuple[str, ...], new: NewMessage) -> dict[str, Reply]:
    if len(users) == 1:  # nearly always, and then a nursery is what costs most
        return {users[0]: await _save(services, users[0], new)}
    outcomes: dict[str, Reply] = {}
    limiter = trio.CapacityLimiter(SAVES_AT_ONCE)

    async def save(user: str) -> None:
        async with limiter:
            outcomes[user] = await _save(services, user, new)

    async with trio.open_nursery() as nursery:
        for user in users:
            nursery.start_soon(save, user)
    return outcomes


async def _save(services: LmtpServices, user: str, new: NewMessage) -> Reply:
    try:
        folder = await services.mail.folder(user, INBOX)
        await services.mail.save(folder, new)
    except MailError as error:
        return reply_for(error)
    return DELIVERED


def trace_headers(envelope: Envelope, *, node_name: str, client_ip: str | None, now_ms: int) -> bytes:
    """`Return-Path:` and `Received:` (RFC 5321 section 4.4; the protocol's name: RFC 3848, RFC 6531 section 4.3)."""
    client = f"{envelope.client} ({_literal(client_ip)})" if client_ip else envelope.client
    protocol = "UTF8LMTP" if envelope.utf8 else "LMTP"
    date = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    return (
        f"Return-Path: <{envelope.sender or ''}>\r\n"
        f"Received: from {client}\r\n"
        f"\tby {node_name} with {protocol};\r\n"
        f"\t{date}\r\n"
    ).encode()


def _literal(ip: str) -> str:
    """RFC 5321 section 4.1.3."""
    return f"[IPv6:{ip}]" if ":" in ip else f"[{ip}]"
