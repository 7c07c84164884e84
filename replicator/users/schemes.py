"""Password hashes in Dovecot's format: `{SCHEME}value` or `{SCHEME.ENCODING}value`.

A check blocks for as long as the scheme is meant to take: run it in a thread. All comparisons take the same time
wherever the difference is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import bcrypt
from passlib.context import CryptContext
from passlib.hash import argon2, sha256_crypt, sha512_crypt

from replicator.users import scram
from replicator.users.scram import ScramKeys

DEFAULT_SCHEME = "ARGON2ID"
"""Scheme of new passwords, with the smallest parameters that OWASP recommends (19 MiB, 2 passes).

One check takes some 20 ms of one core, and the concurrent checks take little of a node's memory.
"""
NEW_SCHEMES = (DEFAULT_SCHEME, "SHA512-CRYPT", scram.SCHEME)
"""Schemes of new passwords that people may choose."""

ARGON2 = CryptContext(
    schemes=["argon2"], argon2__type="ID", argon2__memory_cost=19_456, argon2__time_cost=2, argon2__parallelism=1
)
SHA512_CRYPT = CryptContext(schemes=["sha512_crypt"], sha512_crypt__default_rounds=50_000)
"""Hashing context for files that older servers read too; about as slow as Argon2."""

ARGON2_MEMORY_MAX_KIB = 256 * 1024
"""Limit of the memory that a hash requires for its check: a typing error in a hash must not stop the node."""
CRYPT_ROUNDS_MAX = 5_000_000
"""Limit of a hash's rounds, for the same reason: some seconds of one core."""

BCRYPT_COST_MAX = 16
"""Limit of bcrypt's cost, likewise: 2**16 rounds take some seconds."""
BCRYPT_MAX_BYTES = 72
"""Octets of a password that bcrypt looks at, here as in Dovecot and crypt(3). The library refuses longer ones."""
# 22 characters of salt, of which the last one has two bits, and 31 of the hash.
BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")

PASSWORD_MAX_BYTES = 1024
"""Limit of a password: longer than any real one, and below the 4096 at which the hash library refuses."""

SCHEMED = re.compile(r"\{([A-Za-z0-9-]+)(?:\.([A-Za-z0-9]+))?\}(.*)", re.DOTALL)

EFFORT = re.compile(r"(?:\{[^}]*\})?(\$2[aby]\$[0-9]{2}|\$[56]\$(?:rounds=[0-9]+)?|\$argon2\w*\$(?:v=[0-9]+\$)?[^$]*)")
"""The part of a hash before its salt: bcrypt's cost, the rounds of crypt(3), Argon2's memory, passes and lanes."""

Checker = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """One parsed hash. `check` blocks; it takes the password as UTF-8. Hashes of the same text are equal.

    `scram`: the keys of a user who can log in by SCRAM.
    """

    scheme: str
    text: str = field(repr=False)
    check: Checker = field(repr=False, compare=False)
    scram: ScramKeys | None = field(default=None, repr=False, compare=False)

    @property
    def effort(self) -> str:
        """The part that decides how long a check takes: the parameters in the hash, or the scheme if it has none."""
        if self.scram is not None:
            return f"{self.scheme} {self.scram.iterations}"
        match = EFFORT.match(self.text) if self.scheme.endswith("CRYPT") or self.scheme.startswith("ARGON2") else None
        return match[1] if match else self.scheme


def parse_hash(text: str) -> PasswordHash:
    """Parse the second field of a passwd-file's line. Raises ValueError that says what is wrong, never the hash.

    Without `{SCHEME}`, CRYPT is assumed, which is Dovecot's default for passwd-files.
    """
    if not text:
        raise ValueError("there is no password; set one")
    match = SCHEMED.fullmatch(text)
    scheme, encoding, value = match.groups() if match else ("CRYPT", None, text)
    scheme = scheme.upper()
    if scheme not in SCHEMES:
        raise ValueError(f"unknown password scheme {{{scheme}}}; use one of {', '.join(SCHEMES)}")
    try:
        if scheme == scram.SCHEME:
            keys = ScramKeys.parse(value)
            return PasswordHash(scheme, text, keys.check, keys)
        return PasswordHash(scheme, text, PARSERS[scheme](value, encoding))
    except ValueError as error:
        raise ValueError(f"invalid {{{scheme}}} hash: {error}; set the password again") from error


def hash_password(password: str, scheme: str = DEFAULT_SCHEME) -> str:
    """Return `{SCHEME}value` for a new password. Blocks. Raises ValueError for an invalid password or scheme."""
    secret = password.encode()
    if not 1 <= len(secret) <= PASSWORD_MAX_BYTES or "\0" in password:
        raise ValueError(f"a password must have 1 to {PASSWORD_MAX_BYTES} bytes and no NUL")
    match scheme.upper():
        case "ARGON2ID":
            return f"{{ARGON2ID}}{ARGON2.hash(password)}"
        case "SHA512-CRYPT":
            return f"{{SHA512-CRYPT}}{SHA512_CRYPT.hash(password)}"
        case "PLAIN":
            # Encoded, because a colon or a line end would end the field.
            return f"{{PLAIN.B64}}{base64.b64encode(secret).decode()}"
        case scram.SCHEME:
            return f"{{{scram.SCHEME}}}{ScramKeys.of_password(password, secrets.token_bytes(scram.SALT_BYTES))}"
    raise ValueError(f"cannot create {{{scheme}}} hashes; use one of {', '.join(NEW_SCHEMES)}, PLAIN")


def _plain(value: str, encoding: str | None) -> Checker:
    expected = _decoded(value, encoding) if encoding else value.encode()
    return lambda password: hmac.compare_digest(password, expected)


def _digest(algorithm: str, *, salted: bool) -> Callable[[str, str | None], Checker]:
    """Return a parser of `{SSHA256}` and similar schemes: base64 of digest(password + salt) + salt."""
    digest_bytes = hashlib.new(algorithm).digest_size

    def parse(value: str, encoding: str | None) -> Checker:
        decoded = _decoded(value, encoding or "B64")
        digest, salt = decoded[:digest_bytes], decoded[digest_bytes:]
        if len(digest) < digest_bytes or bool(salt) != salted:
            raise ValueError(f"{len(decoded)} bytes, where {digest_bytes}{' and a salt' * salted} are expected")
        return lambda password: hmac.compare_digest(hashlib.new(algorithm, password + salt).digest(), digest)

    return parse


def _argon2(value: str, _encoding: str | None) -> Checker:
    parsed = argon2.from_string(value)
    if parsed.memory_cost > ARGON2_MEMORY_MAX_KIB:
        raise ValueError(
            f"it needs {parsed.memory_cost} KiB of memory, but at most {ARGON2_MEMORY_MAX_KIB} are allowed"
        )
    return lambda password: ARGON2.verify(password, value)


def _sha512_crypt(value: str, _encoding: str | None) -> Checker:
    _check_rounds(sha512_crypt.from_string(value).rounds)
    return lambda password: sha512_crypt.verify(password, value)


def _sha256_crypt(value: str, _encoding: str | None) -> Checker:
    _check_rounds(sha256_crypt.from_string(value).rounds)
    return lambda password: sha256_crypt.verify(password, value)


def _bcrypt(value: str, _encoding: str | None) -> Checker:
    """Parse a hash of bcrypt, which `doveadm pw` makes. `$2a$`, `$2b$` and `$2y$` stand for the same hash."""
    match = BCRYPT.fullmatch(value)
    if match is None:
        raise ValueError("expected $2y$, $2b$ or $2a$, a cost of two digits, $ and 53 characters")
    if int(match[1]) > BCRYPT_COST_MAX:
        raise ValueError(f"its cost is {int(match[1])}, but at most {BCRYPT_COST_MAX} is allowed")
    return lambda password: bcrypt.checkpw(password[:BCRYPT_MAX_BYTES], value.encode())


def _crypt(value: str, encoding: str | None) -> Checker:
    """Parse a hash of crypt(3), by its own prefix."""
    for prefix, parser in (("$6$", _sha512_crypt), ("$5$", _sha256_crypt), ("$2", _bcrypt), ("$argon2", _argon2)):
        if value.startswith(prefix):
            return parser(value, encoding)
    raise ValueError("only $2y$, $5$, $6$ and $argon2 hashes are supported")


def _check_rounds(rounds: int) -> None:
    if rounds > CRYPT_ROUNDS_MAX:
        raise ValueError(f"it needs {rounds} rounds, but at most {CRYPT_ROUNDS_MAX} are allowed")


def _decoded(value: str, encoding: str) -> bytes:
    try:
        match encoding.upper():
            case "HEX":
                return bytes.fromhex(value)
            case "B64" | "BASE64":
                return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    raise ValueError(f"unknown encoding .{encoding}; use .B64 or .HEX")


PARSERS: dict[str, Callable[[str, str | None], Checker]] = {
    "PLAIN": _plain,
    "CLEARTEXT": _plain,
    "SHA256": _digest("sha256", salted=False),
    "SSHA256": _digest("sha256", salted=True),
    "SHA512": _digest("sha512", salted=False),
    "SSHA512": _digest("sha512", salted=True),
    "CRYPT": _crypt,
    "BLF-CRYPT": _bcrypt,
    "SHA256-CRYPT": _sha256_crypt,
    "SHA512-CRYPT": _sha512_crypt,
    "ARGON2I": _argon2,
    "ARGON2ID": _argon2,
}

SCHEMES = (*PARSERS, scram.SCHEME)
