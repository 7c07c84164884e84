"""Commands in any state and before authentication (RFC 3501 sections 6.1 and 6.2)."""

from __future__ import annotations

import binascii
import logging
from base64 import b64decode
from functools import partial

from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import continuation, quoted_or_literal, status_line, untagged
from replicator.runtime.log_fields import LogFields

_log = logging.getLogger(__name__)

MAX_FAILED_LOGINS = 5  # then the client must connect again, which is slow and shows in the log


async def capability(session: Session, _command: c.Capability) -> Completion:
    """Run CAPABILITY."""
    await session.write([untagged(f"CAPABILITY {session.capabilities()}")])
    return Completion("Capabilities listed")


async def noop(_session: Session, _command: c.Noop) -> Completion:
    """Run NOOP: changes are announced at the end of every command."""
    return Completion("Nothing done")


async def identify(session: Session, _command: c.Id) -> Completion:
    """Run ID (RFC 2971)."""
    fields = [("name", session.services.name), ("version", session.services.version)]
    words = [word for field in fields if field[1] is not None for word in field]
    printed = [b"".join(quoted_or_literal(str(word).encode())) for word in words]
    await session.write([b"* ID (%b)\r\n" % b" ".join(printed)])
    return Completion("Server identified")


async def logout(session: Session, _command: c.Logout) -> Completion:
    """Run LOGOUT."""
    session.ended = True
    await session.write([status_line("BYE", "Goodbye")])
    return Completion("Logged out")


async def login(session: Session, command: c.Login) -> Completion:
    """Run LOGIN."""
    return await _verify(session, command.user, command.password)


async def authenticate(session: Session, command: c.Authenticate) -> Completion:
    """Run AUTHENTICATE PLAIN (RFC 4616), with or without an initial response (RFC 4959)."""
    if command.mechanism != "PLAIN":
        raise CommandFailedError(f"Mechanism {command.mechanism} is not supported here; use PLAIN", "CANNOT")
    if not session.connection.private:
        raise _privacy_required()
    response = command.initial
    if response is None:
        await session.write([continuation("")])
        await session.connection.flush()
        response = (await session.connection.next_frame()).text
        if response == b"*":
            raise CommandFailedError("Authentication cancelled", condition="BAD")
    authorize, user, password = _plain(b"" if response == b"=" else response)
    if authorize not in {b"", user}:
        raise CommandFailedError("Acting for another user is not supported here", "AUTHORIZATIONFAILED")
    return await _verify(session, user, password)


def _plain(response: bytes) -> tuple[bytes, bytes, bytes]:
    """Decode `[authzid] NUL authcid NUL passwd` from base64."""
    try:
        authorize, user, password = b64decode(response, validate=True).split(b"\0")
    except (binascii.Error, ValueError) as error:
        raise CommandFailedError("Expected base64 of: identity NUL user NUL password", condition="BAD") from error
    return authorize, user, password


async def _verify(session: Session, user: bytes, password: bytes) -> Completion:
    if not session.connection.private:
        raise _privacy_required()
    await session.mail.wait_ready()
    try:
        name, secret = user.decode("utf-8"), password.decode("utf-8")
    except UnicodeDecodeError:
        name = secret = ""  # no user's name: fails like any wrong password
    login = await session.services.users.verify(name, secret, address=session.connection.address)
    who = {"user": login.user if login else name, "client": session.connection.address}
    session.services.metrics.login(ok=login is not None)
    if login is not None:
        try:
            completion = session.log_in(login)
        except CommandFailedError as error:
            _log.info("login refused %s", LogFields({**who, "reason": str(error)}))
            raise
        _log.info("login ok %s", LogFields(who))
        return completion
    _log.info("login failed %s", LogFields(who))
    session.failed_logins += 1
    if session.failed_logins >= MAX_FAILED_LOGINS:
        session.ended = True
        await session.write([status_line("BYE", f"{MAX_FAILED_LOGINS} attempts have failed; connect again")])
    raise CommandFailedError("Wrong user name or password", "AUTHENTICATIONFAILED")


def _privacy_required() -> CommandFailedError:
    return CommandFailedError(
        "A password may be sent only over TLS here; use STARTTLS or a TLS port", "PRIVACYREQUIRED"
    )


async def starttls(session: Session, _command: c.StartTls) -> Completion:
    """Run STARTTLS. TLS begins once the answer has been sent unencrypted."""
    tls = session.services.tls()
    if tls is None or session.connection.secure:
        raise CommandFailedError("TLS is already in use, or not configured here", condition="BAD")
    return Completion("Begin TLS now", after=partial(session.connection.start_tls, tls))
