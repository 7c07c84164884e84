"""Messages of clients that log in with an access token: OAUTHBEARER (RFC 7628) and XOAUTH2, its older form. No I/O.

XOAUTH2 has no standard: it is what the mail services of Google and Microsoft document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

# RFC 7628 section 3.1, with the GS2 header of RFC 5801 section 4 and the escapes of RFC 5802 section 5.1.
_OAUTHBEARER = re.compile(
    r"[ny],(?:a=(?P<user>(?:[^=,\x00\x01]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\t\n\r -~]*\x01)*)\x01"
)
_XOAUTH2 = re.compile(r"user=(?P<user>[^\x00\x01]*)\x01(?P<pairs>auth=[\t\n\r -~]*\x01)\x01")
_BEARER = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/-]+=*)")  # RFC 6750 section 2.1


class BearerError(Exception):
    """The client's message is none of the mechanism. The text says what is expected."""


class TokenFault(StrEnum):
    """Faults of a token (RFC 6750 section 3.1)."""

    INVALID_TOKEN = "invalid_token"  # noqa: S105 - no secret
    INSUFFICIENT_SCOPE = "insufficient_scope"


_HTTP_STATUS: Mapping[TokenFault, str] = {TokenFault.INVALID_TOKEN: "401", TokenFault.INSUFFICIENT_SCOPE: "403"}


class BearerMessage(NamedTuple):
    """The client's only message. `user`: whom it names, if anybody. `token` is empty where it asks for a challenge."""

    user: str | None
    token: str

    @classmethod
    def of_oauthbearer(cls, message: bytes) -> BearerMessage:
        """Parse the message of OAUTHBEARER. Unknown pairs do not matter (RFC 7628 section 3.1). Raises BearerError."""
        expected = "n,a=USER,^Aauth=Bearer TOKEN^A^A (^A is the octet 1)"
        user, pairs = _matched(_OAUTHBEARER, message, expected)
        return cls(user and user.replace("=2C", ",").replace("=3D", "="), _token(pairs, expected))

    @classmethod
    def of_xoauth2(cls, message: bytes) -> BearerMessage:
        """Parse the message of XOAUTH2. Raises BearerError."""
        expected = "user=USER^Aauth=Bearer TOKEN^A^A (^A is the octet 1)"
        user, pairs = _matched(_XOAUTH2, message, expected)
        return cls(user or None, _token(pairs, expected))


def oauthbearer_challenge(fault: TokenFault, scopes: Sequence[str]) -> bytes:
    """Return the challenge that tells why a token is refused (RFC 7628 section 3.2.2), and which scopes are needed."""
    return _printed({"status": fault.value}, scopes)


def xoauth2_challenge(fault: TokenFault, scopes: Sequence[str]) -> bytes:
    """Return the challenge of XOAUTH2 that tells why a token is refused, by a status of HTTP, and the scopes needed."""
    return _printed({"status": _HTTP_STATUS[fault], "schemes": "bearer"}, scopes)


def _matched(pattern: re.Pattern[str], message: bytes, expected: str) -> tuple[str | None, str]:
    try:
        match = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise BearerError(f"Expected base64 of: {expected}")
    return match["user"], match["pairs"]


def _token(pairs: str, expected: str) -> str:
    """Return the token of the pair `auth`; empty if that has no value. Raises BearerError."""
    values = [value for key, _, value in (pair.partition("=") for pair in pairs.split("\x01")) if key.lower() == "auth"]
    if len(values) != 1:
        raise BearerError(f"Expected base64 of: {expected}")
    match = _BEARER.fullmatch(values[0])
    if match is None and values[0]:
        raise BearerError("Expected a token of the type Bearer")
    return match[1] if match else ""


def _printed(fields: dict[str, str], scopes: Sequence[str]) -> bytes:
    return json.dumps({**fields, "scope": " ".join(scopes)} if scopes else fields).encode()
