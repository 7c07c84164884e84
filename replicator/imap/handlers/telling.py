"""Announcements to a client for which the server waits: in IDLE, and after NOTIFY between its commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import trio

from protocol.framing import FramingError
from replicator.imap.handlers.folders.notify import tell_folders
from replicator.imap.handlers.searches.updates import announce
from replicator.imap.session import Session
from replicator.imap.wire.responses import status_line

T = TypeVar("T")

LOGIN_CHECK_S = 30.0  # how long a client that is silent stays connected after it has lost the right to

Teller: TypeAlias = Callable[[Session, trio.Lock], Awaitable[None]]
"""A task that tells the client something while it holds the lock, until it is cancelled."""


async def told_meanwhile(session: Session, receive: Callable[[], Awaitable[T]], *tellers: Teller) -> T:
    """Return what `receive` returns, and let these tasks tell the client something meanwhile.

    Responses that have begun are sent completely. Raises FramingError as `receive` does.
    """
    telling = trio.Lock()
    received: list[T] = []
    failure: FramingError | None = None
    async with trio.open_nursery() as nursery:
        for teller in (check_login, *tellers):
            nursery.start_soon(teller, session, telling)
        try:
            received.append(await receive())
        except FramingError as error:
            failure = error
        async with telling:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return received[0]


async def check_login(session: Session, telling: trio.Lock) -> None:
    """Check from time to time that the client may still be logged in. Raises LoginRevokedError."""
    while True:
        await trio.sleep(LOGIN_CHECK_S)
        async with telling:
            session.check_login()


async def tell_selected(session: Session, telling: trio.Lock) -> None:
    """Tell at once what changes in the selected mailbox, if one is selected: in IDLE."""
    await _tell_selected(session, telling, expunges=True, with_modseq=False)


async def tell_wished(session: Session, telling: trio.Lock) -> None:
    """Tell at once what changes in the selected mailbox, between commands and as NOTIFY says."""
    wishes = session.wishes
    if wishes.at_once:
        await _tell_selected(session, telling, expunges=not wishes.delayed, with_modseq=True)


async def _tell_selected(session: Session, telling: trio.Lock, *, expunges: bool, with_modseq: bool) -> None:
    """`with_modseq`: no end of a command will tell HIGHESTMODSEQ soon, which must follow VANISHED."""
    if session.selection_or_none is None:
        return
    selection = session.selection
    while True:
        async with telling:
            session.check_login()
            is_news = await announce(session, expunges=expunges)
            await session.connection.flush()
            await session.write(await selection.claim_recent())
            if with_modseq and is_news and (code := selection.modseq_code_due()):
                await session.write([status_line("OK", "Highest MODSEQ", code)])
            await session.connection.flush()
        await selection.wait()


async def tell_others(session: Session, telling: trio.Lock) -> None:
    """Tell at once what changes in other folders, as NOTIFY says."""
    while (notifications := session.notifications) is not None and notifications.watch is not None:
        async with telling:
            await tell_folders(session)
            await session.connection.flush()
        await notifications.watch.wait()
