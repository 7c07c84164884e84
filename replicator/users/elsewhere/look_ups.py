"""Look-ups of users at a source elsewhere: who asks, and what is known without asking. Belongs to the event loop.

Whoever may wait asks, and the source is asked unless its answer is still good. `find` never waits. While the source is
down, a user who is known still is one; that nobody has a name is believed of good answers only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from replicator.errors import UserNotLearnedError, UsersUnavailableError
from replicator.runtime.metrics import UserSourceMetrics
from replicator.users.attempts.turns import Turns
from replicator.users.elsewhere.answers import Answers, Known
from replicator.users.elsewhere.source import BusyError, EntryError, Found, SourceError, UserSource, Verdict, shown
from replicator.users.names import candidates, check_user_name

TRY_AGAIN_S = 5.0
"""Seconds after which a source that has failed is tried, if nobody asks about a user."""

REQUESTS_AT_ONCE = 16
"""Requests, and so connections, at a time. The others wait."""

ROOM_S = 10.0
"""Seconds for which a request waits for others. Then clients and MTAs are told to try again."""

RENEWED_AT_ONCE = 8
"""Users with sessions about whom it is asked again at a time. Log-ins and mail have the rest of the requests."""

WANTED_MAX = 20_000
"""Users about whom the source is to be asked again. A session looks again by itself."""

LOGGED_MAX = 100
"""Problems of single users that are remembered as logged."""

REHEARSAL = "rehearsal"
"""A trial of all that the source is asked."""

NOT_KNOWN = "one user is not known now"
NOT_DECIDED = "one log-in gets no answer now"
"""Log lines about an EntryError of a look-up, and of a password check."""

NOT_LIMITED = "one user has the default quota"
"""A log line about a quota without sense."""

BUSY = "too many questions wait for the server that knows the users; try again later"
UNAVAILABLE = "the server that knows the users does not answer; try again later"

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
        self._room = trio.CapacityLimiter(REQUESTS_AT_ONCE)
        self._wanted: set[str] = set()
        self._to_renew, self._renewals = trio.open_memory_channel[str](WANTED_MAX)
        self._logged: set[str] = set()
        self._problems: dict[str, str] = {}  # why the source does not answer now, by what it was asked

    @property
    def problem(self) -> str | None:
        """Why the source does not answer now."""
        return next(iter(self._problems.values()), None)

    async def run(self) -> None:
        """Ask again about users whose sessions are open, until cancelled. Then close the source's connections."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._try_again)
                for _ in range(RENEWED_AT_ONCE):
                    nursery.start_soon(self._renew)
        finally:
            self._source.close()

    async def _renew(self) -> None:
        """Ask again about users, one after the other."""
        async for user in self._renewals:
            self._wanted.discard(user)
            with suppress(UsersUnavailableError):  # which is noted as the problem
                await self._learned(user)

    async def _try_again(self) -> None:
        """Try the source now, and again while it fails: nobody else may ask an unhealthy node."""
        await self._rehearse()
        while True:
            await trio.sleep(TRY_AGAIN_S)
            if self.problem is not None:
                await self._rehearse()

    async def _rehearse(self) -> None:
        with suppress(SourceError):  # which is noted as the problem
            await self._timed("look_up", self._source.rehearse, lambda _: "missing", is_rehearsal=True)

    async def ask(self, name: str) -> Found | None:
        """Return the user of an address or login name (see `names`), even one who is disabled; None if unknown.

        The source is asked unless its answers are known. Raises UsersUnavailableError if it fails.
        """
        await trio.lowlevel.checkpoint()
        known: list[Known] = []
        for candidate in candidates(name):
            known.append(self._in_place(known, candidate) or await self._learned(candidate))
            if known[-1].found is not None:
                break
        return _chosen(known)

    async def ask_of(self, user: str) -> Found | None:
        """Return the user of exactly this name; None: there is none now. Raises as `ask`."""
        await trio.lowlevel.checkpoint()
        return _chosen([await self._learned(user)])

    def find(self, name: str) -> Found | None:
        """Return what `ask` would, by answers that are known.

        Raises UserNotLearnedError if the source is to be asked first, and UsersUnavailableError if it has just failed.
        """
        known: list[Known] = []
        for candidate in candidates(name):
            known.append(self._in_place(known, candidate) or self._known(candidate))
            if known[-1].found is not None:
                break
        return _chosen(known)

    async def found_now(self, name: str) -> Found | None:
        """Ask the source, whatever is known, and return the user. Raises UsersUnavailableError that says why."""
        try:
            for candidate in candidates(name):
                found = await self._told(candidate)
                if found is not None:
                    return found
        except SourceError as error:
            raise UsersUnavailableError(str(error)) from error
        return None

    def users(self) -> list[Found]:
        """Return the users whom the source has found lately."""
        return list(self._answers.users())

    def known_as(self, name: str) -> Found | None:
        """Return the user of a name by what is known, good or not; None if nothing is."""
        known = (self._answers.known(candidate, trio.current_time()) for candidate in candidates(name))
        return next((each.found for each in known if each is not None and each.found is not None), None)

    def is_out(self, user: str) -> bool:
        """Return True if the last answer was that a user is disabled, or is none; have it renewed if it is not good.

        However old it is, it counts: who looks seldom would else never hear of it.
        """
        known = self._answers.known(user, trio.current_time())
        if (known is None or not known.is_good) and user not in self._wanted:
            with suppress(trio.WouldBlock):
                self._to_renew.send_nowait(user)
                self._wanted.add(user)
        return self._answers.is_out(user)

    def let_in(self, user: str) -> None:
        """Note that the source has let a user in who asked another process: answers from before are out of date."""
        if self._answers.is_out(user):
            self._answers.forget(user)

    async def checked(
        self, found: Found | None, password: str, address: str | None, *, says_why: bool = False
    ) -> Verdict:
        """Return the source's verdict about a password. Raises UsersUnavailableError, which `says_why` to operators."""
        try:
            return await self._timed("check", lambda: self._source.check(found, password, address), _result_of_check)
        except SourceError as error:
            raise UsersUnavailableError(str(error) if says_why else _why(error)) from error

    def _in_place(self, known: Sequence[Known], name: str) -> Known | None:
        """Return what is known of the next part of a name, if the source has just failed about a part before it.

        None: it has not. Raises UsersUnavailableError if nothing is known.
        """
        if all(each.is_good for each in known):
            return None
        return _at_least(self._answers.known(name, trio.current_time()))

    def _known(self, name: str) -> Known:
        """Return what is known of exactly this name. Raises as `find`."""
        now = trio.current_time()
        known = self._answers.known(name, now)
        if (known is None or not known.is_good) and not self._answers.has_failed(name, now):
            raise UserNotLearnedError(name)
        return _at_least(known)

    async def _learned(self, name: str) -> Known:
        """Return a good answer about exactly this name. Several who ask at a time share one request.

        If the source fails, return what is known. Raises UsersUnavailableError if that is nothing.
        """
        async with self._asking.of(name):
            with suppress(UserNotLearnedError):
                return self._known(name)
            try:
                return Known(await self._told(name), is_good=True)
            except SourceError as error:
                return _at_least(self._answers.known(name, trio.current_time()), error)

    async def _told(self, name: str) -> Found | None:
        """Ask the source about exactly this name, and keep its answer. Raises SourceError."""
        try:
            found = await self._looked_up(name) if _is_user_name(name) else None
        except BusyError:
            raise  # the source has not been asked
        except SourceError:
            self._answers.note_failure(name, trio.current_time())
            raise
        if found is not None and found.fault is not None:
            self._tell_once(shown(f"{NOT_LIMITED}: {self._source.name}: {found.entry}: {found.fault}"))
        self._answers.note(name, found, trio.current_time())
        return found

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
            self._tell_once(f"{NOT_KNOWN}: {error}")
            raise error
        return own

    async def _timed(
        self, request: str, ask: Callable[[], Awaitable[T]], result: Callable[[T], str], *, is_rehearsal: bool = False
    ) -> T:
        """Ask the source once there is room, and count it. Raises SourceError, BusyError."""
        with trio.move_on_after(ROOM_S) as waiting:
            await self._room.acquire()
        if waiting.cancelled_caught:
            self._metrics.asked(request, "busy", ROOM_S)
            raise BusyError(BUSY)
        try:
            return await self._answered(request, ask, result, REHEARSAL if is_rehearsal else request)
        finally:
            self._room.release()

    async def _answered(
        self, request: str, ask: Callable[[], Awaitable[T]], result: Callable[[T], str], asked: str
    ) -> T:
        """Ask the source now, and count it. `asked`: the request, or REHEARSAL. Raises SourceError."""
        began = trio.current_time()
        try:
            answer = await ask()
        except EntryError as error:
            self._metrics.asked(request, "unusable", trio.current_time() - began)
            self._note_answer(asked)
            self._tell_once(f"{NOT_KNOWN if request == 'look_up' else NOT_DECIDED}: {error}")
            raise
        except SourceError as error:
            self._metrics.asked(request, "failed", trio.current_time() - began)
            if str(error) not in self._problems.values():
                log.warning("users are not known now: %s", error)
            self._problems[asked] = str(error)
            raise
        self._metrics.asked(request, result(answer), trio.current_time() - began)
        self._note_answer(asked)
        return answer

    def _note_answer(self, asked: str) -> None:
        """Note that the source is well in what it was asked: it may search and not check passwords, or the reverse."""
        had_problems = bool(self._problems)
        for each in [*self._problems] if asked == REHEARSAL else [asked]:
            self._problems.pop(each, None)
        if had_problems and not self._problems:
            log.info("%s answers again", self._source.name)

    def _tell_once(self, text: str) -> None:
        """Log what is wrong with one user, once: mail for the user comes again and again."""
        if text not in self._logged:
            if len(self._logged) >= LOGGED_MAX:
                self._logged.clear()
            self._logged.add(text)
            log.warning("%s", text)


def _at_least(known: Known | None, error: SourceError | None = None) -> Known:
    """Return what is known while the source does not answer. Raises UsersUnavailableError if that is nothing."""
    if known is None:
        raise UsersUnavailableError(_why(error)) from error
    return known


def _why(error: SourceError | None) -> str:
    """Return what clients and MTAs are told."""
    return BUSY if isinstance(error, BusyError) else UNAVAILABLE


def _chosen(known: Sequence[Known]) -> Found | None:
    """Return the user by what is known of the parts of a name, as far as to the first that somebody has.

    None: nobody has any. Raises UsersUnavailableError if somebody may have one by now.
    """
    found = known[-1].found
    if found is None and not all(each.is_good for each in known):
        raise UsersUnavailableError(UNAVAILABLE)
    return found


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
