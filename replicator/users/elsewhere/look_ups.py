"""Look-ups of users at a source elsewhere: who asks, and what is known without asking. Belongs to the event loop.

Whoever waits for nothing gets answers that are known already; `learn` asks the source first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import trio

from replicator.errors import UserNotLearnedError, UsersUnavailableError
from replicator.runtime.metrics import UserSourceMetrics
from replicator.users.attempts.turns import Turns
from replicator.users.elsewhere.answers import HOLD_S, Answer, Answers
from replicator.users.elsewhere.source import EntryError, Found, SourceError, UserSource, Verdict
from replicator.users.names import candidates
from replicator.users.passwd_file.line import check_user_name

TRY_AGAIN_S = 5.0
"""Seconds after which a source that has failed is tried, if nobody asks about a user."""

WANTED_MAX = 1_000
"""Users about whom the source is to be asked again. Others ask again by themselves at their next command."""

TOLD_MAX = 100
"""Problems of single users that are remembered as logged."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class LookUps:
    """The look-ups at one source. `found_s`, `missing_s`: seconds for which its answers are good.

    Can be created anywhere; all that waits needs trio, and time is trio's.
    """

    def __init__(self, source: UserSource, found_s: float, missing_s: float, metrics: UserSourceMetrics) -> None:
        self._source = source
        self._metrics = metrics
        self._answers = Answers(found_s, missing_s)
        self._asking: Turns[str] = Turns()
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._is_wanted = trio.Event()
        self._told: set[str] = set()
        self.problem: str | None = None  # why the source does not answer now

    async def run(self) -> None:
        """Ask again about users whose sessions are open, until cancelled. Then close the source's connections.

        The source is tried at the beginning, and again if it has failed: nobody else may ask an unhealthy node.
        """
        try:
            await self._rehearse()
            while True:
                with trio.move_on_after(TRY_AGAIN_S):
                    await self._is_wanted.wait()
                if self._wanted:
                    user, _ = self._wanted.popitem(last=False)
                    await self._learn_one(user)
                elif self.problem is not None:
                    await self._rehearse()
                if not self._wanted:
                    self._is_wanted = trio.Event()
        finally:
            self._source.close()

    async def _rehearse(self) -> None:
        with suppress(SourceError):  # which is noted as the problem
            await self._timed("look_up", self._source.rehearse, lambda _: "missing")

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

    def find(self, name: str) -> Found | None:
        """Return the user of an address or login name (see `names`), even one who is disabled; None if unknown.

        Raises UserNotLearnedError if `learn` is to be called first, and UsersUnavailableError if the source fails.
        """
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

    async def found_now(self, name: str) -> Found | None:
        """Ask the source, whatever is known, and return the user. Raises UsersUnavailableError that says why."""
        for candidate in candidates(name):
            answer = await self._ask(candidate)
            if answer.problem is not None:
                raise UsersUnavailableError(answer.problem)
            if answer.found is not None:
                return answer.found
        return None

    def users(self) -> list[Found]:
        """Return the users whom the source has found lately."""
        return list(self._answers.users())

    def known_as(self, name: str) -> Found | None:
        """Return the user of a name by the last answers, however old; None if there are none."""
        answers = (self._answers.last(candidate) for candidate in candidates(name))
        return next((answer.found for answer in answers if answer is not None and answer.found is not None), None)

    def last(self, user: str) -> Answer | None:
        """Return the last answer about a user; have the source asked again if it is too old."""
        if self._answers.fresh(user, trio.current_time()) is None and len(self._wanted) < WANTED_MAX:
            self._wanted[user] = None
            self._is_wanted.set()
        return self._answers.last(user)

    async def checked(self, found: Found | None, password: str, address: str | None) -> Verdict:
        """Return the source's verdict about a password. Raises UsersUnavailableError."""
        try:
            return await self._timed("check", lambda: self._source.check(found, password, address), _result_of_check)
        except SourceError as error:
            text = "the server that knows the users does not answer; try again later"
            raise UsersUnavailableError(text) from error

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
            error = EntryError(f"{self._source.name}: {text}; change the filter so that it is")
            self._tell_of_entry(error)
            raise error
        return own

    async def _timed(self, request: str, ask: Callable[[], Awaitable[T]], result: Callable[[T], str]) -> T:
        """Ask the source, and count it. Raises SourceError."""
        began = trio.current_time()
        try:
            answer = await ask()
        except EntryError as error:
            self._metrics.asked(request, "unusable", trio.current_time() - began)
            self._note_answer()
            self._tell_of_entry(error)
            raise
        except SourceError as error:
            self._metrics.asked(request, "failed", trio.current_time() - began)
            if str(error) != self.problem:
                log.warning("users are not known now: %s", error)
            self.problem = str(error)
            raise
        self._metrics.asked(request, result(answer), trio.current_time() - began)
        self._note_answer()
        return answer

    def _note_answer(self) -> None:
        if self.problem is not None:
            log.info("%s answers again", self._source.name)
        self.problem = None

    def _tell_of_entry(self, error: EntryError) -> None:
        """Log what is wrong with one user, once: mail for the user comes again and again."""
        if str(error) not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told.add(str(error))
            log.warning("one user is not known now: %s", error)


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
