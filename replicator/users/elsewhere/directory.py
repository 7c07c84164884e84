"""The users of a source elsewhere, as the doors see them: see `replicator.users.directory`, whose place it takes.

Belongs to the event loop. Whoever waits for nothing gets answers that are known already; `learn` asks the source first.
No password is kept: one that was right is known for a while by a digest under a key of this process.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import floor
from typing import TypeVar

import trio

from replicator.errors import UserNotLearnedError, UsersUnavailableError
from replicator.runtime.addresses import network_of
from replicator.runtime.environment import wall_clock_ms
from replicator.runtime.metrics import UserSourceMetrics
from replicator.users.accounts import Account
from replicator.users.attempts.queue import PATIENCE_S, AttemptQueue
from replicator.users.attempts.throttle import NAME_CHARACTERS_MAX, Penalty
from replicator.users.attempts.turns import Turns
from replicator.users.directory import Identity, Login, is_usable
from replicator.users.elsewhere.answers import HOLD_S, Answer, Answers
from replicator.users.elsewhere.source import Found, SourceError, UserSource, Verdict
from replicator.users.names import candidates, folded
from replicator.users.passwd_file.line import check_user_name
from replicator.users.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, ScramAttempt, ScramKeys
from replicator.users.trial import Obstacle, Reason, Trial
from replicator.users.words.quota_limits import NO_LIMITS, QuotaLimits

CHECKS_AT_ONCE = 16
"""Passwords that the source checks at once: it computes the hashes, and this node only waits."""

FAILURE_S = 1.0
"""Seconds that a failed attempt takes, or a multiple of them: how long the source took does not show through."""

TRY_AGAIN_S = 5.0
"""Seconds after which a source that has failed is tried, if nobody asks about a user."""

REMEMBERED_MAX = 20_000
"""Users whose password was right lately, about 5 MiB."""

WANTED_MAX = 1_000
"""Users about whom the source is to be asked again. Others ask again by themselves at their next command."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A password that was right, as a digest under a key of this process."""

    digest: bytes
    until_s: float


class ExternalDirectory:
    """The users of one source. Can be created anywhere; all that waits needs trio, and time is trio's."""

    def __init__(
        self,
        source: UserSource,
        *,
        found_s: float,
        missing_s: float,
        quota: QuotaLimits = NO_LIMITS,
        clock_ms: Callable[[], int] = wall_clock_ms,
        key: bytes | None = None,
        metrics: UserSourceMetrics | None = None,
    ) -> None:
        """`found_s`, `missing_s`: seconds for which answers of the source are good. `quota`: of users with none.

        `key`: of another process whose digests are to be alike.
        """
        self.key = key or secrets.token_bytes(32)
        self._source = source
        self._found_s = found_s
        self._quota = quota
        self._clock_ms = clock_ms
        self._metrics = metrics or UserSourceMetrics()
        self._answers = Answers(found_s, missing_s)
        self._attempts = AttemptQueue(CHECKS_AT_ONCE)
        self._asking: Turns[str] = Turns()
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._is_wanted = trio.Event()
        self._problem: str | None = None

    async def load(self) -> None:
        """Say what this source cannot do. It is asked only when somebody needs an answer."""
        await trio.lowlevel.checkpoint()
        log.info("users come from %s, so nobody can log in by SCRAM: the node sees no hash", self._source.name)

    async def run(self) -> None:
        """Ask again about users whose sessions are open, until cancelled. Then close the source's connections.

        A source that has failed is tried again, too: a node that is unhealthy may be asked by nobody else.
        """
        try:
            while True:
                with trio.move_on_after(TRY_AGAIN_S):
                    await self._is_wanted.wait()
                if self._wanted:
                    user, _ = self._wanted.popitem(last=False)
                    await self._learn_one(user)
                elif self._problem is not None:
                    with suppress(SourceError):
                        await self._timed("look_up", self._source.rehearse, lambda _: "missing")
                if not self._wanted:
                    self._is_wanted = trio.Event()
        finally:
            self.close()

    def close(self) -> None:
        """Close the source's connections that have nothing to do."""
        self._source.close()

    def unreadable(self) -> list[str]:
        """Return why the source does not answer now; empty if it answers."""
        return [] if self._problem is None else [self._problem]

    async def learn(self, name: str) -> None:
        """Ask the source about a name, unless its answer is known, so that `find` can answer now. Raises nothing."""
        await trio.lowlevel.checkpoint()
        asked = []
        for candidate in candidates(name):
            answer = await self._learn_one(candidate)
            asked.append(candidate)
            if answer.problem is not None or answer.found is not None:
                break
        for candidate in asked:  # the first answer may have grown old while the source took its time over the last one
            self._answers.hold(candidate, trio.current_time() + HOLD_S)

    def find(self, name: str) -> str | None:
        """Return the user of an address or login name (see `names`), even one who is disabled; None if unknown.

        Raises UserNotLearnedError if `learn` is to be called first, and UsersUnavailableError if the source fails.
        """
        found = self._find(name)
        return None if found is None else found.user

    def home_of(self, name: str) -> tuple[str, str] | None:  # noqa: ARG002 - the interface is the passwd-file's
        """Return None: a site of several clusters needs another source of users, which the configuration checks."""
        return None

    def users(self) -> list[str]:
        """Return the users whom the source has found lately. It is not asked for all."""
        return [found.user for found in self._answers.users()]

    def accounts(self) -> list[Account]:
        """Return what the source said of users whom it has found lately."""
        accounts = []
        for found in self._answers.users():
            limits = self._quota._replace(**found.limits)
            accounts.append(
                Account(
                    user=found.user,
                    disabled=found.disabled,
                    has_password=True,
                    storage_limit_bytes=limits.storage_bytes,
                    messages_limit=limits.messages,
                    cluster=None,
                )
            )
        return accounts

    def summary(self) -> tuple[int, int]:
        """Return two zeros: how many users there are is unknown."""
        return 0, 0

    def set_quota(self, quota: QuotaLimits) -> None:
        """Replace the limits of users for whom the source sets none."""
        self._quota = quota

    def quota_limits(self, user: str) -> QuotaLimits:
        """Return the limits on what the user's mail may take, by the source's last answer."""
        answer = self._last(user)
        return self._quota if answer is None or answer.found is None else self._quota._replace(**answer.found.limits)

    async def verify(self, name: str, password: str, *, address: str | None = None) -> Login | None:
        """Return the user's login if the password is right, else None; see `verify_anywhere`."""
        return await self.verify_anywhere(name, password, address=address)

    async def verify_anywhere(
        self, name: str, password: str, *, address: str | None = None, patience_s: float = PATIENCE_S
    ) -> Login | None:
        """Return the user's login if the password is right, else None, which takes a multiple of `FAILURE_S`.

        Attempts are delayed and take turns as those at a passwd-file do. Raises UnavailableError if the turn does not
        come within `patience_s`, and UsersUnavailableError if the source fails.
        """
        return await _evenly(self._verify(name, password, address, patience_s))

    async def _verify(self, name: str, password: str, address: str | None, patience_s: float) -> Login | None:
        await self.learn(name)
        found = self._find(name)
        # Failures count for the resolved user: one account has many names, by its details.
        user = folded(name) if found is None else found.user
        secret = password.encode("utf-8", "surrogateescape")
        may = found is not None and not found.disabled and is_usable(secret)
        if may and self._is_remembered(user, secret):
            return Login(user)

        async def check() -> Login | None:
            if may and self._is_remembered(user, secret):
                return Login(user)  # another connection of the same client has logged in meanwhile
            # The source is asked in any case: while it is down, a name that nobody has gets no other answer.
            verdict = await self._checked(found if may else None, password if is_usable(secret) else "-", address)
            if not may or not verdict.is_right:
                return None
            self._remember(user, secret)
            return Login(user)

        return await self._attempts.in_turn(user, address, check, patience_s)

    async def try_login(self, name: str, password: str) -> Trial:
        """Return whether this name and password would let a client in, and why not. Counts as nobody's attempt.

        The source is asked, whatever is known. Raises UsersUnavailableError if it fails.
        """
        for candidate in candidates(name):
            found = (await self._ask(candidate)).found
            if found is not None:
                break
        found = self._find(name)
        if found is None:
            text = f"there is no user {folded(name)!r}, nor one by a part of this name, at {self._source.name}"
            return self._trial(folded(name), None, [Reason(Obstacle.NO_SUCH_USER, text)], "no entry found")
        reasons = []
        if found.disabled:
            reasons.append(Reason(Obstacle.DISABLED, f"{found.user} is disabled at {self._source.name}"))
        verdict = Verdict(is_right=False, text="not asked: no such password can be right")
        if is_usable(password.encode("utf-8", "surrogateescape")):
            entry = found
            verdict = await self._attempts.out_of_turn(lambda: self._checked(entry, password, None))
        if not verdict.is_right:
            reasons.append(Reason(Obstacle.WRONG_PASSWORD, "the password is wrong"))
        return self._trial(found.user, found.user, reasons, f"found {found.entry}; {verdict.text}")

    def _trial(self, counted_as: str, user: str | None, reasons: list[Reason], answer: str) -> Trial:
        slowed = [one for one in self.penalties() if one.user == counted_as[:NAME_CHARACTERS_MAX] and one.waits_s]
        addresses = (one.address if one.address is not None else "everywhere" for one in slowed)
        waits_s = max((one.waits_s for one in slowed), default=0.0)
        return Trial(user, tuple(reasons), waits_s, tuple(addresses), f"{self._source.name}: {answer}")

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        return self._attempts.penalties()

    def forgive(self, of: str | None) -> int:
        """Forget the failed attempts of a user or an address; None: of everybody. Return how many penalties end."""
        return self._attempts.forgive(
            None if of is None else {of, network_of(of), *candidates(of), *self._known_as(of)}
        )

    def has_scram(self, *, for_all: bool = False) -> bool:  # noqa: ARG002 - the interface is the passwd-file's
        """Return False: the source shows no keys."""
        return False

    def scram_keys(self, name: str) -> ScramKeys:  # noqa: ARG002 - the same
        """Return keys that no password fits. The doors do not ask, since nobody has any."""
        salt, stored, server = (secrets.token_bytes(size) for size in (SALT_BYTES, KEY_BYTES, KEY_BYTES))
        return ScramKeys(ITERATIONS, salt, stored, server)

    def lacks_scram(self, name: str) -> bool:
        """Return True if this is the name of a user: for the log only."""
        return bool(self._known_as(name))

    def is_disabled(self, name: str) -> bool:
        """Return True if this is the name of a user who is disabled, by the last answer: for the log only."""
        answers = (self._answers.last(candidate) for candidate in candidates(name))
        found = next((answer.found for answer in answers if answer is not None and answer.found is not None), None)
        return found is not None and found.disabled

    async def verify_scram(self, name: str, attempt: ScramAttempt, *, address: str | None = None) -> Login | None:  # noqa: ARG002
        """Return None: nobody has keys. It counts as a failed attempt."""
        return await self.admit(name, None, address=address)

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        """Return the login of the user of this name, if the identity is that user's. Delays and raises as `verify`."""
        return await _evenly(self._admit(name, identity, address))

    async def _admit(self, name: str, identity: Identity | None, address: str | None) -> Login | None:
        await self.learn(name)
        found = self._find(name)
        other = None
        if identity is not None:
            await self.learn(identity.name)
            other = self._find(identity.name)

        async def check() -> Login | None:
            await trio.lowlevel.checkpoint()
            if identity is None or found is None or other is None or found.user != other.user or found.disabled:
                return None
            return Login(found.user, until_ms=identity.until_ms)

        return await self._attempts.in_turn(folded(name) if found is None else found.user, address, check)

    def holds(self, login: Login) -> bool:
        """Return True if the user still may log in, by the source's last answer. Never waits.

        An answer that is too old is asked for again meanwhile. A changed password does not end a session: the node
        does not hear of it.
        """
        answer = self._last(login.user)
        if answer is not None and answer.was_given and (answer.found is None or answer.found.disabled):
            return False
        return login.until_ms is None or login.until_ms > self._clock_ms()

    def _find(self, name: str) -> Found | None:
        """Return the user of this name, by fresh answers. Raises as `find`."""
        now = trio.current_time()
        for candidate in candidates(name):
            answer = self._answers.fresh(candidate, now)
            if answer is None:
                raise UserNotLearnedError(name)
            if answer.problem is not None:
                raise UsersUnavailableError("the server that knows the users does not answer; try again later")
            if answer.found is not None:
                return answer.found
        return None

    def _known_as(self, name: str) -> set[str]:
        answers = (self._answers.last(candidate) for candidate in candidates(name))
        return {answer.found.user for answer in answers if answer is not None and answer.found is not None}

    def _last(self, user: str) -> Answer | None:
        """Return the last answer about a user; have the source asked again if it is too old."""
        if self._answers.fresh(user, trio.current_time()) is None and len(self._wanted) < WANTED_MAX:
            self._wanted[user] = None
            self._is_wanted.set()
        return self._answers.last(user)

    async def _learn_one(self, name: str) -> Answer:
        """Return a fresh answer about exactly this name. Several who ask at a time share one request."""
        async with self._asking.of(name):
            return self._answers.fresh(name, trio.current_time()) or await self._ask(name)

    async def _ask(self, name: str) -> Answer:
        """Ask the source about exactly this name, and keep its answer."""
        try:
            found = await self._looked_up(name) if _is_user_name(name) else None
        except SourceError as error:
            self._answers.note_problem(name, str(error), trio.current_time())
        else:
            self._answers.note(name, found, trio.current_time())
        answer = self._answers.last(name)
        assert answer is not None
        return answer

    async def _looked_up(self, name: str) -> Found | None:
        """Return the user of exactly this name. Raises SourceError."""
        found = await self._timed("look_up", lambda: self._source.look_up(name), _result_of_look_up)
        if found is None or found.user == name:
            return found
        # Open sessions are known by the user's own name, and mail is stored under it: it has to lead to the same entry.
        own = None
        if _is_user_name(found.user):
            own = await self._timed("look_up", lambda: self._source.look_up(found.user), _result_of_look_up)
        if own is None or own.entry != found.entry or own.user != found.user:
            text = f"{found.entry} says that its user is {found.user!r}, but is not what is found by that name"
            error = SourceError(f"{self._source.name}: {text}; change the filter so that it is")
            self._note_problem(error)
            raise error
        return own

    async def _checked(self, found: Found | None, password: str, address: str | None) -> Verdict:
        """Return the source's verdict. Raises UsersUnavailableError."""
        try:
            return await self._timed("check", lambda: self._source.check(found, password, address), _result_of_check)
        except SourceError as error:
            text = "the server that knows the users does not answer; try again later"
            raise UsersUnavailableError(text) from error

    async def _timed(self, request: str, ask: Callable[[], Awaitable[T]], result: Callable[[T], str]) -> T:
        """Ask the source, and count it. Raises SourceError."""
        began = trio.current_time()
        try:
            answer = await ask()
        except SourceError as error:
            self._metrics.asked(request, "failed", trio.current_time() - began)
            self._note_problem(error)
            raise
        self._metrics.asked(request, result(answer), trio.current_time() - began)
        if self._problem is not None:
            log.info("%s answers again", self._source.name)
        self._problem = None
        return answer

    def _note_problem(self, error: SourceError) -> None:
        if str(error) != self._problem:
            log.warning("users are not known now: %s", error)
        self._problem = str(error)

    def _is_remembered(self, user: str, secret: bytes) -> bool:
        known = self._remembered.get(user)
        if known is None or known.until_s <= trio.current_time():
            return False
        return hmac.compare_digest(known.digest, self._digest(user, secret))

    def _remember(self, user: str, secret: bytes) -> None:
        self._remembered[user] = _Remembered(self._digest(user, secret), trio.current_time() + self._found_s)
        self._remembered.move_to_end(user)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _digest(self, user: str, secret: bytes) -> bytes:
        return hmac.digest(self.key, user.encode("utf-8", "surrogateescape") + b"\0" + secret, hashlib.sha256)


async def _evenly(attempt: Awaitable[Login | None]) -> Login | None:
    """Return the outcome of an attempt; a failure at a multiple of `FAILURE_S` after its beginning."""
    began = trio.current_time()
    login = await attempt
    if login is None:
        took = floor((trio.current_time() - began) / FAILURE_S) + 1
        await trio.sleep_until(began + took * FAILURE_S)
    return login


def _is_user_name(name: str) -> bool:
    try:
        check_user_name(name)
    except ValueError:
        return False
    return True


def _result_of_look_up(found: Found | None) -> str:
    return "missing" if found is None else "found"


def _result_of_check(verdict: Verdict) -> str:
    return "right" if verdict.is_right else "wrong"
