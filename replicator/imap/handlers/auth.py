"""Commands in any state and before authentication (RFC 3501 sections 6.1 and 6.2)."""

from __future__ import annotations

import logging
from functools import partial

from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import quoted_or_literal, status_line, untagged
from replicator.runtime.logs.fields import LogFields
from replicator.users import Login

_log = logging.getLogger(__name__)

MAX_FAILED_LOGINS = 5  # then the client must connect again, which is slow and shows in the log


async def capability(session: Session, _command: c.Capability) -> Completion:
    """Run CAPABILITY."""
    await session.write([untagged(f"CAPABILITY {session.capabilities()}")])
    return Completion("Capabilities listed")


async def noop(session: Session, _command: c.Noop) -> Completion:
    """Run NOOP: changes are announced at the end of every command."""
    await session.catch_up()
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
    return await verify(session, "LOGIN", command.user, command.password)


async def verify(
    session: Session, mechanism: str, user: bytes, password: bytes, as_user: str | None = None
) -> Completion:
    """Log the client in if the password is right. Raises CommandFailedError, and as `Users.verify`.

    `as_user`: as whom the user, a master, would act.
    """
    if not session.connection.private:
        raise privacy_required()
    await session.mail.wait_ready()
    try:
        name, secret = user.decode("utf-8"), password.decode("utf-8")
    except UnicodeDecodeError:
        name = secret = ""  # no user's name: fails like any wrong password
    found = await session.services.users.verify(name, secret, address=session.connection.address, as_user=as_user)
    return await conclude(session, mechanism, name, found, as_user=as_user)


async def conclude(
    session: Session,
    mechanism: str,
    name: str,
    login: Login | None,
    *,
    reason: str | None = None,
    as_user: str | None = None,
) -> Completion:
    """Log the client in who called itself `name`; None: its password is wrong, or the log says why it fails.

    `as_user`: as whom it would act. Raises CommandFailedError.
    """
    if login is None:
        why = reason_of_failure(session, name, reason or "wrong user name or password", as_user)
        note_failure(session, mechanism, name, why, as_user)
        raise await failed(session, "Wrong user name or password")
    return await admitted(session, mechanism, login)


def reason_of_failure(session: Session, name: str | None, otherwise: str, as_user: str | None = None) -> str:
    """Return for the log why a client that called itself `name` may not log in."""
    why = None if name is None else session.services.users.shuts_out(name, session.connection.address, as_user)
    return why or otherwise


async def admitted(session: Session, mechanism: str, login: Login) -> Completion:
    """Log the client in. Raises CommandFailedError if the user has too many connections."""
    who = {
        "user": login.user,
        "name": login.name if login.name != login.user else None,
        "master": login.master,
        "client": session.connection.address,
        "mechanism": mechanism,
    }
    session.services.metrics.login(ok=True)
    if login.master is not None:
        session.services.metrics.master_login(login.master)
    try:
        completion = await session.log_in(login)
    except CommandFailedError as error:
        _log.info("login refused %s", LogFields({**who, "reason": str(error)}))
        raise
    _log.info("login ok %s", LogFields(who))
    return completion


def note_failure(session: Session, mechanism: str, name: str | None, reason: str, as_user: str | None = None) -> None:
    """Count and log the failed attempt of a client that called itself `name`. `mechanism`: of SASL, or LOGIN.

    `as_user`: as whom it would have acted.
    """
    session.services.metrics.login(ok=False)
    session.failed_logins += 1
    user, master = (name, None) if as_user is None else (as_user, name)
    who = {"user": user, "master": master, "client": session.connection.address, "mechanism": mechanism}
    _log.info("login failed %s", LogFields({**who, "reason": reason}))


async def failed(session: Session, text: str) -> CommandFailedError:
    """Return the error for a failed attempt, after too many of which the connection ends."""
    if session.failed_logins >= MAX_FAILED_LOGINS:
        session.ended = True
        await session.write([status_line("BYE", f"{MAX_FAILED_LOGINS} attempts have failed; connect again")])
    return CommandFailedError(text, "AUTHENTICATIONFAILED")


def privacy_required() -> CommandFailedError:
    """Return the error for whoever would log in without TLS."""
    return CommandFailedError(
        "A password may be sent only over TLS here; use STARTTLS or a TLS port", "PRIVACYREQUIRED"
    )


async def compress(session: Session, command: c.Compress) -> Completion:
    """Run COMPRESS (RFC 4978 section 3). Compression begins once the answer has been sent uncompressed."""
    if command.mechanism != "DEFLATE":
        raise CommandFailedError(f"{command.mechanism} is not known here; use DEFLATE", condition="BAD")
    if session.connection.compressed:
        raise CommandFailedError("DEFLATE is already in use", "COMPRESSIONACTIVE")
    return Completion("Begin DEFLATE now", after=session.connection.compress)


async def starttls(session: Session, _command: c.StartTls) -> Completion:
    """Run STARTTLS. TLS begins once the answer has been sent unencrypted."""
    tls = session.services.tls()
    if tls is None or session.connection.secure:
        raise CommandFailedError("TLS is already in use, or not configured here", condition="BAD")
    return Completion("Begin TLS now", after=partial(session.connection.start_tls, tls))
