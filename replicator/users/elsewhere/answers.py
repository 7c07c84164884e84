"""Answers of a source that are kept for a while, in bounded number. No I/O: the time is an argument.

An answer that is no longer fresh is kept as long as there is room: a session that is open goes on by it until the
source has been asked again, and so does one while the source is down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from replicator.users.elsewhere.source import Found

ANSWERS_MAX = 20_000
"""Names with an answer, about 10 MiB. Those that were used longest ago are dropped first."""

HOLD_S = 1.0
"""Seconds for which the answers about all parts of a name stay good once the last of them is there."""

AFTER_PROBLEM_S = 1.0
"""Seconds for which a source that failed is not asked again about the same name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer about a name. `found`: None if nobody has the name, or if `was_given` is False.

    `problem`: why the source could not be asked the last time; None: it answered. Fresh until `until_s`.
    """

    found: Found | None
    was_given: bool
    problem: str | None
    until_s: float


class Answers:
    """The last answers by name. `found_s`, `missing_s`: seconds for which they are fresh."""

    def __init__(self, found_s: float, missing_s: float) -> None:
        self._found_s = found_s
        self._missing_s = missing_s
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    def fresh(self, name: str, now: float) -> Answer | None:
        """Return the answer about a name while it is fresh, also a problem."""
        answer = self.last(name)
        return answer if answer is not None and now < answer.until_s else None

    def last(self, name: str) -> Answer | None:
        """Return the last answer about a name, however old; None: there is none."""
        if name in self._answers:
            self._answers.move_to_end(name)
        return self._answers.get(name)

    def note(self, name: str, found: Found | None, now: float) -> None:
        """Keep an answer. That about a user is kept under the user's own name, too."""
        until_s = now + (self._missing_s if found is None else self._found_s)
        for each in {name} if found is None else {name, found.user}:
            self._keep(each, Answer(found, was_given=True, problem=None, until_s=until_s))

    def note_problem(self, name: str, problem: str, now: float) -> None:
        """Keep why the source could not be asked, beside its last answer."""
        last = self._answers.get(name)
        found, was_given = (last.found, last.was_given) if last else (None, False)
        self._keep(name, Answer(found, was_given, problem, now + AFTER_PROBLEM_S))

    def hold(self, name: str, until_s: float) -> None:
        """Have the answer about a name fresh at least until then, for who uses it together with others."""
        answer = self._answers.get(name)  # None: it has been dropped meanwhile
        if answer is not None:
            self._answers[name] = replace(answer, until_s=max(until_s, answer.until_s))

    def users(self) -> Iterator[Found]:
        """Yield the users with an answer, each once."""
        yield from {answer.found.user: answer.found for answer in self._answers.values() if answer.found}.values()

    def __len__(self) -> int:
        return len(self._answers)

    def _keep(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer
        self._answers.move_to_end(name)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
