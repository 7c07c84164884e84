"""The decision about an access token: who it is for, by whose signature, until when (RFC 9068 section 4, RFC 8725).

The library `jwt` takes the token apart and checks the signature; it is given public keys and the configured algorithms
only. What the claims must say is decided here, and told in words for the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import trio
from jwt import PyJWS, PyJWTError
from jwt.algorithms import OKPAlgorithm

from replicator.config import OauthConfig
from replicator.oauth.key_set import Key
from replicator.oauth.provider_keys import ProviderKeys
from replicator.users import Identity, TokenFault

LEEWAY_S = 60
"""Seconds by which the clocks of the provider and of this node may differ."""

NAME_CHARACTERS_MAX = 254  # no user has a longer name
SHOWN_MAX = 60
"""Characters of a claim that the log shows."""

TIME_MAX_S = 2**37
"""Seconds since 1970 until the year 6325: later times cannot all be printed."""

TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
"""Types that a header may give an access token (RFC 9068 section 4, RFC 8725 section 3.11); others have other uses."""

Claims = Mapping[str, object]


class TokenRefusedError(Exception):
    """The token is not accepted. The text says why, for the log; `fault` is what the client is told."""

    def __init__(self, text: str, fault: TokenFault = TokenFault.INVALID_TOKEN) -> None:
        super().__init__(text)
        self.fault = fault


class AccessTokens:
    """The access tokens of the configured provider. `clock_ms` is the wall clock."""

    def __init__(self, config: OauthConfig, keys: ProviderKeys, clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._keys = keys
        self._clock_ms = clock_ms
        self._signatures = PyJWS(list(config.algorithms), {"enforce_minimum_key_length": True})
        if "Ed25519" in config.algorithms:  # RFC 9864, which the library does not know yet: one of what EdDSA may be
            self._signatures.register_algorithm("Ed25519", OKPAlgorithm())

    @property
    def scopes(self) -> Sequence[str]:
        """The scopes that a token must have."""
        return self._config.scopes

    async def claimed_name(self, token: str) -> str | None:
        """Return the user's name in a token whose signature is not checked; None if it has none."""
        await trio.lowlevel.checkpoint()
        try:
            # Nothing but the counting of failed attempts rests on it.
            return self._name(_claims(self._signatures.decode(token, options={"verify_signature": False})))
        except (PyJWTError, TokenRefusedError):
            return None

    async def check(self, token: str) -> Identity:
        """Return the identity for which the token vouches.

        Raises TokenRefusedError, and UnavailableError while there are no keys. May wait for keys to be fetched.
        """
        try:
            header = self._signatures.get_unverified_header(token)
        except PyJWTError as error:
            raise TokenRefusedError(f"it is no signed JWT: {error}") from error
        claims = _claims(self._verified(token, await self._key(header)))
        until_s = self._check_times(claims)
        self._check_parties(claims)
        self._check_use(claims)
        return Identity(self._name(claims), int(until_s * 1000))

    async def _key(self, header: Claims) -> Key:
        """Return the key that the header names. Raises TokenRefusedError, UnavailableError."""
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ")
        if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
            allowed = ", ".join(self._config.algorithms)
            raise TokenRefusedError(f"it is signed by {_shown(algorithm)}, and only {allowed} are allowed")
        if (kind.lower() if isinstance(kind, str) else kind) not in TYPES:
            raise TokenRefusedError(f"its type is {_shown(kind)}, so it is no access token")
        keys = await self._keys.fitting(kid if isinstance(kid, str) else None, algorithm)
        if len(keys) != 1:
            named = "without an id" if kid is None else f"with the id {_shown(kid)}"
            raise TokenRefusedError(f"the provider has {len(keys) or 'no'} keys {named} for {algorithm}")
        return keys[0]

    def _verified(self, token: str, key: Key) -> bytes:
        """Return the payload of a token that this key has signed. Raises TokenRefusedError."""
        try:
            payload = self._signatures.decode(token, key.public, sorted(key.algorithms))
        except PyJWTError as error:
            raise TokenRefusedError(f"its signature is not right: {error}") from error
        assert isinstance(payload, bytes)
        return payload

    def _check_times(self, claims: Claims) -> float:
        """Return when the token expires. Raises TokenRefusedError if it has expired, or is not valid yet."""
        now_s = self._clock_ms() / 1000
        expires_s, begins_s = _time(claims, "exp"), _time(claims, "nbf")
        if expires_s is None:
            raise TokenRefusedError("it has no time at which it expires (exp)")
        if now_s >= expires_s + LEEWAY_S:
            raise TokenRefusedError(f"it has expired at {_printed(expires_s)}")
        if begins_s is not None and now_s < begins_s - LEEWAY_S:
            raise TokenRefusedError(f"it is not valid before {_printed(begins_s)}; check the clocks")
        return expires_s + LEEWAY_S

    def _check_parties(self, claims: Claims) -> None:
        """Check who made the token for whom. Raises TokenRefusedError."""
        issuer, audience = claims.get("iss"), claims.get("aud")
        if issuer != self._config.issuer:
            raise TokenRefusedError(f"its issuer is {_shown(issuer)}, not {self._config.issuer}")
        audiences = audience if isinstance(audience, list) else [audience]
        if self._config.audience not in audiences:
            raise TokenRefusedError(f"its audience is {_shown(audience)}, not {self._config.audience}")

    def _check_use(self, claims: Claims) -> None:
        """Check what the token is good for. Raises TokenRefusedError."""
        if "cnf" in claims:  # RFC 7800: it is good only with a key of the client's, for which no mechanism here asks
            raise TokenRefusedError("it is bound to a key of the client's (cnf), so it is no Bearer token")
        granted = {scope for claim in ("scope", "scp") for scope in _words(claims.get(claim))}
        if lacking := [scope for scope in self._config.scopes if scope not in granted]:
            raise TokenRefusedError(f"it lacks the scope {' '.join(lacking)}", TokenFault.INSUFFICIENT_SCOPE)

    def _name(self, claims: Claims) -> str:
        """Return the user that the token names. Raises TokenRefusedError."""
        name = claims.get(self._config.claim)
        if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS_MAX:
            raise TokenRefusedError(f"it names no user: its claim {self._config.claim} is {_shown(name)}")
        if self._config.claim == "email" and claims.get("email_verified", True) not in (True, "true"):
            raise TokenRefusedError(f"the provider has not verified that the user has the address {_shown(name)}")
        return name


def _claims(payload: bytes) -> Claims:
    """Return the claims of a token's payload. Raises TokenRefusedError."""
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise TokenRefusedError("its payload is no JSON object")
    return claims


def _time(claims: Claims, name: str) -> float | None:
    """Return a time in seconds since 1970 (RFC 7519 section 2), or None. Raises TokenRefusedError."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIME_MAX_S:
        raise TokenRefusedError(f"its time {name} is {_shown(value)}, not seconds since 1970")
    return float(value)


def _words(value: object) -> Sequence[object]:
    """Return the scopes of a claim: words in a string (RFC 8693 section 4.2), or a list as some providers write it."""
    if isinstance(value, str):
        return value.split(" ")
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else ()


def _printed(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shown(value: object) -> str:
    shown = "missing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= SHOWN_MAX else f"{shown[: SHOWN_MAX - 3]}..."
