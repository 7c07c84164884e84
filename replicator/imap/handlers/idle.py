"""IDLE (RFC 2177)."""

from __future__ import annotations

import trio

from replicator.imap.handlers.telling import tell_others, tell_selected, told_meanwhile
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import continuation, status_line

STILL_HERE_S = 120.0
"""Seconds between two lines to a client in IDLE: routers forget connections that are silent for some minutes.

The node notices thereby that a client has gone: nobody acknowledges the line.
"""


async def idle(session: Session, _command: c.Idle) -> Completion:
    """Run IDLE (RFC 2177): announce changes at once until the client sends DONE.

    They are those of which NOTIFY says that the client wants to hear (RFC 5465 section 4).
    """
    await session.write([continuation("idling")])
    await session.connection.flush()
    next_frame = session.connection.next_frame
    frame = await told_meanwhile(session, next_frame, _say_still_here, tell_selected, tell_others)
    if frame.text.upper() != b"DONE":
        raise CommandFailedError("Expected DONE", condition="BAD")
    return Completion("IDLE ended")


async def _say_still_here(session: Session, telling: trio.Lock) -> None:
    while True:
        await trio.sleep(STILL_HERE_S)
        async with telling:
            await session.write([status_line("OK", "Still here")])
            await session.connection.flush()
