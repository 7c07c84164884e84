"""APPEND (RFC 3501 section 6.3.11). A message that is large, or for which the client waits, is read as it runs."""

from __future__ import annotations

from dataclasses import replace

from protocol.framing import ContinuationNeeded, LargeLiteral
from replicator.flags import settable_in
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.command_parser import CommandSyntaxError
from replicator.imap.wire.large_literal import IncomingLiteral
from replicator.imap.wire.refusals import offering_to_create
from replicator.mailstore import Folder, NewMessage, SavedMessage


async def append(session: Session, command: c.Append) -> Completion:
    """Run APPEND, with APPENDUID (RFC 4315 section 3). A bad command is refused before the message is read."""
    with offering_to_create():
        folder = await session.folder(command.mailbox)
        flags = await settable_in(session.mail, folder, command.flags)
        if isinstance(command.text, bytes):
            saved = await session.mail.save(folder, NewMessage(command.text, flags, command.received_ms))
        else:
            saved = await _take_in(session, folder, command.text, flags, command.received_ms)
    return Completion("Appended", f"APPENDUID {saved.uidvalidity} {saved.uid}" if saved.shown else None)


async def _take_in(
    session: Session, folder: Folder, literal: IncomingLiteral, flags: frozenset[str], received_ms: int | None
) -> SavedMessage:
    async with session.mail.receive() as sink:
        while (chunk := await literal.next_chunk()) is not None:
            await sink.write(chunk)
        session.check_login()  # receiving may have taken long
        return await session.mail.save(folder, NewMessage(await sink.finish(), flags, received_ms))


def appended(session: Session, begun: LargeLiteral | ContinuationNeeded, literal: IncomingLiteral) -> c.Tagged:
    """Return the APPEND whose message this literal is. Raises CommandSyntaxError if it is part of anything else."""
    tagged = session.services.parser.parse(begun.frame)
    if not isinstance(tagged.command, c.Append):
        raise CommandSyntaxError(f"Only the message of an APPEND may be a literal of {begun.size} bytes", tagged.tag)
    return replace(tagged, command=replace(tagged.command, text=literal))
