"""The client's side of SCRAM-SHA-256, written from RFC 5802 section 3 with nothing of the server's code."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass


def _hmac(key: bytes, message: str) -> bytes:
    return hmac.digest(key, message.encode(), "sha256")


@dataclass
class ScramClient:
    """One exchange. `channel`: what is bound to, after the header; `nonce`: the client's."""

    user: str
    password: str
    header: str = "n,,"
    channel: bytes = b""
    nonce: str = "rOprNGfwEbeRWgbNEkqO"
    expected: str = ""

    def first(self) -> str:
        return f"{self.header}{self._bare}"

    @property
    def _bare(self) -> str:
        return f"n={self.user},r={self.nonce}"

    def last(self, challenge: str) -> str:
        """Return the answer to the server's first message."""
        nonce, salt, iterations = (field[2:] for field in challenge.split(","))
        assert nonce.startswith(self.nonce)
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), b64decode(salt), int(iterations))
        unproven = f"c={b64encode(self.header.encode() + self.channel).decode()},r={nonce}"
        message = f"{self._bare},{challenge},{unproven}"
        key = _hmac(salted, "Client Key")
        signature = _hmac(hashlib.sha256(key).digest(), message)
        proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
        self.expected = "v=" + b64encode(_hmac(_hmac(salted, "Server Key"), message)).decode()
        return f"{unproven},p={b64encode(proof).decode()}"
