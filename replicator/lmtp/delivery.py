"""From a received message to the mail store, and back to replies and the log."""

from __future__ import annotations

import logging

import trio

from replicator.errors import MailError
from replicator.lmtp import replies
from replicator.lmtp.machine import ReceivedMessage
from replicator.lmtp.replies import Reply, reply_for
from replicator.lmtp.services import LmtpServices
from replicator.lmtp.trace import message_id, traced
from replicator.log_fields import LogFields
from replicator.mailstore import INBOX, NewMessage, SavedMessage

log = logging.getLogger(__name__)

SAVES_AT_ONCE = 16
"""Of one message: enough to share group commits, not enough to crowd out other connections."""

Outcome = SavedMessage | MailError


async def deliver(services: LmtpServices, message: ReceivedMessage, client_ip: str | None) -> list[Reply]:
    """Store the message in the INBOX of each of its users, once each. A reply for each recipient, in order.

    Cancelled, it may have stored some: none has been reported then, and the sender tries again.
    """
    now_ms, trace_id = services.clock_ms(), services.new_id()
    # Nothing in it depends on the recipient: the text is the same for all, and is stored as one.
    text = traced(message, host=services.node_name, client_ip=client_ip, trace_id=trace_id, now_ms=now_ms)
    new = NewMessage(text, received_ms=now_ms)
    users = tuple(dict.fromkeys(message.envelope.users))
    outcomes = await _save_all(services, users, new)
    outcomes = {user: outcomes[user] for user in users}  # the log has the order of the recipients, too
    if log.isEnabledFor(logging.INFO):
        _log(message, outcomes, {"size": len(text), "client": client_ip, "id": trace_id})
    return [_reply(user, outcomes[user]) for user in message.envelope.users]


async def _save_all(services: LmtpServices, users: tuple[str, ...], new: NewMessage) -> dict[str, Outcome]:
    if len(users) == 1:  # nearly always, and then a nursery is what costs most
        return {users[0]: await _save(services, users[0], new)}
    outcomes: dict[str, Outcome] = {}
    limiter = trio.CapacityLimiter(SAVES_AT_ONCE)

    async def save(user: str) -> None:
        async with limiter:
            outcomes[user] = await _save(services, user, new)

    async with trio.open_nursery() as nursery:
        for user in users:
            nursery.start_soon(save, user)
    return outcomes


async def _save(services: LmtpServices, user: str, new: NewMessage) -> Outcome:
    try:
        folder = await services.mail.folder(user, INBOX)
        return await services.mail.save(folder, new)
    except MailError as error:
        return error


def _reply(user: str, outcome: Outcome) -> Reply:
    return reply_for(outcome) if isinstance(outcome, MailError) else replies.delivered(user, outcome.uid)


def _log(message: ReceivedMessage, outcomes: dict[str, Outcome], common: dict[str, object]) -> None:
    """One line for each user."""
    heard = {"mid": message_id(message.text), "from": f"<{message.envelope.sender or ''}>"}
    for user, outcome in outcomes.items():
        if isinstance(outcome, MailError):
            reply = reply_for(outcome)
            told = {"code": reply.code, "reason": reply.text}
            log.info("refused %s", LogFields({**heard, "to": user, **told, **common}))
        else:
            log.info("delivered %s", LogFields({**heard, "to": user, "uid": outcome.uid, **common}))
