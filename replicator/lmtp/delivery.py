"""Delivery of one incoming message to the mail store, with its replies and log lines.

The message goes into the store's sink piece by piece, whatever its size. If the store rejects a piece, the rest of the
message is skipped, and every recipient gets that error as the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from replicator.errors import MailError
from replicator.lmtp import replies
from replicator.lmtp.events import Envelope, Recipient
from replicator.lmtp.replies import Reply, reply_for
from replicator.lmtp.services import LmtpServices
from replicator.lmtp.trace import Top, trace_headers
from replicator.mail.mailstore import BodySink, NewMessage, ReceivedBody, SavedMessage
from replicator.runtime.logs.fields import LogFields

log = logging.getLogger(__name__)

STORED, KEEP, REFUSED = 2, 4, 5
"""First digits of replies: the message is stored; the sender is to keep it, and try again; it is refused."""

SEVERITY = {STORED: 0, REFUSED: 1, KEEP: 2}
"""Order of replies, of which the worst is told for an alias."""

SAVES_AT_ONCE = 16
"""Concurrent saves of one message: enough to share group commits, not enough to crowd out other connections."""

Outcome = SavedMessage | MailError


class Delivery:
    """Delivery of one message within the block of its sink: `write` the pieces, then `finish`."""

    def __init__(self, services: LmtpServices, envelope: Envelope, sink: BodySink, client_ip: str | None) -> None:
        self._services = services
        self._envelope = envelope
        self._sink = sink
        self._client_ip = client_ip
        self._trace_id = services.new_id()
        self._top: Top | None = Top()  # until the top of the message is written
        self._message_id: str | None = None
        self._received_ms = 0
        self._size_bytes = 0
        self._error: MailError | None = None

    async def write(self, data: bytes) -> None:
        """Take the next octets of the message, waiting for the store if need be."""
        if self._top is None:
            await self._store(data)
        elif self._top.add(data):
            await self._store_top(self._top)

    async def finish(self) -> list[Reply]:
        """Store the message in each user's INBOX, once per user. Return a reply for each recipient, in order.

        If cancelled, some copies may be stored; no reply has been sent then, and the sender tries again.
        """
        if self._top is not None:
            await self._store_top(self._top)
        users = self._envelope.users
        outcomes = await self._save_all(users)
        if log.isEnabledFor(logging.INFO):
            self._log({user: outcomes[user] for user in users})  # in the order of the recipients
        return [_reply_of(recipient, outcomes) for recipient in self._envelope.recipients]

    async def _store_top(self, top: Top) -> None:
        """Write the top of the message. It does not depend on the recipient, so one body serves all recipients."""
        services = self._services
        self._top = None
        if log.isEnabledFor(logging.INFO):
            self._message_id = top.message_id()
        self._received_ms = services.clock_ms()
        headers = trace_headers(
            self._envelope,
            host=services.node_name,
            client_ip=self._client_ip,
            trace_id=self._trace_id,
            now_ms=self._received_ms,
        )
        await self._store(top.traced(headers))

    async def _store(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._error is None:
            try:
                await self._sink.write(data)
            except MailError as error:
                self._error = error

    async def _received(self) -> ReceivedBody | MailError:
        """Return the complete body, or the error that prevented it."""
        try:
            return self._error or await self._sink.finish()
        except MailError as error:
            return error

    async def _save_all(self, users: tuple[str, ...]) -> dict[str, Outcome]:
        body = await self._received()
        if isinstance(body, MailError):
            return dict.fromkeys(users, body)
        new = NewMessage(body, received_ms=self._received_ms)
        if len(users) == 1:  # nearly always, and a nursery would cost most of the time then
            return {users[0]: await _save(self._services, users[0], new)}
        outcomes: dict[str, Outcome] = {}
        limiter = trio.CapacityLimiter(SAVES_AT_ONCE)

        async def save(user: str) -> None:
            async with limiter:
                outcomes[user] = await _save(self._services, user, new)

        async with trio.open_nursery() as nursery:
            for user in users:
                nursery.start_soon(save, user)
        return outcomes

    def _log(self, outcomes: dict[str, Outcome]) -> None:
        """Log one line for each user. The size is that of the received message, even if it could not be stored."""
        heard: dict[str, object] = {"mid": self._message_id, "from": f"<{self._envelope.sender or ''}>"}
        common = {"size": self._size_bytes, "client": self._client_ip, "id": self._trace_id}
        aliases = {user: one.address for one in self._envelope.recipients if one.is_alias for user in one.users}
        for user, outcome in outcomes.items():
            heard["alias"] = aliases.get(user)
            if isinstance(outcome, MailError):
                reply = reply_for(outcome)
                told = {"code": reply.code, "reason": reply.text}
                log.info("refused %s", LogFields({**heard, "to": user, **told, **common}))
            else:
                log.info(
                    "delivered %s",
                    LogFields({**heard, "to": user, "uid": outcome.uid, **common, "entry": outcome.entry}),
                )


async def _save(services: LmtpServices, user: str, new: NewMessage) -> Outcome:
    try:
        return await services.mail.deliver(user, new)
    except MailError as error:
        return error


def _reply_of(recipient: Recipient, outcomes: Mapping[str, Outcome]) -> Reply:
    """Return the only reply that LMTP has for a recipient, whose users may fare differently.

    While one may yet get the message, the sender has to keep it: those who have it then get it twice. Else a refusal
    must be heard of, since somebody has not got it.
    """
    if not recipient.is_alias:
        [user] = recipient.users
        return _reply(user, outcomes[user])
    found = {user: _reply(user, outcomes[user]) for user in recipient.users}
    user, worst = max(found.items(), key=lambda one: SEVERITY[one[1].code // 100])
    return worst if worst.code // 100 == STORED else Reply(worst.code, worst.enhanced, f"<{user}> {worst.text}")


def _reply(user: str, outcome: Outcome) -> Reply:
    return reply_for(outcome) if isinstance(outcome, MailError) else replies.delivered(user, outcome.uid)
