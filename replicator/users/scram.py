"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the stored form of a password, and the server's side of an exchange. No I/O.

An attacker who has the stored form can impersonate the server, but cannot log in. One who listens to an exchange can
try passwords, as with a stolen hash: doors offer SCRAM where they would take a password, and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from passlib.utils import saslprep

SCHEME = "SCRAM-SHA-256"

ITERATIONS = 100_000
"""Rounds for new passwords, which the client computes at each login: a tenth of a second on a telephone."""
ITERATIONS_MIN = 4096  # RFC 7677 section 4
ITERATIONS_MAX = 5_000_000
"""Limit for what a passwd-file may ask for: some seconds of one core."""

SALT_BYTES = 16
SALT_MAX_BYTES = 64
KEY_BYTES = 32  # of SHA-256

_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"  # RFC 5802 section 7: printable, any octet but the comma
_FIRST = re.compile(
    rf"(?P<header>(?:(?P<flag>[ny])|p=(?P<binding>[A-Za-z0-9.-]+)),(?:a=(?P<authorize>[^,\0]+))?,)"
    rf"(?P<bare>(?P<mandatory>m=[^,\0]*,)?n=(?P<user>[^,\0]+),r=(?P<nonce>{_PRINTABLE})(?:,[A-Za-z]=[^,\0]+)*)"
)
_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<channel>[A-Za-z0-9+/]+=*),r=(?P<nonce>{_PRINTABLE})(?:,[A-Za-z]=[^,\0]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/]+=*)"
)
_NAME = re.compile(r"(?:[^=]|=2C|=3D)+")  # saslname: the only escapes


class ScramError(Exception):
    """The client's message is no SCRAM, or asks for what cannot be done. The text says what is wrong."""


class ChannelBindingError(ScramError):
    """The client binds another channel than the server does, or wrongly binds none (RFC 5802 section 6)."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Stored form of a password. Prints as in Dovecot's passwd-files: `iterations,salt,StoredKey,ServerKey`."""

    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_password(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramKeys:
        """Return the keys of a password. Blocks. Raises ValueError if SASLprep forbids one of its characters."""
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
        client_key = _hmac(salted, b"Client Key")
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> ScramKeys:
        """Parse the stored form. Raises ValueError that says what is wrong."""
        fields = text.split(",")
        if len(fields) != 4 or not re.fullmatch("[0-9]{1,9}", fields[0]):
            raise ValueError("expected iterations,salt,StoredKey,ServerKey")
        iterations = int(fields[0])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"it has {iterations} iterations, where {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed")
        try:
            salt, stored_key, server_key = (base64.b64decode(field, validate=True) for field in fields[1:])
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from error
        if not 1 <= len(salt) <= SALT_MAX_BYTES or {len(stored_key), len(server_key)} != {KEY_BYTES}:
            raise ValueError(f"expected a salt of 1 to {SALT_MAX_BYTES} bytes and two keys of {KEY_BYTES}")
        return cls(iterations, salt, stored_key, server_key)

    def __str__(self) -> str:
        return f"{self.iterations},{_b64(self.salt)},{_b64(self.stored_key)},{_b64(self.server_key)}"

    def check(self, password: bytes) -> bool:
        """Return True if this is the password, in UTF-8. Blocks."""
        try:
            keys = ScramKeys.of_password(password.decode(), self.salt, self.iterations)
        except ValueError:
            return False
        return hmac.compare_digest(keys.stored_key, self.stored_key)


class ClientFirst(NamedTuple):
    """The client's first message (RFC 5802 section 7).

    `flag` is n or y, or p if the client binds the channel by `binding`. `authorize`: whom it wants to act for; None: as
    whom it logs in.
    """

    user: str
    authorize: str | None
    flag: str
    binding: str | None
    nonce: str
    header: str
    bare: str

    @classmethod
    def parse(cls, message: bytes) -> ClientFirst:
        """Parse the message. Raises ScramError."""
        match = _matching(_FIRST, message, "a first message of SCRAM: n,,n=USER,r=NONCE")
        if match["mandatory"]:
            raise ScramError("Mandatory extensions of SCRAM are not supported here")
        authorize = None if match["authorize"] is None else _name(match["authorize"])
        return cls(
            _name(match["user"]), authorize, match["flag"] or "p", match["binding"],
            match["nonce"], match["header"], match["bare"],
        )  # fmt: skip


class ScramAttempt(NamedTuple):
    """A client's proof that it knows a password, under the keys that it was given a salt of."""

    keys: ScramKeys
    message: bytes
    proof: bytes

    def is_right(self) -> bool:
        """Return True if the client knows the password (RFC 5802 section 3)."""
        if len(self.proof) != KEY_BYTES:
            return False
        signature = _hmac(self.keys.stored_key, self.message)
        client_key = bytes(ours ^ theirs for ours, theirs in zip(signature, self.proof, strict=True))
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self.keys.stored_key)

    def answer(self) -> bytes:
        """Return the server's last message, by which the client knows that the server has its keys."""
        return f"v={_b64(_hmac(self.keys.server_key, self.message))}".encode()


class ScramExchange:
    """One exchange, after the client's first message. `nonce` is the server's, never used before.

    `binding`: the data of the channel binding that the client has named.
    """

    def __init__(self, first: ClientFirst, keys: ScramKeys, nonce: str, binding: bytes = b"") -> None:
        self._first = first
        self._keys = keys
        self._nonce = first.nonce + nonce
        self._channel = first.header.encode() + binding
        self._challenge = f"r={self._nonce},s={_b64(keys.salt)},i={keys.iterations}"

    def challenge(self) -> bytes:
        """Return the server's first message."""
        return self._challenge.encode()

    def attempt(self, message: bytes) -> ScramAttempt:
        """Return the attempt of the client's last message. Raises ScramError, ChannelBindingError."""
        match = _matching(_FINAL, message, "a last message of SCRAM: c=CHANNEL,r=NONCE,p=PROOF")
        if not hmac.compare_digest(match["nonce"], self._nonce):
            raise ScramError("The nonce is not the one of this exchange")
        if not hmac.compare_digest(_octets(match["channel"]), self._channel):
            raise ChannelBindingError("The channel binding is another one: somebody may be between you and this server")
        signed = f"{self._first.bare},{self._challenge},{match['unproven']}".encode()
        return ScramAttempt(self._keys, signed, _octets(match["proof"]))


def _matching(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    try:
        match = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise ScramError(f"Expected {what}")
    return match


def _name(escaped: str) -> str:
    if not _NAME.fullmatch(escaped):
        raise ScramError("In a name of SCRAM, = begins =2C or =3D")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _octets(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ScramError(f"Expected base64: {error}") from error


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)
