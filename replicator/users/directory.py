"""The users as the doors see them: look-up of names, check of passwords, and validity of log-ins.

Belongs to the event loop: only hashing runs in threads, and the reading of many new lines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from replicator.runtime.addresses import network_of
from replicator.runtime.environment import ThreadRunner, run_in_thread, wall_clock_ms
from replicator.users.accounts import Account, account_of, accounts_of
from replicator.users.attempts.queue import PATIENCE_S, AttemptQueue
from replicator.users.attempts.throttle import Penalty
from replicator.users.followed_file import FollowedFile
from replicator.users.log_in_names import LogInNames
from replicator.users.logins import Identity, Login, Passwords
from replicator.users.masters import MARK, Acting, Masters
from replicator.users.names import folded
from replicator.users.passwd_file.table import UserTable
from replicator.users.schemes import PasswordHash
from replicator.users.scram import ScramAttempt, ScramKeys
from replicator.users.trial import (
    Reason,
    Trial,
    disabled,
    no_such_user,
    reasons_against,
    reasons_against_mail,
    reasons_against_master,
    shut_out,
    shut_out_by_master,
)
from replicator.users.words.home_cluster import Site
from replicator.users.words.quota_limits import NO_LIMITS, QuotaLimits


@dataclass(frozen=True, slots=True)
class _Claim:
    """A client's claim: it is `owner` of one of the `passwords`, who acts as the one with the log-in name `user`.

    Failures count for `counted_as`. `user` is None if there is none of the name. `master` is the owner, if that is one.
    """

    passwords: Passwords
    owner: str
    counted_as: str
    user: str | None
    master: str | None = None


class UserDirectory:
    """The users of one passwd-file, and masters of another. Can be created anywhere; `verify` needs trio's time."""

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
        masters: Path | None = None,
        separator: str | None = None,
    ) -> None:
        """`quota`: the limits of users whose lines set none. `key`: of another process whose decoys are to be alike.

        `site`: where this node is; None: every user's mail is here. `is_from_cluster`: the node writes the file itself,
        once it has the cluster's table of users. `masters`: the passwd-file of master users, who log in as others;
        `separator`: of the names of user and master.
        """
        self._quota = quota
        self._site = site
        self._clock_ms = clock_ms
        self.key = key or secrets.token_bytes(32)
        self._attempts = AttemptQueue()
        self._file = FollowedFile(path, self.key, run_in_thread, site=site, is_from_cluster=is_from_cluster)
        self._names = LogInNames(self._file, site)
        self._passwords = Passwords(self._file, self.key, run_in_thread)
        self._masters = None if masters is None else Masters(masters, separator, self.key, run_in_thread)

    async def load(self) -> None:
        """Read the file before `run` begins, in a thread if it has many users."""
        await self._file.load()
        self._refresh_masters()

    async def run(self) -> None:
        """Read in a thread what would hold up the event loop, until cancelled. Meanwhile the last contents hold."""
        await self._file.run()

    def refresh(self) -> None:
        """Read the file again if it has changed. While it cannot be read, the last contents hold."""
        self._file.refresh()
        self._refresh_masters()

    def _refresh_masters(self) -> None:
        if self._masters is not None:
            self._masters.file.refresh()

    def unreadable(self) -> list[str]:
        """Return the reason why the file cannot be read now; empty if it can."""
        return self._file.unreadable()

    def problems(self) -> list[str]:
        """Return all problems of the file now, including single lines, as `file:line: problem`."""
        return [*self._file.problems(), *(self._masters.file.problems() if self._masters is not None else ())]

    async def ask(self, name: str) -> str | None:
        """Return what `find` does: all users are known. Raises as it."""
        await trio.lowlevel.checkpoint()
        return self.find(name)

    def find(self, name: str) -> str | None:
        """Return the user of an address or login name (see `names`), even one with an unusable hash; None if unknown.

        Raises UsersUnavailableError while the users are unknown: the file has never been readable, or has just lost the
        user. Raises OtherClusterError if the user's mail is in another cluster.
        """
        found = self._names.find(name)
        if found is None:
            return None
        self._names.check_home(found)
        return self._names.mail_user(found)

    def home_of(self, name: str) -> tuple[str, str] | None:
        """Return the log-in name that this name means, in whichever cluster, and the cluster.

        A directory without a `site` has no answer. The cluster of a user whose line should name one is `NOWHERE`.
        Raises UsersUnavailableError.
        """
        acting = self._acting(name)
        return self._names.home_of(name if acting is None else acting.user)

    @property
    def has_masters(self) -> bool:
        """True if there are users who may act as others."""
        return self._masters is not None

    def _acting(self, name: str, as_user: str | None = None) -> Acting | None:
        """Return the master that a client names, if it names one."""
        return self._masters.acting(name, as_user) if self._masters is not None else None

    def _claim(self, name: str, as_user: str | None) -> _Claim:
        """Return whom a client claims to be. Raises UsersUnavailableError."""
        acting = self._acting(name, as_user)
        if acting is not None and self._masters is not None:
            user, master = self._names.find(acting.user), acting.master
            return _Claim(self._masters.passwords, master, MARK + master, user, master)
        user = self._names.find(name)
        # Failures count for the resolved user: one account has many names, by its details.
        return _Claim(self._passwords, user or folded(name), user or folded(name), user)

    def names_of(self, user: str) -> list[str]:
        """Return the log-in names that open the mail of exactly this user. Raises UsersUnavailableError."""
        return self._names.of(user)

    def name_meant(self, name: str) -> str:
        """Return the log-in name that an operator means, who may name a user by the mail (`LogInNames.first_of`)."""
        return self._names.first_of(name)

    def users(self) -> list[str]:
        """Return all log-in names."""
        self.refresh()
        return list(self._file.table.users) if self._file.table else []

    def accounts(self) -> list[Account]:
        """Return all users and what their lines say."""
        self.refresh()
        return list(accounts_of(self._file.table, self._quota, self._file.origin)) if self._file.table else []

    async def account(self, name: str) -> Account | None:
        """Return the user of this name, in whichever cluster; None: there is none. Raises UsersUnavailableError."""
        await trio.lowlevel.checkpoint()
        user, table = self._names.find(name), self._file.known()
        return None if user is None else account_of(table, user, self._quota, self._file.origin)

    def summary(self) -> tuple[int, int]:
        """Return the number of users, in whichever cluster, and the digest of their table (`UserTable.digest`).

        Both are 0 while the users are unknown.
        """
        self.refresh()
        return (len(self._file.table.users), self._file.table.digest) if self._file.table else (0, 0)

    def set_quota(self, quota: QuotaLimits) -> None:
        """Replace the limits of users whose lines set none."""
        self._quota = quota

    async def quota_limits(self, user: str) -> QuotaLimits:
        """Return the limits on what the user's mail may take."""
        await trio.lowlevel.checkpoint()
        self.refresh()
        return self._quota._replace(**self._file.table.quota_of(user)) if self._file.table else self._quota

    async def verify(
        self, name: str, password: str, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """Return the user's login if the password is right, else None; see `verify_anywhere`.

        Raises OtherClusterError if the password is right and the user's mail is in another cluster.
        """
        return self._at_home(await self.verify_anywhere(name, password, address=address, as_user=as_user))

    async def verify_anywhere(
        self,
        name: str,
        password: str,
        *,
        address: str | None = None,
        as_user: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Login | None:
        """Return the user's login if the password is right, else None. Takes as long for a user who does not exist.

        `as_user`: as whom `name`, a master user, would act; None: `name` alone says who logs in.
        After failures, attempts are delayed as `throttle` says; `address` is an IP address. Attempts take turns, so
        that guessing in parallel is no faster and nobody occupies all places for hashing. Raises UnavailableError if
        the turn does not come within `patience_s`, and UsersUnavailableError as `find`.
        """
        claim = self._claim(name, as_user)
        secret = password.encode("utf-8", "surrogateescape")
        if (login := self._remembered_login(claim, secret, address)) is not None:
            return login

        async def check() -> Login | None:
            # Meanwhile another connection of the same client may have logged in.
            if (login := self._remembered_login(claim, secret, address)) is not None:
                return login
            password = await claim.passwords.check(claim.owner, secret)
            return None if password is None else self._login(claim, password, address)

        return await self._attempts.in_turn(claim.counted_as, address, check, patience_s)

    async def try_login(self, name: str, password: str, address: str | None = None) -> Trial:
        """Return whether this name and password would let a client in, and why not. Counts as nobody's attempt.

        `address`: the client's IP address; None: it does not matter.
        Raises UsersUnavailableError, and UnavailableError if no hash can be computed within `PATIENCE_S`.
        """
        acting = self._acting(name)
        named = folded(name if acting is None else acting.user)
        claim = self._claim(name, None)
        passwords = claim.passwords
        stored = passwords.file.known().users.get(claim.owner)
        secret = password.encode("utf-8", "surrogateescape")
        is_right = None if stored is None else await self._attempts.out_of_turn(partial(passwords.fits, stored, secret))
        owners, users = passwords.file.known(), self._file.known()
        if claim != self._claim(name, None) or owners.users.get(claim.owner) != stored:
            return await self.try_login(name, password, address)  # the file has changed meanwhile
        reasons = []
        if claim.user is None:
            reasons.append(no_such_user(users, named))
        else:
            reasons += reasons_against_mail(users, claim.user, self._site)
        if claim.master is not None:
            if claim.user in users.disabled:
                reasons.append(disabled(claim.user))
            reasons += reasons_against_master(owners, claim.master, address, is_right=is_right)
        elif claim.user is not None:
            reasons += reasons_against(owners, claim.user, address, is_right=is_right)
        return self._trial(claim, reasons)

    def _trial(self, claim: _Claim, reasons: Sequence[Reason]) -> Trial:
        waits_s, slowed = self._attempts.delays(claim.counted_as)
        return Trial(
            user=None if claim.user is None else self._file.known().user_of(claim.user) or claim.user,
            reasons=tuple(reasons),
            waits_s=waits_s,
            slowed=slowed,
            only_from=claim.passwords.only_from(claim.owner),
            master=claim.master,
            origin=None if claim.user is None else self._file.origin,
        )

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        return self._attempts.penalties()

    def forgive(self, of: str | None) -> int:
        """Forget the failed attempts of a user or an address; None: of everybody. Return how many penalties end.

        Raises UsersUnavailableError.
        """
        if of is None:
            return self._attempts.forgive(None)
        names = self._file.known().names_of(folded(of))
        return self._attempts.forgive({of, folded(of), network_of(of), self._names.find(of) or of, *names})

    def has_scram(self, *, for_all: bool = False) -> bool:
        """Return True if somebody can log in by SCRAM; with `for_all`, if all users can."""
        self.refresh()
        return self._file.decoys.for_all if for_all else self._file.decoys.for_some

    def scram_keys(self, name: str, as_user: str | None = None) -> ScramKeys:
        """Return the keys of the user of this name; for whoever cannot log in by SCRAM, decoys. Raises as `find`."""
        claim = self._claim(name, as_user)
        file = claim.passwords.file
        stored = file.known().users.get(claim.owner)
        decoy = file.decoys.keys_of(name if claim.master is None else claim.master)
        return stored.scram if stored is not None and stored.scram is not None else decoy

    def lacks_scram(self, name: str, as_user: str | None = None) -> bool:
        """Return True if this is the name of a user who cannot log in by SCRAM: for the log only."""
        acting = self._acting(name, as_user)
        file = self._file if acting is None or self._masters is None else self._masters.file
        if (table := file.table) is None:
            return False
        user = table.find(name if acting is None else acting.master)
        return user is not None and ((stored := table.users[user]) is None or stored.scram is None)

    def shuts_out(self, name: str, address: str | None, as_user: str | None = None) -> str | None:
        """Return why the user of this name may not log in from an IP address, whatever is shown: for the log only."""
        acting = self._acting(name, as_user)
        table, named = self._file.table or UserTable(), name if acting is None else acting.user
        if acting is None or self._masters is None:
            return shut_out(table, named, address)
        return shut_out_by_master(table, named) or self._masters.shuts_out(acting.master, address)

    async def verify_scram(
        self, name: str, attempt: ScramAttempt, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """Return the user's login if the attempt proves the password. Delays, and raises, as `verify`."""
        claim = self._claim(name, as_user)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            stored = claim.passwords.file.known().users.get(claim.owner)
            is_right = attempt.is_right()
            return self._login(claim, stored, address) if stored and stored.scram == attempt.keys and is_right else None

        return self._at_home(await self._attempts.in_turn(claim.counted_as, address, check))

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        """Return the login of the user of this name, if the identity is that user's. Delays, and raises, as `verify`.

        None for `identity` is a failed attempt, which is counted like a wrong password. Names are compared as users,
        so that each of a user's addresses is as good as another.
        """
        user = self._names.find(name) or folded(name)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            if identity is None or self._names.find(name) != user or self._names.find(identity.name) != user:
                return None
            if not self._passwords.lets_in(user, address):
                return None
            return Login(self._names.mail_user(user), until_ms=identity.until_ms, address=address, name=user)

        return self._at_home(await self._attempts.in_turn(user, address, check))

    def let_in(self, login: Login) -> None:
        """Do nothing: see `ExternalDirectory`."""

    def holds(self, login: Login) -> bool:
        """Return True if the user still may log in here, by the same password or an identity in force. Never waits."""
        self.refresh()
        table, name = self._file.table, login.name or login.user
        if (
            table is None
            or not self._names.is_home(name)
            or (login.until_ms is not None and login.until_ms <= self._clock_ms())
            or (name in table.users and table.user_of(name) != login.user)
        ):
            return False
        if login.master is None:
            return self._passwords.still_lets_in(name, login)
        leaving = self._file.leaves(name)
        is_there = name in table.users or (leaving is not None and leaving.in_place)
        is_usable = is_there and name not in table.disabled
        return is_usable and self._masters is not None and self._masters.passwords.still_lets_in(login.master, login)

    def _at_home(self, login: Login | None) -> Login | None:
        """Return a login, if the user's mail is here. Raises OtherClusterError."""
        if login is not None:
            self._names.check_home(login.name or login.user)
        return login

    def _login(self, claim: _Claim, password: PasswordHash, address: str | None) -> Login | None:
        """Return the log-in of a client whose password is right; None: it is not let in, or there is no such user."""
        if claim.user is None or not claim.passwords.lets_in(claim.owner, address):
            return None
        if claim.master is not None and claim.user in self._file.known().disabled:
            return None
        user = self._names.mail_user(claim.user)
        return Login(user, password, address=address, master=claim.master, name=claim.user)

    def _remembered_login(self, claim: _Claim, secret: bytes, address: str | None) -> Login | None:
        password = claim.passwords.remembered(claim.owner, secret)
        # From elsewhere it is hashed as a wrong one is: the answer takes as long.
        return None if password is None else self._login(claim, password, address)
