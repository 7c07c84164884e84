"""The users of a source elsewhere, as the doors see them: see `replicator.users.directory`, whose place it takes.

Belongs to the event loop. No password is kept: one that was right is known for a while by a digest under a key of this
process. Master users come from a passwd-file here, and act as users of the source.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import floor
from pathlib import Path

import trio

from replicator.runtime.addresses import network_of
from replicator.runtime.environment import ThreadRunner, run_in_thread, wall_clock_ms
from replicator.runtime.metrics import UserSourceMetrics
from replicator.users.accounts import Account
from replicator.users.attempts.queue import HASHES_AT_ONCE, PATIENCE_S, AttemptQueue
from replicator.users.attempts.throttle import Penalty
from replicator.users.elsewhere.look_ups import LookUps
from replicator.users.elsewhere.source import Found, UserSource, Verdict, shown
from replicator.users.logins import Identity, Login, digest_of, is_usable
from replicator.users.masters import MARK, Acting, Masters
from replicator.users.names import candidates, folded
from replicator.users.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, ScramAttempt, ScramKeys
from replicator.users.trial import Obstacle, Reason, Trial, reasons_against_master
from replicator.users.words.quota_limits import NO_LIMITS, QuotaLimits

CHECKS_AT_ONCE = 12
"""Passwords that the source checks at once: it computes the hashes, and this node only waits.

These are fewer than `REQUESTS_AT_ONCE`, because a wrong password may take seconds, and mail waits for look-ups.
"""

FAILURE_S = 1.0
"""Seconds that a failed attempt takes, or a multiple of them: how long the source took does not show through."""

REMEMBERED_MAX = 20_000
"""Right passwords that are remembered, about 5 MiB."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A password that was right, as a digest under a key of this process."""

    digest: bytes
    until_s: float


class ExternalDirectory:
    """The users of one source, and masters of a passwd-file. Can be created anywhere; all that waits needs trio."""

    def __init__(
        self,
        source: UserSource,
        *,
        found_s: float,
        missing_s: float,
        quota: QuotaLimits = NO_LIMITS,
        run_in_thread: ThreadRunner = run_in_thread,
        clock_ms: Callable[[], int] = wall_clock_ms,
        key: bytes | None = None,
        metrics: UserSourceMetrics | None = None,
        masters: Path | None = None,
        separator: str | None = None,
    ) -> None:
        """`found_s`, `missing_s`: seconds for which answers of the source are good. `quota`: of users with none.

        `key`: of another process whose digests are to be alike. `masters`, `separator`: as of `UserDirectory`.
        """
        self.key = key or secrets.token_bytes(32)
        self._source = source
        self._found_s = found_s
        self._quota = quota
        self._clock_ms = clock_ms
        self._look_ups = LookUps(source, found_s, missing_s, metrics or UserSourceMetrics())
        self._attempts = AttemptQueue(CHECKS_AT_ONCE)
        self._hashing = trio.CapacityLimiter(HASHES_AT_ONCE)  # passwords of masters are hashed here
        self._remembered: OrderedDict[tuple[str, str | None], _Remembered] = OrderedDict()
        self._masters = None if masters is None else Masters(masters, separator, self.key, run_in_thread)

    async def load(self) -> None:
        """Say what this source cannot do, without asking it."""
        await trio.lowlevel.checkpoint()
        log.info("users come from %s, so nobody can log in by SCRAM: the node sees no hash", self._source.name)
        if self._masters is not None:
            self._masters.file.refresh()

    async def run(self) -> None:
        """Ask again about users whose sessions are open, until cancelled. Then close the source's connections."""
        await self._look_ups.run()

    def close(self) -> None:
        """Close the source's connections that have nothing to do."""
        self._source.close()

    def unreadable(self) -> list[str]:
        """Return why the source does not answer now; empty if it answers."""
        return [] if self._look_ups.problem is None else [self._look_ups.problem]

    def problems(self) -> list[str]:
        """Return why the source does not answer now, and all problems of the file of masters."""
        return [*self.unreadable(), *(self._masters.file.problems() if self._masters is not None else ())]

    async def ask(self, name: str) -> str | None:
        """Return what `find` does, after asking the source unless its answer is known.

        Raises UsersUnavailableError if the source fails.
        """
        found = await self._look_ups.ask(name)
        return None if found is None else found.user

    def find(self, name: str) -> str | None:
        """Return the user of an address or login name (see `names`), even one who is disabled; None if unknown.

        Raises UserNotLearnedError if it takes `ask`, and UsersUnavailableError if the source fails.
        """
        found = self._look_ups.find(name)
        return None if found is None else found.user

    def home_of(self, name: str) -> tuple[str, str] | None:  # noqa: ARG002 - the interface is the passwd-file's
        """Return None: a site of several clusters needs another source of users, which the configuration checks."""
        return None

    def name_meant(self, name: str) -> str:
        """Return the name: the source has no other names of users' mail."""
        return name

    def names_of(self, user: str) -> list[str]:  # noqa: ARG002 - the interface is the passwd-file's
        """Return nothing: the source maps log-in names to users, and is asked for one name at a time."""
        return []

    def users(self) -> list[str]:
        """Return the users whom the source has found lately. It is not asked for all."""
        return [found.user for found in self._look_ups.users()]

    def accounts(self) -> list[Account]:
        """Return what the source said of users whom it has found lately."""
        return [self._account(found) for found in self._look_ups.users()]

    async def account(self, name: str) -> Account | None:
        """Return what the source says now of the user of this name; None: there is none. Raises as `ask`."""
        found = await self._look_ups.found_now(name)
        return None if found is None else self._account(found)

    def _account(self, found: Found) -> Account:
        limits = self._quota._replace(**found.limits)
        return Account(
            user=found.user,
            mail_user=found.user,
            disabled=found.disabled,
            has_password=True,
            storage_limit_bytes=limits.storage_bytes,
            messages_limit=limits.messages,
            cluster=None,
            origin=self._origin(found),
        )

    def _origin(self, found: Found) -> str:
        return shown(f"{self._source.name}: {found.entry}")

    def summary(self) -> tuple[int, int]:
        """Return two zeros: how many users there are is unknown."""
        return 0, 0

    def set_quota(self, quota: QuotaLimits) -> None:
        """Replace the limits of users for whom the source sets none."""
        self._quota = quota

    async def quota_limits(self, user: str) -> QuotaLimits:
        """Return the limits on what the user's mail may take. The source is asked unless its answer is known.

        Raises UsersUnavailableError if it fails: the mail is to wait, for the user may have more room than others.
        """
        found = await self._look_ups.ask_of(user)
        return self._quota if found is None else self._quota._replace(**found.limits)

    @property
    def has_masters(self) -> bool:
        """True if there are users who may act as others."""
        return self._masters is not None

    def _acting(self, name: str, as_user: str | None = None) -> Acting | None:
        """Return the master that a client names, if it names one."""
        return self._masters.acting(name, as_user) if self._masters is not None else None

    async def verify(
        self, name: str, password: str, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """Return the user's login if the password is right, else None; see `verify_anywhere`."""
        return await self.verify_anywhere(name, password, address=address, as_user=as_user)

    async def verify_anywhere(
        self,
        name: str,
        password: str,
        *,
        address: str | None = None,
        as_user: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Login | None:
        """Return the user's login if the password is right, else None, which takes a multiple of `FAILURE_S`.

        `as_user`: as whom `name`, a master user, would act. Attempts are delayed and take turns as those at a
        passwd-file do. Raises UnavailableError if the turn does not come within `patience_s`, and UsersUnavailableError
        if the source fails.
        """
        secret = password.encode("utf-8", "surrogateescape")
        acting = self._acting(name, as_user)
        if acting is not None and self._masters is not None:
            return await _evenly(self._verify_master(self._masters, acting, secret, address, patience_s))
        return await _evenly(self._verify(name, secret, address, patience_s))

    async def _verify(self, name: str, secret: bytes, address: str | None, patience_s: float) -> Login | None:
        found = await self._look_ups.ask(name)
        # Failures count for the resolved user: one account has many names, by its details.
        user = folded(name) if found is None else found.user
        text = _text_of(secret)
        may = found is not None and not found.disabled and text is not None
        login = Login(user, address=address)
        if may and self._is_remembered(login, secret):
            return login

        async def check() -> Login | None:
            if may and self._is_remembered(login, secret):
                return login  # another connection of the same client has logged in meanwhile
            # The source is asked in any case: while it is down, a name that nobody has gets no other answer.
            verdict = await self._look_ups.checked(found if may else None, text or "-", address)
            if not may or not verdict.is_right:
                return None
            self._remember(login, secret)
            return login

        return await self._attempts.in_turn(user, address, check, patience_s)

    async def _verify_master(
        self, masters: Masters, acting: Acting, secret: bytes, address: str | None, patience_s: float
    ) -> Login | None:
        found = await self._look_ups.ask(acting.user)
        owner, passwords = acting.master, masters.passwords
        may = found is not None and not found.disabled and passwords.lets_in(owner, address)

        async def check() -> Login | None:
            password = passwords.remembered(owner, secret) if may else None
            if password is None:
                async with self._hashing:
                    password = await passwords.check(owner, secret)
            if password is None or not may or found is None:
                return None
            return Login(found.user, password, address=address, master=owner)

        return await self._attempts.in_turn(MARK + owner, address, check, patience_s)

    async def try_login(self, name: str, password: str, address: str | None = None) -> Trial:
        """Return whether this name and password would let a client in, and why not. Counts as nobody's attempt.

        `address`: the client's IP address; None: it does not matter. The source is asked, whatever is known. Raises
        UsersUnavailableError if it fails.
        """
        acting = self._acting(name)
        named = folded(name if acting is None else acting.user)
        found = await self._look_ups.found_now(named)
        reasons: list[Reason] = []
        if found is None:
            text = f"there is no user {named!r}, nor one by a part of this name, at {self._source.name}"
            reasons.append(Reason(Obstacle.NO_SUCH_USER, text))
        elif found.disabled:
            reasons.append(Reason(Obstacle.DISABLED, f"{found.user} is disabled at {self._source.name}"))
        user = None if found is None else found.user
        origin = None if found is None else self._origin(found)
        if acting is not None and self._masters is not None:
            master = acting.master
            reasons += await self._reasons_against_master(self._masters, master, password, address)
            waits_s, slowed = self._attempts.delays(MARK + master)
            only_from = self._masters.passwords.only_from(master)
            return Trial(user, tuple(reasons), waits_s, slowed, only_from, master, origin)
        verdict = None if found is None else await self._tried(found, password, address)
        if verdict is not None and not verdict.is_right:
            reasons.append(Reason(Obstacle.WRONG_PASSWORD, "the password is wrong"))
        waits_s, slowed = self._attempts.delays(user or named)
        answer = None if verdict is None else verdict.text
        return Trial(user, tuple(reasons), waits_s, slowed, origin=origin, answer=answer)

    async def _tried(self, found: Found, password: str, address: str | None) -> Verdict:
        """Return the source's verdict for an operator. Raises UsersUnavailableError that says why."""
        text = _text_of(password.encode("utf-8", "surrogateescape"))
        if text is None:
            return Verdict(is_right=False, text="the server is not asked: no such password can be right")
        return await self._attempts.out_of_turn(lambda: self._look_ups.checked(found, text, address, says_why=True))

    async def _reasons_against_master(
        self, masters: Masters, master: str, password: str, address: str | None
    ) -> list[Reason]:
        """Return why a master may not log in. Raises UsersUnavailableError."""
        stored = masters.file.known().users.get(master)
        is_right = None
        if stored is not None:
            fits = partial(masters.passwords.fits, stored, password.encode("utf-8", "surrogateescape"))
            is_right = await self._attempts.out_of_turn(fits)
        return reasons_against_master(masters.file.known(), master, address, is_right=is_right)

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        return self._attempts.penalties()

    def forgive(self, of: str | None) -> int:
        """Forget the failed attempts of a user or an address; None: of everybody. Return how many penalties end."""
        if of is None:
            return self._attempts.forgive(None)
        found = self._look_ups.known_as(of)
        known = {found.user} if found is not None else set()
        return self._attempts.forgive({of, network_of(of), *candidates(of)} | known)

    def has_scram(self, *, for_all: bool = False) -> bool:  # noqa: ARG002 - the interface is the passwd-file's
        """Return False: the source shows no keys, and masters alone are not worth announcing it."""
        return False

    def scram_keys(self, name: str, as_user: str | None = None) -> ScramKeys:  # noqa: ARG002 - the same
        """Return keys that no password fits. The doors do not ask, since nobody has any."""
        salt, stored, server = (secrets.token_bytes(size) for size in (SALT_BYTES, KEY_BYTES, KEY_BYTES))
        return ScramKeys(ITERATIONS, salt, stored, server)

    def lacks_scram(self, name: str, as_user: str | None = None) -> bool:
        """Return True if this is the name of a user: for the log only."""
        acting = self._acting(name, as_user)
        return self._look_ups.known_as(name if acting is None else acting.user) is not None

    def shuts_out(self, name: str, address: str | None, as_user: str | None = None) -> str | None:
        """Return why the user of this name may not log in, whatever is shown, by the last answers: for the log only."""
        acting = self._acting(name, as_user)
        found = self._look_ups.known_as(name if acting is None else acting.user)
        if found is not None and found.disabled:
            return f"the user is disabled at {self._source.name}"
        return None if acting is None or self._masters is None else self._masters.shuts_out(acting.master, address)

    async def verify_scram(
        self,
        name: str,
        attempt: ScramAttempt,  # noqa: ARG002 - the interface is the passwd-file's
        *,
        address: str | None = None,
        as_user: str | None = None,  # noqa: ARG002
    ) -> Login | None:
        """Return None: nobody has keys. It counts as a failed attempt."""
        return await self.admit(name, None, address=address)

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        """Return the login of the user of this name, if the identity is that user's. Delays and raises as `verify`."""
        return await _evenly(self._admit(name, identity, address))

    async def _admit(self, name: str, identity: Identity | None, address: str | None) -> Login | None:
        found = await self._look_ups.ask(name)
        other = None if identity is None else await self._look_ups.ask(identity.name)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            if identity is None or found is None or other is None or found.user != other.user or found.disabled:
                return None
            return Login(found.user, until_ms=identity.until_ms, address=address)

        return await self._attempts.in_turn(folded(name) if found is None else found.user, address, check)

    def let_in(self, login: Login) -> None:
        """Note a log-in that another process has granted, whose answers are newer."""
        self._look_ups.let_in(login.user)

    def holds(self, login: Login) -> bool:
        """Return True if the user still may log in, by the source's last answer. Never waits.

        An answer that is too old is asked for again meanwhile. A changed password does not end a session, unless it is
        a master's: the node does not hear of others.
        """
        if self._look_ups.is_out(login.user):
            return False
        if login.until_ms is not None and login.until_ms <= self._clock_ms():
            return False
        if login.master is None:
            return True
        if self._masters is None:
            return False
        self._masters.file.refresh()
        return self._masters.passwords.still_lets_in(login.master, login)

    def _is_remembered(self, login: Login, secret: bytes) -> bool:
        """Return True if this password was right lately, from the same address: the source may depend on that."""
        known = self._remembered.get((login.user, login.address))
        if known is None or known.until_s <= trio.current_time():
            return False
        return hmac.compare_digest(known.digest, digest_of(self.key, login.user, secret))

    def _remember(self, login: Login, secret: bytes) -> None:
        owner = login.user, login.address
        until_s = trio.current_time() + self._found_s
        self._remembered[owner] = _Remembered(digest_of(self.key, login.user, secret), until_s)
        self._remembered.move_to_end(owner)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


def _text_of(secret: bytes) -> str | None:
    """Return a password as sources take it; None: it cannot be right. All are UTF-8 (RFC 4513 section 5.1.3)."""
    try:
        return secret.decode() if is_usable(secret) else None
    except UnicodeDecodeError:
        return None


async def _evenly(attempt: Awaitable[Login | None]) -> Login | None:
    """Return the outcome of an attempt; a failure at a multiple of `FAILURE_S` after its beginning."""
    began = trio.current_time()
    login = await attempt
    if login is None:
        took = floor((trio.current_time() - began) / FAILURE_S) + 1
        await trio.sleep_until(began + took * FAILURE_S)
    return login
