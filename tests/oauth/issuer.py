"""An identity provider: its keys, its tokens, and how it publishes the keys. Signs without the library under test."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://id.example.org"
AUDIENCE = "mail"
NOW_S = 1_800_000_000
HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
CURVES: Mapping[str, tuple[str, type[ec.EllipticCurve]]] = {
    "ES256": ("P-256", ec.SECP256R1),
    "ES384": ("P-384", ec.SECP384R1),
    "ES512": ("P-521", ec.SECP521R1),
}


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@cache
def private(algorithm: str, which: int, bits: int = 2048) -> Private:  # noqa: ARG001 - `which` is part of the key of the cache
    """Return a private key; `which` tells several of one kind apart."""
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm][1]())
    if algorithm.startswith("Ed"):
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


@dataclass(frozen=True)
class SigningKey:
    """A key of the provider's. `algorithm` says how it signs."""

    kid: str
    algorithm: str = "ES256"
    which: int = 0
    bits: int = 2048

    @property
    def private(self) -> Private:
        return private("RSA" if self.algorithm[0] in "RP" else self.algorithm, self.which, self.bits)

    def jwk(self, **more: object) -> dict[str, object]:
        """Return the public key (RFC 7518 section 6, RFC 8037 section 2)."""
        return {"kid": self.kid, **self._public(), **more}

    def _public(self) -> dict[str, object]:
        match self.private:
            case rsa.RSAPrivateKey() as key:
                public = key.public_key().public_numbers()
                return {"kty": "RSA", "n": number(public.n), "e": number(public.e)}
            case ec.EllipticCurvePrivateKey() as key:
                point, size = key.public_key().public_numbers(), (key.key_size + 7) // 8
                x, y = (encoded(each.to_bytes(size, "big")) for each in (point.x, point.y))
                return {"kty": "EC", "crv": CURVES[self.algorithm][0], "x": x, "y": y}
            case key:
                return {
                    "kty": "OKP",
                    "crv": "Ed25519",
                    "x": encoded(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)),
                }

    def token(
        self, header: Mapping[str, object] | None = None, payload: bytes | None = None, /, **claims: object
    ) -> str:
        """Return a token for alice. A claim or a field of the header whose value is None is left out."""
        fields = {"alg": self.algorithm, "kid": self.kid, "typ": "at+jwt", **(header or {})}
        head = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
        body = payload if payload is not None else json.dumps(claims_of(**claims)).encode()
        signed = f"{encoded(head)}.{encoded(body)}"
        return f"{signed}.{encoded(self.signature(signed.encode()))}"

    def signature(self, signed: bytes) -> bytes:
        match self.private:
            case rsa.RSAPrivateKey() as key:
                digest = HASHES[self.algorithm[2:]]
                if self.algorithm[0] == "R":
                    return key.sign(signed, padding.PKCS1v15(), digest)
                return key.sign(signed, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
            case ec.EllipticCurvePrivateKey() as key:
                size = (key.key_size + 7) // 8
                pair = decode_dss_signature(key.sign(signed, ec.ECDSA(HASHES[self.algorithm[2:]])))
                return b"".join(each.to_bytes(size, "big") for each in pair)
            case key:
                return key.sign(signed)


def claims_of(**claims: object) -> dict[str, object]:
    """Return the claims of a token for alice, with these; None leaves a claim out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 300, "sub": "4711", "email": "alice@example.org"}
    return {name: value for name, value in {**usual, **claims}.items() if value is not None}


def key_set(*keys: SigningKey | Mapping[str, object]) -> bytes:
    """Return what the provider publishes."""
    jwks: Iterable[Mapping[str, object]] = [key.jwk() if isinstance(key, SigningKey) else key for key in keys]
    return json.dumps({"keys": list(jwks)}).encode()
