"""Answers to log-ins of users who do not exist, or cannot log in in this way, which must look as those to others.

The server's first message of SCRAM tells a user's salt to whoever asks. So everybody has a salt: always the same one,
under all names that would find one user, and at all nodes that have one passwd-file. And a password is checked for
whoever asks, by a hash of the scheme that most users have.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter

from replicator.users.names import candidates
from replicator.users.passwd_file import UserTable
from replicator.users.schemes import PasswordHash, parse_hash
from replicator.users.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, ScramKeys

# No one knows its password: 32 random bytes, hashed once with the default parameters and discarded.
DECOY = "{ARGON2ID}$argon2id$v=19$m=19456,t=2,p=1$0nrP2VvLOQcgxPh/j1EKQQ$qW6cgK+68Qn4tYStOjttGtgMgOQdjdkYM7l2v+kuEL8"


class Decoys:
    """Decoys for the users of a table, who come and go; `key` is secret, and used if the file has no secret of its own.

    It counts the users of each kind, so that a change costs no more with many users than with few.
    """

    def __init__(self, table: UserTable, key: bytes) -> None:
        self._secret = table.secret or key
        self._users = self._with_domain = 0
        self._schemes: Counter[str] = Counter()
        self._samples: dict[str, PasswordHash] = {}  # by scheme, of users who are or were there
        self._kinds: Counter[tuple[int, int]] = Counter()  # of keys of SCRAM: iterations, octets of salt
        for user, stored in table.users.items():
            self.add(user, stored)

    def add(self, user: str, stored: PasswordHash | None) -> None:
        """Count a user with this hash."""
        self._count(user, stored, 1)
        if stored is not None:
            self._samples.setdefault(stored.scheme, stored)

    def remove(self, user: str, stored: PasswordHash | None) -> None:
        """Count a user with this hash no more."""
        self._count(user, stored, -1)

    def _count(self, user: str, stored: PasswordHash | None, one: int) -> None:
        self._users += one
        self._with_domain += one * ("@" in user)
        if stored is not None:
            self._schemes[stored.scheme] += one
            if stored.scram is not None:
                self._kinds[stored.scram.iterations, len(stored.scram.salt)] += one

    @property
    def for_some(self) -> bool:
        """Return True if some users can log in by SCRAM."""
        return self._kinds.total() > 0

    @property
    def for_all(self) -> bool:
        """Return True if all users who have a password can log in by SCRAM, and some do."""
        return self.for_some and self._kinds.total() == self._schemes.total()

    def hash_to_check(self) -> PasswordHash:
        """Return a hash of the scheme that most users have, to compute for users who do not exist."""
        [(scheme, users)] = self._schemes.most_common(1) or [("", 0)]
        return self._samples[scheme] if users else parse_hash(DECOY)

    def keys_of(self, name: str) -> ScramKeys:
        """Return keys that no password fits."""
        [((iterations, salt_bytes), users)] = self._kinds.most_common(1) or [((0, 0), 0)]
        if not users:
            iterations, salt_bytes = ITERATIONS, SALT_BYTES
        salt = hmac.digest(self._secret, self._user(name).encode(), hashlib.sha512)
        return ScramKeys(iterations, salt[:salt_bytes], secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES))

    def _user(self, name: str) -> str:
        """Return the user whom this name would find, if users had such names as most have here."""
        spellings = list(candidates(name))
        has_domains = 2 * self._with_domain > self._users
        return spellings[len(spellings) // 2 - 1] if has_domains and len(spellings) > 1 else spellings[-1]
