"""The IMAP door (RFC 3501): one call serves one connection; an error ends that connection only."""

from __future__ import annotations

import logging
from contextlib import suppress

import trio

from protocol.framing import FramingError
from replicator.errors import leaves
from replicator.imap.dispatch import converse
from replicator.imap.selection import MailboxGoneError
from replicator.imap.services import ImapServices
from replicator.imap.session import LoginRevokedError, Session
from replicator.imap.wire.connection import (
    CertificateRefusedError,
    Connection,
    ConnectionEndedError,
    InactivityError,
    NoLoginError,
)
from replicator.imap.wire.responses import status_line
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.places import Place

GOODBYE_S = 1.0  # for telling clients why they must go; a shutdown waits no longer than that

_log = logging.getLogger(__name__)


async def serve_imap(
    stream: trio.abc.Stream, services: ImapServices, *, address: str, secure: bool = False, tls_first: bool = False
) -> None:
    """Serve a client whose IP address is `address`.

    `secure`: the stream counts as being under TLS already; `tls_first`: TLS begins at once (IMAPS, RFC 8314 section
    3.2).

    Closes the stream. Raises nothing but cancellation: errors are reported to the client and to the log.
    """
    limits = services.limits
    connection = Connection(
        stream, address, secure=secure, login_s=limits.imap_login_seconds, idle_s=limits.imap_idle_seconds
    )
    was_ended = False
    try:
        async with services.places.admit(address) as place:
            with services.metrics.connections.track_inprogress():
                if place is not None:
                    was_ended = await _serve(services, connection, place, tls_first=tls_first)
        if place is None or place.dropped or was_ended:
            why = "An operator has ended this session" if was_ended else "Too many connections"
            with trio.move_on_after(GOODBYE_S):
                await _say_bye(connection, f"{why}; try again later", "UNAVAILABLE")
    except* ConnectionEndedError as ended:
        _note_end(address, leaves(ended)[0])
    except* FramingError as unframed:  # within a command: in the client's reply to AUTHENTICATE or IDLE
        await _say_bye(connection, str(leaves(unframed)[0]))
    except* InactivityError as silent:
        [error, *_] = leaves(silent)
        if isinstance(error, NoLoginError):
            services.refusals.refused("imap", "imap_login_seconds")
        await _say_bye(connection, str(error))
    except* MailboxGoneError as gone:
        await _say_bye(connection, *await leaves(gone)[0].reason(services.mail))
    except* LoginRevokedError as revoked:
        await _say_bye(connection, str(leaves(revoked)[0]))
    except* trio.Cancelled:
        with trio.CancelScope(deadline=trio.current_time() + GOODBYE_S, shield=True):
            await _say_bye(connection, f"{services.sid} is shutting down; connect again", "UNAVAILABLE")
        raise
    except* Exception:  # noqa: BLE001 (a defect in serving one client must not end the others' connections)
        _log.exception("IMAP connection from %s failed", address)
        await _say_bye(connection, f"Internal error; see the log of {services.sid}", "SERVERBUG")
    finally:
        await connection.close()


def _note_end(address: str, error: ConnectionEndedError) -> None:
    if isinstance(error, CertificateRefusedError):  # nobody else could tell the user why
        _log.info("TLS refused %s", LogFields({"client": address, "reason": error}))
    else:
        _log.debug("connection ended: %s", error)


async def _begin_tls(connection: Connection, services: ImapServices) -> None:
    context = services.tls()
    assert context is not None, "the configuration is checked"
    await connection.start_tls(context)


async def _serve(services: ImapServices, connection: Connection, place: Place, *, tls_first: bool) -> bool:
    """Run a session. Return True if an operator has ended it."""
    session = Session(services, connection, place)
    with services.sessions.opened("imap", connection.address, session.facts) as opened:
        if tls_first:
            await _begin_tls(connection, services)
        try:
            await converse(session)
        finally:
            session.close()
    return opened.was_ended


async def _say_bye(connection: Connection, text: str, code: str | None = None) -> None:
    with suppress(ConnectionEndedError):
        await connection.write([status_line("BYE", text, code)])
        await connection.flush()
