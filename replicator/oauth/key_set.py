"""A provider's public keys, as it publishes them: a JSON Web Key Set (RFC 7517). No I/O.

Only what a key is for is believed of it: the signatures that its type can make, that the configuration allows, and that
the key itself names, if it names one. Symmetric keys are none of them, and private members of a key are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import InvalidKeyError
from jwt.algorithms import AllowedPublicKeys, ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from protocol.units import KIB

JWKS_BYTES_MAX = 256 * KIB
KEYS_MAX = 100
"""Keys that are looked at. Providers publish a handful, a few KiB in all."""

RSA_BITS_MIN = 2048  # RFC 7518 section 3.3
RSA_BITS_MAX = 8192
"""Checking a signature takes less than a millisecond at that size."""

_SIGNATURES: Mapping[tuple[object, object], frozenset[str]] = {
    ("RSA", None): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA", "Ed25519"}),
}
"""The signatures of each kind of key, by `kty` and `crv` (RFC 7518 section 6, RFC 8037 section 2)."""

_PUBLIC = ("kty", "n", "e", "crv", "x", "y")


class KeySetError(Exception):
    """Lack of keys. The text says why, without a final stop."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the signatures for which it may be used."""

    kid: str | None
    public: AllowedPublicKeys = field(repr=False, compare=False)
    algorithms: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeySet:
    """A provider's keys."""

    keys: tuple[Key, ...]

    @classmethod
    def parse(cls, data: bytes, algorithms: Sequence[str]) -> KeySet:
        """Parse a JWKS, and keep the keys for these algorithms (RFC 7517 section 5). Blocks for some milliseconds.

        Raises KeySetError if it is none, or has none of them. Keys that make no sense are left out.
        """
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise KeySetError("it is not JSON") from error
        listed = parsed.get("keys") if isinstance(parsed, dict) else None
        if not isinstance(listed, list):
            raise KeySetError('it is not a JWKS: expected {"keys": [...]}')
        if not listed:
            raise KeySetError(
                "it has no keys; use the address at which the provider publishes those that it signs with"
            )
        if len(listed) > KEYS_MAX:
            raise KeySetError(f"it has {len(listed)} keys; at most {KEYS_MAX} are allowed")
        keys = tuple(key for each in listed if isinstance(each, dict) and (key := _key(each, algorithms)) is not None)
        if not keys:
            raise KeySetError(f"none of its {len(listed)} keys is a public key for {', '.join(algorithms)}")
        return cls(keys)

    def fitting(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """Return the keys of this id, or with None all, that may be used for signatures of this kind."""
        return [key for key in self.keys if algorithm in key.algorithms and kid in {None, key.kid}]


def _key(jwk: Mapping[str, object], allowed: Sequence[str]) -> Key | None:
    """Return the key, or None if it is of no use here."""
    kid, operations = jwk.get("kid"), jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    if kid is not None and not isinstance(kid, str):
        return None
    signatures = _signatures(jwk) & frozenset(allowed)
    if "alg" in jwk:
        signatures &= {each for each in signatures if each == jwk["alg"]}
    public = _public(jwk) if signatures else None
    return None if public is None else Key(kid, public, signatures)


def _signatures(jwk: Mapping[str, object]) -> frozenset[str]:
    kind = jwk.get("kty"), jwk.get("crv")
    return _SIGNATURES.get(kind, frozenset()) if all(isinstance(each, str | None) for each in kind) else frozenset()


def _public(jwk: Mapping[str, object]) -> AllowedPublicKeys | None:
    members = {name: value for name in _PUBLIC if isinstance(value := jwk.get(name), str)}
    try:
        match members["kty"]:
            case "RSA":
                public: object = RSAAlgorithm.from_jwk(members)
            case "EC":
                public = ECAlgorithm.from_jwk(members)
            case _:
                public = OKPAlgorithm.from_jwk(members)
    except (InvalidKeyError, ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if isinstance(public, RSAPublicKey):
        return public if RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX else None
    return public if isinstance(public, EllipticCurvePublicKey | Ed25519PublicKey) else None
