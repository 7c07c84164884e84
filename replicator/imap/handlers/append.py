"""APPEND (RFC 3501 section 6.3.11) of one or more messages (RFC 3502).

What is large, or for which the client waits, is read as the command runs. The messages are stored when all are here.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from protocol.framing import ContinuationNeeded, Frame, LargeLiteral
from replicator.errors import MessageTooLargeError
from replicator.flags import settable_in
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.command_parser import CommandSyntaxError
from replicator.imap.wire.connection import WHOLE_LITERAL_BYTES
from replicator.imap.wire.large_literal import IncomingLiteral
from replicator.imap.wire.refusals import CommandFailedError, offering_to_create
from replicator.imap.wire.responses import appenduid
from replicator.mailstore import BodySink, Folder, NewMessage

_BEFORE_REST = b"t APPEND m"
"""What stands before the rest of an APPEND, so that it can be parsed: the grammar is one of whole commands."""


async def append(session: Session, command: c.Append) -> Completion:
    """Run APPEND, with APPENDUID (RFC 4315 section 3). A bad command is refused before the message is read."""
    with offering_to_create():
        folder = await session.folder(command.mailbox)
        async with AsyncExitStack() as sinks:
            intake = _Intake(session, folder, sinks)
            await intake.take(command)
            session.check_login()  # receiving may have taken long
            saved = await session.mail.save_all(folder, intake.messages)
    if session.selection_or_none is not None:
        session.selection.put_here(folder, [one.uid for one in saved if one.shown])
    uidvalidities = {one.uidvalidity if one.shown else None for one in saved}
    uidvalidity = uidvalidities.pop()
    if uidvalidity is None or uidvalidities:
        return Completion("Appended")
    return Completion("Appended", appenduid(uidvalidity, [one.uid for one in saved]))


async def appended(session: Session, begun: LargeLiteral | ContinuationNeeded, literal: IncomingLiteral) -> c.Tagged:
    """Return the APPEND whose message this literal is. Raises CommandSyntaxError if it is part of anything else."""
    tagged = await session.services.parsed(begun.frame)
    if not isinstance(tagged.command, c.Append):
        what = f"{begun.size} bytes" if begun.size > WHOLE_LITERAL_BYTES else f"{begun.size} bytes after so many others"
        raise CommandSyntaxError(f"Only the message of an APPEND may be a literal of {what}", tagged.tag)
    return replace(tagged, command=replace(tagged.command, arriving=literal))


class _Intake:
    """The messages of an APPEND as they arrive. `messages` are those that are complete."""

    def __init__(self, session: Session, folder: Folder, sinks: AsyncExitStack) -> None:
        self.messages: list[NewMessage] = []
        self._session = session
        self._folder = folder
        self._sinks = sinks
        self._sizes_bytes: list[int] = []

    async def take(self, command: c.Append) -> None:
        """Take in all messages. Raises MailError, CommandFailedError."""
        while True:
            *whole, last = command.messages
            for message in whole:
                await self._take(message, None)
            literal = command.arriving
            await self._take(last, literal)
            if literal is None:
                break
            rest, begins = literal.proceed()
            if not rest.text:
                break
            command = replace(await self._parsed(rest), arriving=literal if begins else None)
        if len(self._sizes_bytes) > 1 and 0 in self._sizes_bytes:
            raise CommandFailedError("An empty message cancels an APPEND of several messages")

    async def _take(self, message: c.AppendedMessage, literal: IncomingLiteral | None) -> None:
        """Take in a message, whose octets come from `literal` if they are still to come."""
        flags = await settable_in(self._session.mail, self._folder, message.flags)
        sink = await self._sinks.enter_async_context(self._session.mail.receive())
        self._sizes_bytes.append(0)
        if literal is None:
            await self._write(sink, message.text)
        else:
            self._count(literal.size)
            await self._session.mail.check_quota(self._folder.user, len(self._sizes_bytes), sum(self._sizes_bytes))
            while (chunk := await literal.next_chunk()) is not None:
                await sink.write(chunk)
        self.messages.append(NewMessage(await sink.finish(), flags, message.received_ms))

    async def _write(self, sink: BodySink, octets: bytes) -> None:
        self._count(len(octets))
        await sink.write(octets)

    def _count(self, size_bytes: int) -> None:
        """Count octets of the present message. Raises MessageTooLargeError, CommandFailedError."""
        self._sizes_bytes[-1] += size_bytes
        limit = self._session.services.max_message_bytes
        if self._sizes_bytes[-1] > limit:
            raise MessageTooLargeError(f"the message has more than {limit} bytes")
        if sum(self._sizes_bytes) > limit:  # some of them may have to be held in memory until all are here
            raise CommandFailedError(f"The messages of an APPEND may have {limit} bytes together", "LIMIT")

    async def _parsed(self, rest: Frame) -> c.Append:
        """Return what follows a message. Raises CommandFailedError."""
        try:
            tagged = await self._session.services.parsed(Frame(_BEFORE_REST + rest.text, rest.literals))
        except CommandSyntaxError as error:
            text = "Expected another message, or the end of the command, after the message"
            raise CommandFailedError(text, condition="BAD") from error
        assert isinstance(tagged.command, c.Append)
        return tagged.command
