"""The message of an APPEND, a literal whose command runs while it arrives (RFC 3501 section 4.3, RFC 7888).

It ends its command. So the whole command is known when the literal begins, and a bad command can be refused before a
client that waits for permission has sent the message. Only a message may be large.
"""

from __future__ import annotations

import trio

from protocol.framing import ContinuationNeeded, Event, Frame, LargeLiteral, LiteralChunk
from replicator.imap.wire.connection import Connection
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import continuation
from replicator.mailstore import sending_s


class IncomingLiteral:
    """Octets of the literal as the client sends them. Call `skip` before the next command is read."""

    def __init__(self, connection: Connection, begun: LargeLiteral | ContinuationNeeded) -> None:
        self._connection = connection
        self._begun = begun
        self._client_waits = isinstance(begun, ContinuationNeeded) or begun.synchronising
        self._over = False  # the framer is at the next command
        self._by = trio.current_time() + sending_s(begun.size)

    async def next_chunk(self) -> bytes | None:
        """Return the next octets, or None at the end of the command. Raises as `Connection.next_event`.

        Raises CommandFailedError if anything follows the literal within the command.
        """
        if self._over:
            return None
        if self._client_waits:
            self._client_waits = False
            await self._connection.write([continuation("Send the literal")])
            await self._connection.flush()
        event = await self._connection.next_event(self._by)
        if isinstance(event, LiteralChunk):
            return event.data
        self._note(event)
        if isinstance(event, Frame) and event.text == self._begun.frame.text:
            return event.literals[-1] or None  # a small literal comes with the frame; of a large one that part is empty
        raise CommandFailedError("Expected the end of the command after the message", condition="BAD")

    async def skip(self) -> None:
        """Skip the rest of the command so that it can be answered; refuse a literal that was not sent yet."""
        if self._client_waits:
            self._client_waits = False
            self._refuse()
        while not self._over:
            self._note(await self._connection.next_event(self._by))

    def _note(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._over = True
        elif isinstance(event, ContinuationNeeded) or (isinstance(event, LargeLiteral) and event.synchronising):
            self._refuse()

    def _refuse(self) -> None:
        self._connection.refuse()
        self._over = True
