"""The message of an APPEND, a literal whose command runs while it arrives (RFC 3501 section 4.3, RFC 7888).

All that comes before it is known when it begins, so a bad command can be refused before a client that waits for
permission has sent the message. Other messages may follow (RFC 3502), or parts of the same one (RFC 4469). Only a
message may be large.
"""

from __future__ import annotations

import trio

from protocol.framing import ContinuationNeeded, Event, Frame, LargeLiteral, LiteralChunk
from replicator.imap.wire.connection import Connection
from replicator.imap.wire.responses import continuation
from replicator.mail.mailstore import SLOWEST_BYTES_S, sending_s


class IncomingLiteral:
    """Octets of the literal as the client sends them. Call `skip` before the next command is read."""

    def __init__(self, connection: Connection, begun: LargeLiteral | ContinuationNeeded) -> None:
        self._connection = connection
        self._begun = begun
        self._client_waits = _waits(begun)
        self._next: LargeLiteral | ContinuationNeeded | Frame | None = None  # what has come after the literal
        self._done = begun.frame  # the command up to the last literal that was read
        self._over = False  # the framer is at the next command
        self._by = trio.current_time() + sending_s(begun.size)

    @property
    def size(self) -> int:
        """Size of the literal in octets."""
        return self._begun.size

    async def next_chunk(self) -> bytes | None:
        """Return the next octets, or None at the end of the literal. Raises as `Connection.next_event`."""
        if self._next is not None:
            return None
        await self._permit()
        event = await self._connection.next_event(self._by)
        if isinstance(event, LiteralChunk):
            return event.data
        self._next, self._over = event, isinstance(event, Frame)
        # A small literal comes with what follows it; of a large one that part is empty.
        return _frame(event).literals[len(self._begun.frame.literals) - 1] or None

    def proceed(self) -> tuple[Frame, bool]:
        """Return what follows the literal, at its end; True if its last literal begins now, to be read like this one.

        That is never more than one frame may hold.
        """
        self._done = self._begun.frame
        return self._follow()

    async def read_on(self) -> tuple[Frame, bool]:
        """Read the literal that begins now as any other part of the command. Return as `proceed` what has come since.

        Call only if the literal is not large. Raises as `Connection.next_event`.
        """
        await self._permit()
        event = await self._connection.next_event(self._by)
        assert not isinstance(event, LiteralChunk), "the literal is not large"
        self._next = event
        return self._follow()

    @property
    def large(self) -> bool:
        """True if the literal cannot be read as any other part of a command."""
        return isinstance(self._begun, LargeLiteral)

    def _follow(self) -> tuple[Frame, bool]:
        event, done = self._next, self._done
        assert event is not None, "the literal has not ended"
        found = _frame(event)
        rest = Frame(found.text[len(done.text) :], found.literals[len(done.literals) :])
        if isinstance(event, Frame):
            return rest, False
        self._begun, self._next = event, None
        self._client_waits = _waits(event)
        self._by += event.size / SLOWEST_BYTES_S
        return rest, True

    async def skip(self) -> None:
        """Skip the rest of the command so that it can be answered; refuse a literal that was not sent yet."""
        if self._client_waits:
            self._client_waits = False
            self._refuse()
        elif self._next is not None:
            self._note(self._next)
        while not self._over:
            self._note(await self._connection.next_event(self._by))

    async def _permit(self) -> None:
        if self._client_waits:
            self._client_waits = False
            await self._connection.write([continuation("Send the literal")])
            await self._connection.flush()

    def _note(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._over = True
        elif not isinstance(event, LiteralChunk) and _waits(event):
            self._refuse()

    def _refuse(self) -> None:
        self._connection.refuse()
        self._over = True


def _waits(begun: LargeLiteral | ContinuationNeeded) -> bool:
    return isinstance(begun, ContinuationNeeded) or begun.synchronising


def _frame(event: LargeLiteral | ContinuationNeeded | Frame) -> Frame:
    return event if isinstance(event, Frame) else event.frame
