"""Log-ins, and the passwords of a passwd-file that they rest on. Belongs to the event loop; hashing runs in threads.

A right password is known for a while without hashing, as a digest under a key of this process.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import trio

from replicator.runtime.environment import ThreadRunner
from replicator.users.followed_file import FollowedFile
from replicator.users.passwd_file.table import UserTable
from replicator.users.schemes import PASSWORD_MAX_BYTES, PasswordHash

REMEMBER_S = 60.0
"""Seconds for which a right password is known without hashing: clients open connections by the dozen."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A name for which an access token or a client's certificate vouches, until a time of the wall clock."""

    name: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Login:
    """A user who has logged in, and the grounds of the login, which the directory's `holds` checks again later.

    `password`: the hash of the password that was right; None: an identity was shown, which ends at `until_ms`, or a
    server elsewhere has checked the password. `address`: the client's IP address, if it has one. `master`: who acts as
    the user, and whose password that is. `name`: the log-in name of the user's line, if there is one.
    """

    user: str
    password: PasswordHash | None = None
    until_ms: int | None = None
    address: str | None = None
    master: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class _Remembered:
    password: PasswordHash
    digest: bytes
    until_s: float


class Passwords:
    """The passwords of one passwd-file, and who may log in by them. `key`: secret, for digests."""

    def __init__(self, file: FollowedFile, key: bytes, run_in_thread: ThreadRunner) -> None:
        self.file = file
        self._key = key
        self._run_in_thread = run_in_thread
        self._remembered: dict[str, _Remembered] = {}

    def remembered(self, owner: str, secret: bytes) -> PasswordHash | None:
        """Return the owner's hash if this password was right lately, and is the same now. Raises as `check`."""
        known = self._remembered.get(owner)
        if known is None or known.until_s <= trio.current_time():
            return None
        if known.password != self.file.known().users.get(owner):
            return None
        digest = digest_of(self._key, owner, secret)
        return known.password if hmac.compare_digest(known.digest, digest) else None

    async def check(self, owner: str, secret: bytes) -> PasswordHash | None:
        """Return the owner's hash if the password is right. Takes as long for an owner who does not exist.

        Raises UsersUnavailableError if the file has never been readable.
        """
        users = self.file.known().users
        stored = users.get(owner)
        against = stored or self.file.decoys.hash_to_check()
        if not await self.fits(against, secret if stored is not None and is_usable(secret) else b"-"):
            return None
        if stored is None or not is_usable(secret):
            return None
        if len(self._remembered) > len(users):  # some of them have left the file
            self._remembered = {user: known for user, known in self._remembered.items() if user in users}
        until_s = trio.current_time() + REMEMBER_S
        self._remembered[owner] = _Remembered(stored, digest_of(self._key, owner, secret), until_s)
        return stored

    async def fits(self, password: PasswordHash, secret: bytes) -> bool:
        """Return True if this is the password of a hash."""
        return is_usable(secret) and await self._run_in_thread(lambda: password.check(secret))

    def lets_in(self, owner: str, address: str | None) -> bool:
        """Return True if the owner may log in from an IP address, by whatever is right. None: from no IP address.

        Raises as `check`.
        """
        return _is_let_in(self.file.known(), owner, address)

    def only_from(self, owner: str) -> tuple[str, ...] | None:
        """Return the networks from which the owner may log in; None: from everywhere. Raises as `check`."""
        nets = self.file.known().nets.get(owner)
        return None if nets is None else tuple(nets.words())

    def still_lets_in(self, owner: str, login: Login) -> bool:
        """Return True if the owner of a log-in's password still may log in by it. Never waits."""
        table = self.file.table
        if table is None or not _is_let_in(table, owner, login.address):
            return False
        password = table.users.get(owner)
        if owner not in table.users:
            leaving = self.file.leaves(owner)
            if leaving is None or not leaving.in_place:
                return False
            password = leaving.password
        return login.password is None or login.password == password


def may_come(table: UserTable, owner: str, address: str | None) -> bool:
    """Return True if the owner's line lets log-ins come from an IP address. None: from no IP address."""
    nets = table.nets.get(owner)
    return nets is None or nets.has(address)


def is_usable(secret: bytes) -> bool:
    """Return True if this can be a password at all."""
    return 1 <= len(secret) <= PASSWORD_MAX_BYTES and 0 not in secret


def digest_of(key: bytes, owner: str, secret: bytes) -> bytes:
    """Return what a process may remember of a right password."""
    return hmac.digest(key, owner.encode("utf-8", "surrogateescape") + b"\0" + secret, hashlib.sha256)


def _is_let_in(table: UserTable, owner: str, address: str | None) -> bool:
    return owner not in table.disabled and may_come(table, owner, address)
