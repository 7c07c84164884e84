"""APPEND (RFC 3501 section 6.3.11) of one or more messages (RFC 3502), also of parts of stored ones (RFC 4469).

What is large, or for which the client waits, is read as the command runs. The messages are stored when all are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from protocol.framing import ContinuationNeeded, Frame, LargeLiteral
from replicator.errors import MessageTooLargeError
from replicator.imap.handlers.messages.catenate import stored_part
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.command_parser import CommandSyntaxError
from replicator.imap.wire.connection import WHOLE_LITERAL_BYTES
from replicator.imap.wire.large_literal import IncomingLiteral
from replicator.imap.wire.refusals import CommandFailedError, offering_to_create
from replicator.imap.wire.responses import appenduid
from replicator.mail.flags import settable_in
from replicator.mail.mailstore import BodySink, Folder, NewMessage

MAX_STORED_PARTS = 300
"""URLs of an APPEND. Each may have to read a whole message to find its part."""


_EXPECTED = {
    c.Within.NOTHING: "Expected another message, or the end of the command, after the message",
    c.Within.UTF8: "Expected ) after the message",
    c.Within.CATENATE: "Expected another part of the message, or ), after a part",
    c.Within.CATENATE_UTF8: "Expected ) after a part of the message",
}


async def append(session: Session, command: c.Append) -> Completion:
    """Run APPEND, with APPENDUID (RFC 4315 section 3). A bad command is refused before the message is read."""
    _check_complete(command)
    await session.mail.catch_up(session.user)
    with offering_to_create(command.mailbox):
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
    """Return the APPEND of whose message this literal is a part. Raises CommandSyntaxError if it is anything else."""
    tagged = await session.parsed(begun.frame)
    if not isinstance(tagged.command, c.Append) or not _ends_in_text(tagged.command):
        raise CommandSyntaxError(_too_large(begun.size), tagged.tag)
    return replace(tagged, command=replace(tagged.command, arriving=literal))


def _ends_in_text(command: c.Append) -> bool:
    return isinstance(command.messages[-1].parts[-1], bytes)


def _too_large(size: int) -> str:
    what = f"{size} bytes" if size > WHOLE_LITERAL_BYTES else f"{size} bytes after so many others"
    return f"Only the message of an APPEND may be a literal of {what}"


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that arrives."""

    sink: BodySink
    flags: frozenset[str]
    received_ms: int | None


class _Intake:
    """The messages of an APPEND as they arrive. `messages` are those that are complete."""

    def __init__(self, session: Session, folder: Folder, sinks: AsyncExitStack) -> None:
        self.messages: list[NewMessage] = []
        self._session = session
        self._folder = folder
        self._sinks = sinks
        self._sizes_bytes: list[int] = []
        self._stored_parts = 0

    async def take(self, command: c.Append) -> None:
        """Take in all messages. Raises MailError, CommandFailedError."""
        message: _Message | None = None
        while True:
            self._stored_parts += self._checked_urls(command)
            for number, given in enumerate(command.messages, 1):
                arriving = command.arriving if number == len(command.messages) else None
                parts = given.parts if message is None else given.parts[1:]  # the first one has been taken
                message = message or await self._begin(given)
                await self._take(message, parts, arriving)
                if arriving is None:
                    self.messages.append(NewMessage(await message.sink.finish(), message.flags, message.received_ms))
                    message = None
            if command.arriving is None:
                break
            command = await self._rest(command.within, command.arriving)
        if len(self._sizes_bytes) > 1 and 0 in self._sizes_bytes:
            raise CommandFailedError("An empty message cancels an APPEND of several messages")

    async def _begin(self, given: c.AppendedMessage) -> _Message:
        flags = await settable_in(self._session.mail, self._folder, given.flags)
        sink = await self._sinks.enter_async_context(self._session.mail.receive())
        self._sizes_bytes.append(0)
        return _Message(sink, flags, given.received_ms)

    async def _take(
        self, message: _Message, parts: Sequence[bytes | c.StoredPart], arriving: IncomingLiteral | None
    ) -> None:
        """Take in parts of the present message. The octets of the last one come from `arriving`, if that is given."""
        for number, part in enumerate(parts, 1):
            if isinstance(part, c.StoredPart):
                await self._take_stored(message, part.url)
            elif arriving is None or number < len(parts):
                self._count(len(part))
                await message.sink.write(part)
            else:
                await self._expect(arriving.size)
                while (chunk := await arriving.next_chunk()) is not None:
                    await message.sink.write(chunk)

    async def _take_stored(self, message: _Message, url: bytes) -> None:
        part = await stored_part(self._session, url)
        await self._expect(part.size_bytes)
        async with aclosing(part.read()) as pieces:
            async for piece in pieces:
                await message.sink.write(piece)

    def _checked_urls(self, command: c.Append) -> int:
        """Return the number of URLs in what has arrived, before any is read. Raises CommandFailedError."""
        urls = sum(isinstance(part, c.StoredPart) for message in command.messages for part in message.parts)
        if self._stored_parts + urls > MAX_STORED_PARTS:
            raise CommandFailedError(f"An APPEND may have {MAX_STORED_PARTS} URLs", "LIMIT")
        return urls

    async def _expect(self, size_bytes: int) -> None:
        """Count octets that are about to come. Raises as `_count`, and QuotaExceededError."""
        self._count(size_bytes)
        await self._session.mail.check_quota(self._folder.user, len(self._sizes_bytes), sum(self._sizes_bytes))

    def _count(self, size_bytes: int) -> None:
        """Count octets of the present message. Raises MessageTooLargeError, CommandFailedError."""
        self._sizes_bytes[-1] += size_bytes
        limit = self._session.services.max_message_bytes
        if self._sizes_bytes[-1] > limit:
            raise MessageTooLargeError(f"the message has more than {limit} bytes")
        if sum(self._sizes_bytes) > limit:  # some of them may have to be held in memory until all are here
            raise CommandFailedError(f"The messages of an APPEND may have {limit} bytes together", "LIMIT")

    async def _rest(self, within: c.Within, literal: IncomingLiteral) -> c.Append:
        """Return what follows a literal, the first part of the command's first message. Raises CommandFailedError."""
        rest, begins = literal.proceed()
        command = await self._parsed(within, rest)
        while begins and not _ends_in_text(command):  # the literal that begins is a URL
            self._checked_urls(command)
            if literal.large:
                raise CommandFailedError(_too_large(literal.size), condition="BAD")
            rest, begins = await literal.read_on()
            command = await self._parsed(within, rest)
        if begins:
            return replace(command, arriving=literal)
        _check_complete(command)
        return command

    async def _parsed(self, within: c.Within, rest: Frame) -> c.Append:
        try:
            tagged = await self._session.parsed(Frame(within.value + rest.text, (b"", *rest.literals)))
        except CommandSyntaxError as error:
            raise CommandFailedError(_EXPECTED[within], condition="BAD") from error
        assert isinstance(tagged.command, c.Append)
        return tagged.command


def _check_complete(command: c.Append) -> None:
    """Raise CommandFailedError if the command ends where more must follow."""
    if command.arriving is None and command.within is not c.Within.NOTHING:
        raise CommandFailedError(_EXPECTED[command.within], condition="BAD")
