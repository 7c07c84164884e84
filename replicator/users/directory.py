"""The users as the doors see them: look-up of names, check of passwords, and validity of log-ins.

Belongs to the event loop: only hashing runs in threads, and the reading of many new lines.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from replicator.errors import OtherClusterError, UsersUnavailableError
from replicator.runtime.addresses import network_of
from replicator.runtime.environment import ThreadRunner, run_in_thread, wall_clock_ms
from replicator.users.accounts import Account, accounts_of
from replicator.users.attempts.queue import PATIENCE_S, AttemptQueue
from replicator.users.attempts.throttle import NAME_CHARACTERS_MAX, Penalty
from replicator.users.followed_file import LEAVING_S, FollowedFile
from replicator.users.names import candidates, folded
from replicator.users.schemes import PASSWORD_MAX_BYTES, PasswordHash
from replicator.users.scram import ScramAttempt, ScramKeys
from replicator.users.trial import Obstacle, Reason, Trial, reasons_against
from replicator.users.words.home_cluster import Site
from replicator.users.words.quota_limits import NO_LIMITS, QuotaLimits

REMEMBER_S = 60.0
"""Seconds for which a right password is known without hashing: clients open connections by the dozen."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A name for which an access token or a client's certificate vouches, until a time of the wall clock."""

    name: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Login:
    """A user who has logged in, and the grounds of the login, which `UserDirectory.holds` checks again later.

    `password`: the hash of the password that was right; None: an identity was shown, which ends at `until_ms`.
    """

    user: str
    password: PasswordHash | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A password that was right, as a digest under a key of this process."""

    login: Login
    digest: bytes
    until_s: float


class UserDirectory:
    """The users of one passwd-file. Can be created anywhere; `verify` needs trio, and time is trio's."""

    def __init__(
        self,
        path: Path,
        *,
        quota: QuotaLimits = NO_LIMITS,
        run_in_thread: ThreadRunner = run_in_thread,
        clock_ms: Callable[[], int] = wall_clock_ms,
        key: bytes | None = None,
        site: Site | None = None,
        is_from_cluster: bool = False,
    ) -> None:
        """`quota`: the limits of users whose lines set none. `key`: of another process whose decoys are to be alike.

        `site`: where this node is; None: every user's mail is here. `is_from_cluster`: the node writes the file itself,
        once it has the cluster's table of users.
        """
        self._quota = quota
        self._site = site
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self.key = key or secrets.token_bytes(32)
        self._remembered: dict[str, _Remembered] = {}
        self._attempts = AttemptQueue()
        self._file = FollowedFile(
            path,
            self.key,
            run_in_thread,
            site=site,
            is_from_cluster=is_from_cluster,
            changed=self._remembered.clear,
        )

    async def load(self) -> None:
        """Read the file before `run` begins, in a thread if it has many users."""
        await self._file.load()

    async def run(self) -> None:
        """Read in a thread what would hold up the event loop, until cancelled. Meanwhile the last contents hold."""
        await self._file.run()

    def refresh(self) -> None:
        """Read the file again if it has changed. While it cannot be read, the last contents hold."""
        self._file.refresh()

    def unreadable(self) -> list[str]:
        """Return the reason why the file cannot be read now; empty if it can."""
        return self._file.unreadable()

    def problems(self) -> list[str]:
        """Return all problems of the file now, including single lines, as `file:line: problem`."""
        return self._file.problems()

    async def learn(self, name: str) -> None:  # noqa: ARG002 - all users are known
        """Make sure that `find` can answer for this name: see `UserNames`."""
        await trio.lowlevel.checkpoint()

    def find(self, name: str) -> str | None:
        """Return the user of an address or login name (see `names`), even one with an unusable hash; None if unknown.

        Raises UsersUnavailableError while the users are unknown: the file has never been readable, or has just lost the
        user. Raises OtherClusterError if the user's mail is in another cluster.
        """
        user = self._find(name)
        if user is not None:
            self._check_home(user)
        return user

    def home_of(self, name: str) -> tuple[str, str] | None:
        """Return the user of this name, in whichever cluster, and the cluster. Raises UsersUnavailableError.

        A directory without a `site` has no answer. The cluster of a user whose line should name one is `NOWHERE`.
        """
        user = self._find(name)
        if user is None or self._site is None:
            return None
        return user, self._site.home_of(self._file.known().clusters.get(user))

    def _find(self, name: str) -> str | None:
        """Return the user of this name, in whichever cluster. Raises UsersUnavailableError."""
        users = self._file.known().users
        for user in candidates(name):
            if user in users:
                return user
            if self._file.leaves(user) is not None:  # until then the mail does not go to another candidate either
                raise UsersUnavailableError(f"the list of users has just changed; try again in {LEAVING_S:.0f} seconds")
        return None

    def users(self) -> list[str]:
        """Return all users."""
        self.refresh()
        return list(self._file.table.users) if self._file.table else []

    def accounts(self) -> list[Account]:
        """Return all users and what their lines say."""
        self.refresh()
        return list(accounts_of(self._file.table, self._quota)) if self._file.table else []

    def summary(self) -> tuple[int, int]:
        """Return the number of users, in whichever cluster, and the digest of their table (`UserTable.digest`).

        Both are 0 while the users are unknown.
        """
        self.refresh()
        return (len(self._file.table.users), self._file.table.digest) if self._file.table else (0, 0)

    def set_quota(self, quota: QuotaLimits) -> None:
        """Replace the limits of users whose lines set none."""
        self._quota = quota

    def quota_limits(self, user: str) -> QuotaLimits:
        """Return the limits on what the user's mail may take."""
        self.refresh()
        return self._quota._replace(**self._file.table.quotas.get(user, {})) if self._file.table else self._quota

    async def verify(self, name: str, password: str, *, address: str | None = None) -> Login | None:
        """Return the user's login if the password is right, else None; see `verify_anywhere`.

        Raises OtherClusterError if the password is right and the user's mail is in another cluster.
        """
        return self._at_home(await self.verify_anywhere(name, password, address=address))

    async def verify_anywhere(
        self, name: str, password: str, *, address: str | None = None, patience_s: float = PATIENCE_S
    ) -> Login | None:
        """Return the user's login if the password is right, else None. Takes as long for a user who does not exist.

        After failures, attempts are delayed as `throttle` says; `address` is an IP address. Attempts take turns, so
        that guessing in parallel is no faster and nobody occupies all places for hashing. Raises UnavailableError if
        the turn does not come within `patience_s`, and UsersUnavailableError as `find`.
        """
        # Failures count for the resolved user: one account has many names, by its details.
        user = self._find(name) or folded(name)
        secret = password.encode("utf-8", "surrogateescape")
        if (login := self._remembered_login(user, secret)) is not None:
            return login

        async def check() -> Login | None:
            # Meanwhile another connection of the same client may have logged in.
            return self._remembered_login(user, secret) or await self._check(user, secret)

        return await self._attempts.in_turn(user, address, check, patience_s)

    async def try_login(self, name: str, password: str) -> Trial:
        """Return whether this name and password would let a client in, and why not. Counts as nobody's attempt.

        Raises UsersUnavailableError, and UnavailableError if no hash can be computed within `PATIENCE_S`.
        """
        user = self._find(name)
        if user is None:
            reason = Reason(Obstacle.NO_SUCH_USER, f"there is no user {folded(name)!r}, nor one by a part of this name")
            return self._trial(folded(name), None, [reason])
        stored = self._file.known().users.get(user)
        secret = password.encode("utf-8", "surrogateescape")
        is_right = None if stored is None else await self._attempts.out_of_turn(partial(self._fits, stored, secret))
        table = self._file.known()
        if user not in table.users or table.users[user] != stored:
            return await self.try_login(name, password)  # the file has changed meanwhile
        return self._trial(user, user, reasons_against(table, user, self._site, is_right=is_right))

    async def _fits(self, stored: PasswordHash, secret: bytes) -> bool:
        return is_usable(secret) and await self._run_in_thread(lambda: stored.check(secret))

    def _trial(self, counted_as: str, user: str | None, reasons: Sequence[Reason]) -> Trial:
        slowed = [one for one in self.penalties() if one.user == counted_as[:NAME_CHARACTERS_MAX] and one.waits_s]
        addresses = (one.address if one.address is not None else "everywhere" for one in slowed)
        waits_s = max((one.waits_s for one in slowed), default=0.0)
        return Trial(user, tuple(reasons), waits_s, tuple(addresses))

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        return self._attempts.penalties()

    def forgive(self, of: str | None) -> int:
        """Forget the failed attempts of a user or an address; None: of everybody. Return how many penalties end.

        Raises UsersUnavailableError.
        """
        return self._attempts.forgive(None if of is None else {of, folded(of), network_of(of), self._find(of) or of})

    def has_scram(self, *, for_all: bool = False) -> bool:
        """Return True if somebody can log in by SCRAM; with `for_all`, if all users can."""
        self.refresh()
        return self._file.decoys.for_all if for_all else self._file.decoys.for_some

    def scram_keys(self, name: str) -> ScramKeys:
        """Return the keys of the user of this name; for whoever cannot log in by SCRAM, decoys. Raises as `find`."""
        user = self._find(name)
        stored = self._file.known().users.get(user) if user is not None else None
        decoy = self._file.decoys.keys_of(name)
        return stored.scram if stored is not None and stored.scram is not None else decoy

    def lacks_scram(self, name: str) -> bool:
        """Return True if this is the name of a user who cannot log in by SCRAM: for the log only."""
        users = self._file.table.users if self._file.table else {}
        user = next((user for user in candidates(name) if user in users), None)
        return user is not None and ((stored := users[user]) is None or stored.scram is None)

    def is_disabled(self, name: str) -> bool:
        """Return True if this is the name of a user who is disabled: for the log only."""
        users, disabled = (self._file.table.users, self._file.table.disabled) if self._file.table else ({}, set())
        return next((user for user in candidates(name) if user in users), None) in disabled

    async def verify_scram(self, name: str, attempt: ScramAttempt, *, address: str | None = None) -> Login | None:
        """Return the user's login if the attempt proves the password. Delays, and raises, as `verify`."""
        user = self._find(name) or folded(name)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            stored = self._file.known().users.get(user)
            is_right = attempt.is_right()
            if stored is None or stored.scram != attempt.keys or not is_right or user in self._file.known().disabled:
                return None
            return Login(user, stored)

        return self._at_home(await self._attempts.in_turn(user, address, check))

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        """Return the login of the user of this name, if the identity is that user's. Delays, and raises, as `verify`.

        None for `identity` is a failed attempt, which is counted like a wrong password. Names are compared as users,
        so that each of a user's addresses is as good as another.
        """
        user = self._find(name) or folded(name)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            if identity is None or self._find(name) != user or self._find(identity.name) != user:
                return None
            if user in self._file.known().disabled:
                return None
            return Login(user, until_ms=identity.until_ms)

        return self._at_home(await self._attempts.in_turn(user, address, check))

    def holds(self, login: Login) -> bool:
        """Return True if the user still may log in here, by the same password or an identity in force. Never waits."""
        self.refresh()
        if (
            self._file.table is None
            or not self._is_home(login.user)
            or login.user in self._file.table.disabled
            or (login.until_ms is not None and login.until_ms <= self._clock_ms())
        ):
            return False
        password = self._file.table.users.get(login.user)
        if login.user not in self._file.table.users:
            leaving = self._file.leaves(login.user)
            if leaving is None or not leaving.in_place:
                return False
            password = leaving.password
        return login.password is None or login.password == password

    def _is_home(self, user: str) -> bool:
        named = self._file.table.clusters.get(user) if self._file.table else None
        return self._site is None or self._site.home_of(named) == self._site.own

    def _check_home(self, user: str) -> None:
        """Raise OtherClusterError if a user's mail is in another cluster."""
        if not self._is_home(user):
            raise OtherClusterError(f"the mail of {user} is in another cluster; ask there")

    def _at_home(self, login: Login | None) -> Login | None:
        """Return a login, if the user's mail is here. Raises OtherClusterError."""
        if login is not None:
            self._check_home(login.user)
        return login

    async def _check(self, user: str, secret: bytes) -> Login | None:
        stored, version = self._file.known().users.get(user), self._file.version
        usable = is_usable(secret)
        against = stored or self._file.decoys.hash_to_check()
        matches = await self._run_in_thread(lambda: against.check(secret if stored and usable else b"-"))
        if stored is None or not usable or not matches or user in self._file.known().disabled:
            return None
        login = Login(user, stored)
        # If the file changed meanwhile, the next attempt uses the new one, and this result is not remembered.
        if version == self._file.version:
            self._remembered[user] = _Remembered(login, self._digest(user, secret), trio.current_time() + REMEMBER_S)
        return login

    def _remembered_login(self, user: str, secret: bytes) -> Login | None:
        known = self._remembered.get(user)
        if known is None or known.until_s <= trio.current_time():
            return None
        return known.login if hmac.compare_digest(known.digest, self._digest(user, secret)) else None

    def _digest(self, user: str, secret: bytes) -> bytes:
        return hmac.digest(self.key, user.encode("utf-8", "surrogateescape") + b"\0" + secret, hashlib.sha256)


def is_usable(secret: bytes) -> bool:
    """Return True if this can be a password at all."""
    return 1 <= len(secret) <= PASSWORD_MAX_BYTES and 0 not in secret
