"""The users as the process of a door has them: both ends.

The door reads the passwd-file itself, for what is asked without waiting. Attempts to log in are checked in the core,
which alone knows who has failed how often, at whichever door.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from replicator.oauth import AccessTokens, TokenRefusedError
from replicator.users import Directory, Identity, Login, ScramAttempt, ScramKeys, TokenFault
from replicator.users.schemes import parse_hash
from replicator.workers.channel import Channel
from replicator.workers.packing import Columns

LoginColumns: TypeAlias = tuple[str, str | None, int | None, str | None, str | None, str | None]
"""A log-in as it crosses: the user, the text of the password's hash, until when it is good, the address, the master,
and the log-in name."""


class RemoteUsers:
    """The users, as a door's process has them; see `replicator.imap.services.Users`."""

    def __init__(self, channel: Channel, here: Directory) -> None:
        self._channel = channel
        self._here = here
        self.has_masters = here.has_masters
        self.has_scram = here.has_scram
        self.scram_keys = here.scram_keys
        self.lacks_scram = here.lacks_scram
        self.shuts_out = here.shuts_out
        self.holds = here.holds

    async def verify(
        self, name: str, password: str, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """See `Users`."""
        return self._let_in(await self._channel.call("verify", name, password, address, as_user))

    async def verify_scram(
        self, name: str, attempt: ScramAttempt, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """See `Users`."""
        keys = attempt.keys
        columns = keys.iterations, keys.salt, keys.stored_key, keys.server_key
        proof = columns, attempt.message, attempt.proof
        return self._let_in(await self._channel.call("verify_scram", name, proof, address, as_user))

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        """See `Users`."""
        vouched = None if identity is None else (identity.name, identity.until_ms)
        return self._let_in(await self._channel.call("admit", name, vouched, address))

    def _let_in(self, columns: object) -> Login | None:
        """Return the log-in that the core has granted, if it has."""
        login = _login_of(columns)
        if login is not None:
            self._here.let_in(login)
        return login


class RemoteTokens:
    """The access tokens, as a door's process has them; see `replicator.imap.services.Tokens`."""

    def __init__(self, channel: Channel, scopes: Sequence[str]) -> None:
        self._channel = channel
        self.scopes = scopes

    async def claimed_name(self, token: str) -> str | None:
        """See `Tokens`."""
        return cast("str | None", await self._channel.call("claimed_name", token))

    async def check(self, token: str) -> Identity:
        """See `Tokens`."""
        identity, refusal = cast("tuple[Columns | None, Columns]", await self._channel.call("check_token", token))
        if identity is None:
            text, fault = refusal
            raise TokenRefusedError(text, TokenFault(fault))
        return Identity(*identity)


class UserCalls:
    """The core's answers to calls of one door's process about users."""

    def __init__(self, channel: Channel, users: Directory, tokens: AccessTokens | None) -> None:
        self._users = users
        channel.calls |= {"verify": self._verify, "verify_scram": self._verify_scram, "admit": self._admit}
        if tokens is not None:
            self._tokens = tokens
            channel.calls |= {"claimed_name": tokens.claimed_name, "check_token": self._check_token}

    async def _verify(self, name: str, password: str, address: str | None, as_user: str | None) -> LoginColumns | None:
        return _columns_of(await self._users.verify(name, password, address=address, as_user=as_user))

    async def _verify_scram(
        self, name: str, proof: Columns, address: str | None, as_user: str | None
    ) -> LoginColumns | None:
        keys, *rest = proof
        attempt = ScramAttempt(ScramKeys(*keys), *rest)
        return _columns_of(await self._users.verify_scram(name, attempt, address=address, as_user=as_user))

    async def _admit(self, name: str, vouched: Columns | None, address: str | None) -> LoginColumns | None:
        identity = None if vouched is None else Identity(*vouched)
        return _columns_of(await self._users.admit(name, identity, address=address))

    async def _check_token(self, token: str) -> tuple[Columns | None, Columns]:
        try:
            identity = await self._tokens.check(token)
        except TokenRefusedError as error:
            return None, (str(error), error.fault.value)
        return (identity.name, identity.until_ms), ()


def _columns_of(login: Login | None) -> LoginColumns | None:
    if login is None:
        return None
    password = None if login.password is None else login.password.text
    return login.user, password, login.until_ms, login.address, login.master, login.name


def _login_of(columns: object) -> Login | None:
    if columns is None:
        return None
    user, password, until_ms, address, master, name = cast("LoginColumns", columns)
    return Login(user, None if password is None else parse_hash(password), until_ms, address, master, name)
