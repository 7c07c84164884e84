"""The users as the doors see them: look-up of names, check of passwords, and validity of log-ins.

Belongs to the event loop: only hashing runs in threads, and the reading of many new lines. The file is examined on
every request and read again when it has changed; that costs a `stat`, and now and then a moment. Some programs write
the file in place while requests arrive: a file that is empty or ends within a line is not accepted, and users missing
from the next version are not removed at once.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

from replicator.errors import OtherClusterError, UnavailableError, UsersUnavailableError
from replicator.runtime.addresses import network_of
from replicator.runtime.environment import ThreadRunner, run_in_thread, wall_clock_ms
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.signals import Signal
from replicator.users.accounts import Account, accounts_of
from replicator.users.decoys import Decoys
from replicator.users.names import candidates, folded
from replicator.users.passwd_file import (
    Line,
    PasswdFileError,
    UserTable,
    read_few_lines,
    read_new_table,
    read_whole_file,
)
from replicator.users.schemes import PASSWORD_MAX_BYTES, PasswordHash
from replicator.users.scram import ScramAttempt, ScramKeys
from replicator.users.throttle import NAME_CHARACTERS_MAX, Penalty, Throttle
from replicator.users.trial import Obstacle, Reason, Trial, reasons_against
from replicator.users.turns import Turns
from replicator.users.words.home_cluster import Site
from replicator.users.words.quota_limits import NO_LIMITS, QuotaLimits

log = logging.getLogger(__name__)

HASHES_AT_ONCE = 2
"""Concurrent hash computations: each takes a core, and as much memory as its hash says. One address has one at most."""

REMEMBER_S = 60.0
"""Seconds for which a right password is known without hashing: clients open connections by the dozen."""

PATIENCE_S = 30.0
"""Seconds of waiting for delays and turns; then the client is told to try again, and its place in the queue is free."""

LEAVING_S = 10.0
"""Seconds before a missing user counts as removed: half a file may end at a line end.

Copies rarely stall for longer, and mail for removed users must be refused at some time.
"""

LOGGED_MAX = 100
"""Problems of lines that are logged each time the file is read; the others are counted."""

FileVersion = tuple[int, int, int, int]


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


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A user who has just disappeared from the file. With `in_place`, log-ins stay valid meanwhile."""

    password: PasswordHash | None
    in_place: bool
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
        self._path = path
        self._quota = quota
        self._site = site
        self._is_from_cluster = is_from_cluster
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self._version: FileVersion | None = None
        self._table: UserTable | None = None  # None: no file could be read since the process started
        self._leaving: dict[str, _Leaving] = {}
        self._unreadable: str | None = None
        self._has_reader = False
        self._is_behind = Signal()  # set: the file has changed, and is to be read in a thread
        self._hashing = trio.CapacityLimiter(HASHES_AT_ONCE)
        self.key = key or secrets.token_bytes(32)
        self._decoys = Decoys(UserTable(), self.key)
        self._remembered: dict[str, _Remembered] = {}
        self._throttle = Throttle()
        self._pair_turns: Turns[tuple[str, str]] = Turns()
        self._user_turns: Turns[str] = Turns()
        self._address_turns: Turns[str] = Turns()

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
        return user, self._site.home_of(self._known().clusters.get(user))

    def _find(self, name: str) -> str | None:
        """Return the user of this name, in whichever cluster. Raises UsersUnavailableError."""
        users = self._known().users
        for user in candidates(name):
            if user in users:
                return user
            if self._leaves(user) is not None:  # until then the mail does not go to another candidate either
                raise UsersUnavailableError(f"the list of users has just changed; try again in {LEAVING_S:.0f} seconds")
        return None

    def users(self) -> list[str]:
        """Return all users."""
        self.refresh()
        return list(self._table.users) if self._table else []

    def accounts(self) -> list[Account]:
        """Return all users and what their lines say."""
        self.refresh()
        return list(accounts_of(self._table, self._quota)) if self._table else []

    def summary(self) -> tuple[int, int]:
        """Return the number of users, in whichever cluster, and the digest of their table (`UserTable.digest`).

        Both are 0 while the users are unknown.
        """
        self.refresh()
        return (len(self._table.users), self._table.digest) if self._table else (0, 0)

    def set_quota(self, quota: QuotaLimits) -> None:
        """Replace the limits of users whose lines set none."""
        self._quota = quota

    def quota_limits(self, user: str) -> QuotaLimits:
        """Return the limits on what the user's mail may take."""
        self.refresh()
        return self._quota._replace(**self._table.quotas.get(user, {})) if self._table else self._quota

    def unreadable(self) -> list[str]:
        """Return the reason why the file cannot be read now; empty if it can."""
        self.refresh()
        return [self._unreadable] if self._unreadable else []

    def problems(self) -> list[str]:
        """Return all problems of the file now, including single lines, as `file:line: problem`."""
        unreadable, table = self.unreadable(), self._table
        return [*unreadable, *((*table.problems, *table.remarks) if table else ()), *self._homeless()]

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

        return await self._in_turn(user, address, check, patience_s)

    async def try_login(self, name: str, password: str) -> Trial:
        """Return whether this name and password would let a client in, and why not. Counts as nobody's attempt.

        Raises UsersUnavailableError, and UnavailableError if no hash can be computed within `PATIENCE_S`.
        """
        user = self._find(name)
        if user is None:
            reason = Reason(Obstacle.NO_SUCH_USER, f"there is no user {folded(name)!r}, nor one by a part of this name")
            return self._trial(folded(name), None, [reason])
        stored = self._known().users.get(user)
        secret = password.encode("utf-8", "surrogateescape")
        is_right = None if stored is None else await self._is_right(stored, secret)
        table = self._known()
        if user not in table.users or table.users[user] != stored:
            return await self.try_login(name, password)  # the file has changed meanwhile
        return self._trial(user, user, reasons_against(table, user, self._site, is_right=is_right))

    async def _is_right(self, stored: PasswordHash, secret: bytes) -> bool:
        """Check a password without a turn. Raises UnavailableError."""
        try:
            with trio.fail_after(PATIENCE_S):
                async with self._hashing:
                    return _is_usable(secret) and await self._run_in_thread(lambda: stored.check(secret))
        except trio.TooSlowError:
            raise UnavailableError("too many logins are waiting; try again later") from None

    def _trial(self, counted_as: str, user: str | None, reasons: Sequence[Reason]) -> Trial:
        slowed = [one for one in self.penalties() if one.user == counted_as[:NAME_CHARACTERS_MAX] and one.waits_s]
        addresses = (one.address if one.address is not None else "everywhere" for one in slowed)
        waits_s = max((one.waits_s for one in slowed), default=0.0)
        return Trial(user, tuple(reasons), waits_s, tuple(addresses))

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        return self._throttle.penalties(trio.current_time())

    def forgive(self, of: str | None) -> int:
        """Forget the failed attempts of a user or an address; None: of everybody. Return how many penalties end.

        Raises UsersUnavailableError.
        """
        names = None if of is None else {of, folded(of), network_of(of), self._find(of) or of}
        before = len(self.penalties())
        self._throttle.forgive(names)
        return before - len(self.penalties())

    def has_scram(self, *, for_all: bool = False) -> bool:
        """Return True if somebody can log in by SCRAM; with `for_all`, if all users can."""
        self.refresh()
        return self._decoys.for_all if for_all else self._decoys.for_some

    def scram_keys(self, name: str) -> ScramKeys:
        """Return the keys of the user of this name; for whoever cannot log in by SCRAM, decoys. Raises as `find`."""
        user = self._find(name)
        stored = self._known().users.get(user) if user is not None else None
        decoy = self._decoys.keys_of(name)
        return stored.scram if stored is not None and stored.scram is not None else decoy

    def lacks_scram(self, name: str) -> bool:
        """Return True if this is the name of a user who cannot log in by SCRAM: for the log only."""
        users = self._table.users if self._table else {}
        user = next((user for user in candidates(name) if user in users), None)
        return user is not None and ((stored := users[user]) is None or stored.scram is None)

    def is_disabled(self, name: str) -> bool:
        """Return True if this is the name of a user who is disabled: for the log only."""
        users, disabled = (self._table.users, self._table.disabled) if self._table else ({}, set())
        return next((user for user in candidates(name) if user in users), None) in disabled

    async def verify_scram(self, name: str, attempt: ScramAttempt, *, address: str | None = None) -> Login | None:
        """Return the user's login if the attempt proves the password. Delays, and raises, as `verify`."""
        user = self._find(name) or folded(name)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            stored = self._known().users.get(user)
            is_right = attempt.is_right()
            if stored is None or stored.scram != attempt.keys or not is_right or user in self._known().disabled:
                return None
            return Login(user, stored)

        return self._at_home(await self._in_turn(user, address, check))

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
            if user in self._known().disabled:
                return None
            return Login(user, until_ms=identity.until_ms)

        return self._at_home(await self._in_turn(user, address, check))

    def holds(self, login: Login) -> bool:
        """Return True if the user still may log in here, by the same password or an identity in force. Never waits."""
        self.refresh()
        if (
            self._table is None
            or not self._is_home(login.user)
            or login.user in self._table.disabled
            or (login.until_ms is not None and login.until_ms <= self._clock_ms())
        ):
            return False
        password = self._table.users.get(login.user)
        if login.user not in self._table.users:
            leaving = self._leaves(login.user)
            if leaving is None or not leaving.in_place:
                return False
            password = leaving.password
        return login.password is None or login.password == password

    def _known(self) -> UserTable:
        self.refresh()
        if self._table is None:
            raise UsersUnavailableError("the list of users cannot be read now; try again later")
        return self._table

    def _is_home(self, user: str) -> bool:
        named = self._table.clusters.get(user) if self._table else None
        return self._site is None or self._site.home_of(named) == self._site.own

    def _homeless(self) -> list[str]:
        """Return a problem if lines lack the name of a cluster."""
        if self._site is None or not self._site.has_others or self._table is None:
            return []
        if len(self._table.clusters) == len(self._table.users):
            return []
        lacking = [user for user in self._table.users if user not in self._table.clusters]
        problem = f"{self._path}: {len(lacking)} users name no cluster, and so have mail in none: add `cluster=NAME` to"
        return [f"{problem} their lines, the first of which is that of {lacking[0]}"] if lacking else []

    def _check_home(self, user: str) -> None:
        """Raise OtherClusterError if a user's mail is in another cluster."""
        if not self._is_home(user):
            raise OtherClusterError(f"the mail of {user} is in another cluster; ask there")

    def _at_home(self, login: Login | None) -> Login | None:
        """Return a login, if the user's mail is here. Raises OtherClusterError."""
        if login is not None:
            self._check_home(login.user)
        return login

    async def _in_turn(
        self,
        user: str,
        address: str | None,
        check: Callable[[], Awaitable[Login | None]],
        patience_s: float = PATIENCE_S,
    ) -> Login | None:
        """Check an attempt in its turn, and count it. Raises UnavailableError, UsersUnavailableError."""
        network = network_of(address or "")
        async with AsyncExitStack() as turn:
            await self._take_turn(turn, user, network, patience_s)
            login = await check()
            if login is None:
                self._throttle.failed(user, network, trio.current_time())
            else:
                self._throttle.succeeded(user, network)
        return login

    async def _take_turn(self, turn: AsyncExitStack, user: str, network: str, patience_s: float) -> None:
        """Wait for the delay after failures, and for a place for hashing. Raises UnavailableError.

        During the delay, only attempts of the same pair wait. The turns of the address and of the user are held for no
        longer than a hash takes: each address waits for one place at a time, and so they come round in order.
        """
        try:
            with trio.fail_after(patience_s):
                await turn.enter_async_context(self._pair_turns.of((user, network)))
                while True:
                    await trio.sleep_until(self._throttle.ready_at(user, network))
                    async with AsyncExitStack() as hashing:
                        await hashing.enter_async_context(self._address_turns.of(network))
                        await hashing.enter_async_context(self._user_turns.of(user))
                        # Others may have failed meanwhile: then this attempt sleeps again.
                        if self._throttle.ready_at(user, network) <= trio.current_time():
                            await hashing.enter_async_context(self._hashing)
                            turn.push_async_exit(hashing.pop_all())
                            return
        except trio.TooSlowError:
            raise UnavailableError("too many logins are waiting after failed ones; try again later") from None

    async def _check(self, user: str, secret: bytes) -> Login | None:
        stored, version = self._known().users.get(user), self._version
        usable = _is_usable(secret)
        against = stored or self._decoys.hash_to_check()
        matches = await self._run_in_thread(lambda: against.check(secret if stored and usable else b"-"))
        if stored is None or not usable or not matches or user in self._known().disabled:
            return None
        login = Login(user, stored)
        # If the file changed meanwhile, the next attempt uses the new one, and this result is not remembered.
        if version == self._version:
            self._remembered[user] = _Remembered(login, self._digest(user, secret), trio.current_time() + REMEMBER_S)
        return login

    def _remembered_login(self, user: str, secret: bytes) -> Login | None:
        known = self._remembered.get(user)
        if known is None or known.until_s <= trio.current_time():
            return None
        return known.login if hmac.compare_digest(known.digest, self._digest(user, secret)) else None

    def _digest(self, user: str, secret: bytes) -> bytes:
        return hmac.digest(self.key, user.encode("utf-8", "surrogateescape") + b"\0" + secret, hashlib.sha256)

    async def load(self) -> None:
        """Read the file before `run` begins, in a thread if it has many users."""
        self.refresh(may_hold_up=False)
        if self._is_behind.is_set():
            await self._catch_up()

    async def run(self) -> None:
        """Read in a thread what would hold up the event loop, until cancelled. Meanwhile the last contents hold."""
        self._has_reader = True
        try:
            while True:
                await self._is_behind.wait()
                await self._catch_up()
        finally:
            self._has_reader = False
            self._is_behind.clear()

    async def _catch_up(self) -> None:
        """Read the file in a thread; `refresh` changes nothing until then."""
        before, version = self._table, self._file_version()

        def read() -> tuple[UserTable, Decoys]:
            table = read_new_table(self._path, before)
            return table, Decoys(table, self.key)

        try:
            if version is None:
                return
            table, decoys = await self._run_in_thread(read)
        except (OSError, PasswdFileError) as error:
            self._version = version
            self._note_unreadable(error)
        else:
            is_in_place = self._is_in_place(version)
            self._version = version
            self._note_read(len(table.users))
            self._replace(table, decoys, in_place=is_in_place)
        finally:
            self._is_behind.clear()

    def refresh(self, *, may_hold_up: bool = True) -> None:
        """Read the file again if it has changed, and log changes. While it cannot be read, the last contents hold.

        What would take long is left to `run`, if that runs, or without `may_hold_up` to `load`.
        """
        if self._is_behind.is_set():
            return
        version = self._file_version()
        if version is None or version == self._version:
            return
        try:
            if may_hold_up and not self._has_reader:
                reading = read_whole_file(self._path, self._table)
            elif (found := read_few_lines(self._path, self._table)) is not None:
                reading = found
            else:
                self._is_behind.set()
                return
        except (OSError, PasswdFileError) as error:
            self._version = version
            self._note_unreadable(error)
            return
        in_place = self._is_in_place(version)
        self._version = version
        table, removed, added = reading
        self._note_read(len(table.users))
        if removed is None:
            self._replace(table, Decoys(table, self.key), in_place=in_place)
            return
        self._patch(removed, added, in_place=in_place)
        for problem in self._homeless():
            log.warning("%s", problem)

    def _is_in_place(self, version: FileVersion) -> bool:
        return self._version is None or version[0] == self._version[0]

    def _note_read(self, users: int) -> None:
        self._unreadable = None
        self._remembered.clear()
        log.info("users read %s", LogFields({"users": users, "file": self._path}))

    def _replace(self, table: UserTable, decoys: Decoys, *, in_place: bool) -> None:
        """Use another table from now on."""
        if self._table is not None:
            gone = self._table.users.keys() - table.users.keys()
            self._note_leaving({user: self._table.users[user] for user in gone}, in_place=in_place)
        self._table = table
        self._decoys = decoys
        for problem in (*table.problems[:LOGGED_MAX], *table.remarks, *self._homeless()):
            log.warning("%s", problem)
        if len(table.problems) > LOGGED_MAX:
            log.warning("%s: %d more lines have problems", self._path, len(table.problems) - LOGGED_MAX)

    def _patch(self, removed: Sequence[Line], added: Sequence[Line], *, in_place: bool) -> None:
        """Follow a change of the table in which these lines went and came."""
        gone: dict[str, PasswordHash | None] = {}
        for line in removed:
            assert line.user is not None, "only users' lines change a table"
            gone[line.user] = line.password
            self._decoys.remove(line.user, line.password)
        for line in added:
            assert line.user is not None, "only users' lines change a table"
            gone.pop(line.user, None)
            self._decoys.add(line.user, line.password)
        self._note_leaving(gone, in_place=in_place)

    def _note_leaving(self, gone: Mapping[str, PasswordHash | None], *, in_place: bool) -> None:
        """Keep missing users for a while, but not their sessions if the file was replaced as a whole."""
        self._leaving = {user: leaving for user in self._leaving if (leaving := self._leaves(user)) is not None}
        for user, password in gone.items():
            self._leaving[user] = _Leaving(password, in_place, trio.current_time() + LEAVING_S)

    def _leaves(self, user: str) -> _Leaving | None:
        leaving = self._leaving.get(user)
        return leaving if leaving is not None and trio.current_time() < leaving.until_s else None

    def _file_version(self) -> FileVersion | None:
        try:
            stat = self._path.stat()
        except OSError as error:
            self._note_unreadable(error)
            self._version = None
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def _note_unreadable(self, error: OSError | PasswdFileError) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        if self._table is not None:
            consequence = "so the node keeps the last users that it could read"
        elif isinstance(error, FileNotFoundError):
            consequence = "so the node accepts neither mail nor logins until `replicator user add` creates it"
        else:
            consequence = "so the node accepts neither mail nor logins"
        text = f"{self._path}: cannot be read, {consequence}: {reason}"
        if self._is_from_cluster and self._table is None and isinstance(error, FileNotFoundError):
            text = (
                "the cluster's table of users is not here yet, so the node accepts neither mail nor logins; it comes"
                " from the other nodes; if there is none, begin it by `replicator user import` or `replicator user add`"
            )
        if text != self._unreadable:
            log.warning("%s", text)
        self._unreadable = text


def _is_usable(secret: bytes) -> bool:
    return 1 <= len(secret) <= PASSWORD_MAX_BYTES and 0 not in secret
