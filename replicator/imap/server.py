"""The IMAP door (RFC 3501): one call serves one connection until it ends, and whatever ends it ends only that."""

from __future__ import annotations

import logging
from contextlib import suppress

import trio

from protocol.framing import FramingError
from replicator.imap.connection import Connection, ConnectionEndedError, InactivityError
from replicator.imap.dispatch import converse
from replicator.imap.responses import status_line
from replicator.imap.selection import MailboxGoneError
from replicator.imap.services import ImapServices
from replicator.imap.session import LoginRevokedError, Session

_log = logging.getLogger(__name__)


async def serve_imap(stream: trio.abc.Stream, services: ImapServices, *, address: str, secure: bool = False) -> None:
    """Serve a client whose IP address is `address`; `secure`: the stream is under TLS already.

    Closes the stream. Raises nothing but cancellation: what goes wrong is told to the client and the log.
    """
    connection = Connection(stream, address, secure=secure)
    session = Session(services, connection)
    try:
        with services.connections.admit() as admitted, services.metrics.connections.track_inprogress():
            if admitted:
                await converse(session)
            else:
                await _say_bye(connection, "Too many connections; try again later", "UNAVAILABLE")
    except* ConnectionEndedError as ended:
        _log.debug("connection ended: %s", ended.exceptions[0])
    except* FramingError as unframed:  # within a command: what a client says to AUTHENTICATE or IDLE
        await _say_bye(connection, str(unframed.exceptions[0]))
    except* InactivityError:
        await _say_bye(connection, "You said nothing for too long; connect again")
    except* MailboxGoneError as gone:
        await _say_bye(connection, str(gone.exceptions[0]), "NONEXISTENT")
    except* LoginRevokedError as revoked:
        await _say_bye(connection, str(revoked.exceptions[0]))
    except* Exception:  # noqa: BLE001 (a defect in serving one client must not end the others' connections)
        _log.exception("IMAP connection from %s failed", address)
        await _say_bye(connection, f"Failed; the log of {services.sid} says why", "SERVERBUG")
    finally:
        session.close()
        await connection.close()


async def _say_bye(connection: Connection, text: str, code: str | None = None) -> None:
    with suppress(ConnectionEndedError):
        await connection.write([status_line("BYE", text, code)])
        await connection.flush()
