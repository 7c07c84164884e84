"""IDLE (RFC 2177)."""

from __future__ import annotations

import trio

from replicator.imap.handlers.updates import announce
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import continuation, status_line

LOGIN_CHECK_S = 30.0  # how long a client in IDLE stays connected after it has lost the right to

STILL_HERE_S = 120.0
"""Seconds between two lines to a client in IDLE: routers forget connections that are silent for some minutes.

The node notices thereby that a client has gone: nobody acknowledges the line.
"""


async def idle(session: Session, _command: c.Idle) -> Completion:
    """Run IDLE (RFC 2177): announce changes at once until the client sends DONE."""
    await session.write([continuation("idling")])
    await session.connection.flush()
    telling = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_check_login, session, telling)
        nursery.start_soon(_say_still_here, session, telling)
        if session.selection_or_none is not None:
            nursery.start_soon(_tell_changes, session, telling)
        frame = await session.connection.next_frame()
        async with telling:  # a response that has begun is sent completely
            nursery.cancel_scope.cancel()
    if frame.text.upper() != b"DONE":
        raise CommandFailedError("Expected DONE", condition="BAD")
    return Completion("IDLE ended")


async def _tell_changes(session: Session, telling: trio.Lock) -> None:
    while True:
        async with telling:
            session.check_login()
            await announce(session, expunges=True)
            await session.connection.flush()
            await session.write(await session.selection.claim_recent())
            await session.connection.flush()
        await session.selection.wait()


async def _check_login(session: Session, telling: trio.Lock) -> None:
    while True:
        await trio.sleep(LOGIN_CHECK_S)
        async with telling:
            session.check_login()


async def _say_still_here(session: Session, telling: trio.Lock) -> None:
    while True:
        await trio.sleep(STILL_HERE_S)
        async with telling:
            await session.write([status_line("OK", "Still here")])
            await session.connection.flush()
