"""AUTHENTICATE (RFC 3501 section 6.2.2, RFC 4422): the SASL mechanisms, each a function that lets a client log in."""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from replicator.imap.handlers.auth import (
    admitted,
    conclude,
    failed,
    note_failure,
    privacy_required,
    reason_of_failure,
    verify,
)
from replicator.imap.session import CHANNEL_BINDING, Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import continuation
from replicator.oauth import TokenRefusedError
from replicator.users import (
    BearerError,
    BearerMessage,
    ChannelBindingError,
    ClientFirst,
    Identity,
    ScramAttempt,
    ScramError,
    ScramExchange,
    TokenFault,
    folded,
    oauthbearer_challenge,
    xoauth2_challenge,
)

NONCE_BYTES = 18
NO_SCRAM_PASSWORD = (
    "the user has no password for SCRAM; set one by `replicator user passwd --scheme SCRAM-SHA-256 --config FILE USER`"  # noqa: S105  a reason
)


class Dialogue:
    """The client's messages and the server's by one mechanism: decoded here, base64 on the wire."""

    def __init__(self, session: Session, mechanism: str, initial: bytes | None) -> None:
        self.mechanism = mechanism
        self._session = session
        self._initial = initial

    async def first(self) -> bytes:
        """Return the client's first message: its initial response (RFC 4959), or its answer to an empty challenge."""
        if self._initial is None:
            return await self.ask(b"")
        return b"" if self._initial == b"=" else _decoded(self._initial)

    async def ask(self, challenge: bytes) -> bytes:
        """Return the client's answer to a challenge. Raises CommandFailedError if it cancels, or says no base64."""
        await self._session.write([continuation(b64encode(challenge).decode())])
        await self._session.connection.flush()
        response = (await self._session.connection.next_frame()).text
        if response == b"*":
            raise CommandFailedError("Authentication cancelled", condition="BAD")
        return _decoded(response)


def _decoded(response: bytes) -> bytes:
    try:
        return b64decode(response, validate=True)
    except binascii.Error as error:
        raise CommandFailedError("Expected base64", condition="BAD") from error


async def authenticate(session: Session, command: c.Authenticate) -> Completion:
    """Run AUTHENTICATE, with or without an initial response (RFC 4959)."""
    run = MECHANISMS.get(command.mechanism)
    if run is not None and not session.connection.private:
        raise privacy_required()
    if run is None or not session.accepts(command.mechanism):
        known = ", ".join(session.mechanisms()) or "STARTTLS first"
        raise CommandFailedError(f"Mechanism {command.mechanism} is not supported here; use {known}", "CANNOT")
    await session.mail.wait_ready()
    return await run(session, Dialogue(session, command.mechanism, command.initial))


async def _plain(session: Session, dialogue: Dialogue) -> Completion:
    """Log in by PLAIN (RFC 4616): `[authzid] NUL authcid NUL passwd`."""
    try:
        authorize, user, password = (await dialogue.first()).split(b"\0")
    except ValueError as error:
        raise CommandFailedError("Expected base64 of: identity NUL user NUL password", condition="BAD") from error
    names = authorize.decode("utf-8", "surrogateescape"), user.decode("utf-8", "surrogateescape")
    return await verify(session, dialogue.mechanism, user, password, _acts_as(session, *names))


async def _scram(session: Session, dialogue: Dialogue, *, plus: bool) -> Completion:
    """Log in by SCRAM-SHA-256 or, with `plus`, SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677)."""
    try:
        first = ClientFirst.parse(await dialogue.first())
        attempt = await _attempt(session, dialogue, first, plus=plus)
    except ScramError as error:
        raise CommandFailedError(str(error), condition="BAD") from error
    users, as_user = session.services.users, _acts_as(session, first.authorize or "", first.user)
    login = await users.verify_scram(first.user, attempt, address=session.connection.address, as_user=as_user)
    if login is not None:
        try:
            await dialogue.ask(attempt.answer())  # the client says nothing more
        except CommandFailedError:
            why = "the password is right, but the client does not accept this server's proof that it knows it"
            note_failure(session, dialogue.mechanism, first.user, why, as_user)
            raise
    reason = NO_SCRAM_PASSWORD if login is None and users.lacks_scram(first.user, as_user) else None
    return await conclude(session, dialogue.mechanism, first.user, login, reason=reason, as_user=as_user)


async def _attempt(session: Session, dialogue: Dialogue, first: ClientFirst, *, plus: bool) -> ScramAttempt:
    """Return the attempt of a client that has sent its first message. Raises ScramError, CommandFailedError.

    Logs a channel that is bound wrongly: a sign of somebody between client and server (RFC 5802 section 6).
    """
    try:
        binding = _binding(session, first, plus=plus)
        as_user = _acts_as(session, first.authorize or "", first.user)
        nonce = b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        exchange = ScramExchange(first, session.services.users.scram_keys(first.user, as_user), nonce, binding)
        return exchange.attempt(await dialogue.ask(exchange.challenge()))
    except ChannelBindingError as error:
        note_failure(session, dialogue.mechanism, first.user, str(error))
        raise


async def _bearer(session: Session, dialogue: Dialogue, form: _BearerForm) -> Completion:
    """Log in by OAUTHBEARER (RFC 7628) or XOAUTH2: with an access token, which is for one user only."""
    tokens, limit = session.services.tokens, session.limits.imap_token_bytes
    assert tokens is not None, "the mechanism is not accepted without"
    try:
        user, token = form.parse(await dialogue.first())
    except BearerError as error:
        raise CommandFailedError(str(error), condition="BAD") from error
    if len(token) > limit:
        raise session.refusal("imap_token_bytes", f"The access token is longer than {limit} bytes")
    name, identity, reason, fault = user or await tokens.claimed_name(token), None, None, TokenFault.INVALID_TOKEN
    try:
        identity = await tokens.check(token)
    except TokenRefusedError as error:
        reason, fault = f"the token is refused: {error}", error.fault
    if name and token:  # else nobody was to be logged in
        login = await session.services.users.admit(name, identity, address=session.connection.address)
        if login is not None:
            return await admitted(session, dialogue.mechanism, login)
    why = reason or reason_of_failure(session, name, _another("token", identity))
    note_failure(session, dialogue.mechanism, name, why)
    await dialogue.ask(form.challenge(fault, tokens.scopes))  # the answer says nothing (RFC 7628 section 3.2.3)
    raise await failed(session, "The access token is not accepted; the server's log says why")


async def _external(session: Session, dialogue: Dialogue) -> Completion:
    """Log in by EXTERNAL (RFC 4422 appendix A): as the user whom the client's certificate names."""
    identity = session.connection.identity
    assert identity is not None, "the mechanism is not accepted without"
    try:
        name = (await dialogue.first()).decode() or identity.name
    except UnicodeDecodeError as error:
        raise CommandFailedError("Expected base64 of a user name in UTF-8, or of nothing", condition="BAD") from error
    login = await session.services.users.admit(name, identity, address=session.connection.address)
    if login is not None:
        return await admitted(session, dialogue.mechanism, login)
    why = reason_of_failure(session, name, _another("certificate", identity))
    note_failure(session, dialogue.mechanism, name, why)
    raise await failed(session, "The certificate is not accepted; the server's log says why")


def _another(what: str, identity: Identity | None) -> str:
    """Return why a valid token or certificate does not help."""
    assert identity is not None, "a refused one has a reason of its own"
    return f"the {what} is for {identity.name}, who is no user here or not the one that the client names"


def _binding(session: Session, first: ClientFirst, *, plus: bool) -> bytes:
    """Return the data of the channel binding that the client names (RFC 5802 section 6). Raises ChannelBindingError."""
    end_point = session.connection.end_point
    if not plus:
        if first.flag == "p":
            raise ChannelBindingError("Channel binding is for SCRAM-SHA-256-PLUS")
        if first.flag == "y" and "SCRAM-SHA-256-PLUS" in session.mechanisms():
            raise ChannelBindingError("This server announces channel binding: somebody may be between you and it")
        return b""
    if first.binding != CHANNEL_BINDING or end_point is None:
        raise ChannelBindingError(f"The channel binding here is {CHANNEL_BINDING}")
    return end_point


def _acts_as(session: Session, authorize: str, user: str) -> str | None:
    """Return an authorization identity other than the name of the log-in, in any spelling; None: it is no other.

    Both names are compared as such: to look them up here would tell who is a user before a password is right. Raises
    CommandFailedError if there are no master users.
    """
    if not authorize or folded(authorize) == folded(user):
        return None
    if not session.services.users.has_masters:
        raise CommandFailedError("Acting for another user is not supported here", "AUTHORIZATIONFAILED")
    return authorize


class _BearerForm(NamedTuple):
    """One of the two forms of a login with an access token."""

    parse: Callable[[bytes], BearerMessage]
    challenge: Callable[[TokenFault, Sequence[str]], bytes]


Mechanism = Callable[[Session, Dialogue], Awaitable[Completion]]

MECHANISMS: Mapping[str, Mechanism] = MappingProxyType(
    {
        "SCRAM-SHA-256-PLUS": partial(_scram, plus=True),
        "SCRAM-SHA-256": partial(_scram, plus=False),
        "OAUTHBEARER": partial(_bearer, form=_BearerForm(BearerMessage.of_oauthbearer, oauthbearer_challenge)),
        "XOAUTH2": partial(_bearer, form=_BearerForm(BearerMessage.of_xoauth2, xoauth2_challenge)),
        "EXTERNAL": _external,
        "PLAIN": _plain,
    }
)
