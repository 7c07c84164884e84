"""Answers to log-ins of users who do not exist, or cannot log in in this way, which must look as those to others.

The server's first message of SCRAM tells a user's salt to whoever asks. So everybody has a salt: always the same one,
under all names that would find one user, and at all nodes that have one passwd-file. And a password is checked for
whoever asks, by a hash that takes as long as those of most users.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from typing import TypeVar

from replicator.users.names import candidates
from replicator.users.passwd_file.table import UserTable
from replicator.users.schemes import PasswordHash, parse_hash
from replicator.users.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, ScramKeys

# No one knows its password: 32 random bytes, hashed once with the default parameters and discarded.
DECOY = "{ARGON2ID}$argon2id$v=19$m=19456,t=2,p=1$0nrP2VvLOQcgxPh/j1EKQQ$qW6cgK+68Qn4tYStOjttGtgMgOQdjdkYM7l2v+kuEL8"


K = TypeVar("K", str, tuple[int, int])


class Decoys:
    """Decoys for the users of a table, who come and go; `key` is secret, and used if the file has no secret of its own.

    It counts the users of each kind, so that a change costs no more with many users than with few.
    """

    def __init__(self, table: UserTable, key: bytes) -> None:
        self._secret = table.secret or key
        self._users = self._with_domain = 0
        self._efforts: Counter[str] = Counter()
        self._samples: dict[str, PasswordHash] = {}  # by effort, of users who are or were there
        self._kinds: Counter[tuple[int, int]] = Counter()  # of keys of SCRAM: iterations, octets of salt
        for user, stored in table.users.items():
            self.add(user, stored)

    def add(self, user: str, stored: PasswordHash | None) -> None:
        """Count a user with this hash."""
        self._count(user, stored, 1)
        if stored is not None:
            self._samples.setdefault(stored.effort, stored)

    def remove(self, user: str, stored: PasswordHash | None) -> None:
        """Count a user with this hash no more."""
        self._count(user, stored, -1)

    def _count(self, user: str, stored: PasswordHash | None, one: int) -> None:
        self._users += one
        self._with_domain += one * ("@" in user)
        if stored is not None:
            self._efforts[stored.effort] += one
            if stored.scram is not None:
                self._kinds[stored.scram.iterations, len(stored.scram.salt)] += one

    @property
    def for_some(self) -> bool:
        """Return True if some users can log in by SCRAM."""
        return self._kinds.total() > 0

    @property
    def for_all(self) -> bool:
        """Return True if all users who have a password can log in by SCRAM, and some do."""
        return self.for_some and self._kinds.total() == self._efforts.total()

    def hash_to_check(self) -> PasswordHash:
        """Return a hash that takes as long as those of most users, to compute for users who do not exist."""
        effort = _most_frequent(self._efforts)
        return parse_hash(DECOY) if effort is None else self._samples[effort]

    def keys_of(self, name: str) -> ScramKeys:
        """Return keys that no password fits."""
        iterations, salt_bytes = _most_frequent(self._kinds) or (ITERATIONS, SALT_BYTES)
        salt = hmac.digest(self._secret, self._user(name).encode(), hashlib.sha512)
        return ScramKeys(iterations, salt[:salt_bytes], secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES))

    def _user(self, name: str) -> str:
        """Return the user whom this name would find, if users had such names as most have here."""
        spellings = list(candidates(name))
        has_domains = 2 * self._with_domain > self._users
        return spellings[len(spellings) // 2 - 1] if has_domains and len(spellings) > 1 else spellings[-1]


def _most_frequent(counted: Counter[K]) -> K | None:
    """Return what was counted most; None: nothing.

    Of two that are as frequent it is the greater one, at all nodes, in whichever order their users came.
    """
    frequency, found = max(((frequency, one) for one, frequency in counted.items()), default=(0, None))
    return found if frequency else None
