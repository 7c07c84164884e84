"""Answers to log-ins by SCRAM of users who cannot do so, which must look as those to users who can.

The server's first message tells a user's salt to whoever asks. So everybody has a salt: always the same one, under all
names that would find one user, and at all nodes that have one passwd-file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter

from replicator.users.names import candidates
from replicator.users.passwd_file import UserTable
from replicator.users.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, ScramKeys


class ScramDecoys:
    """Decoys for one version of the users; `key` is secret, and used if the file has no secret of its own.

    `for_some`, `for_all`: some users, or all, can log in by SCRAM.
    """

    def __init__(self, table: UserTable, key: bytes) -> None:
        hashes = [stored.scram for stored in table.users.values() if stored is not None]
        keys = [each for each in hashes if each is not None]
        usual = Counter((each.iterations, len(each.salt)) for each in keys).most_common(1)
        self.for_some = bool(keys)
        self.for_all = bool(keys) and len(keys) == len(hashes)
        self._iterations, self._salt_bytes = usual[0][0] if usual else (ITERATIONS, SALT_BYTES)
        self._with_domain = 2 * sum("@" in user for user in table.users) > len(table.users)
        self._secret = table.secret or key

    def keys_of(self, name: str) -> ScramKeys:
        """Return keys that no password fits."""
        salt = hmac.digest(self._secret, self._user(name).encode(), hashlib.sha512)
        return ScramKeys(
            self._iterations,
            salt[: self._salt_bytes],
            secrets.token_bytes(KEY_BYTES),
            secrets.token_bytes(KEY_BYTES),
        )

    def _user(self, name: str) -> str:
        """Return the user whom this name would find, if users had such names as most have here."""
        spellings = list(candidates(name))
        return spellings[len(spellings) // 2 - 1] if self._with_domain and len(spellings) > 1 else spellings[-1]
