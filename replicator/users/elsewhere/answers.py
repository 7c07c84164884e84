"""Answers of a source that are kept for a while, in bounded number. No I/O: the time is an argument.

An answer is good until a fixed time after the source gave it, however often it is used. It is known for longer, until
`KNOWN_S` after it was given, which helps while the source is down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from replicator.users.elsewhere.source import Found

ANSWERS_MAX = 20_000
"""Names with an answer, about 10 MiB. Those that were used longest ago are dropped first."""

KNOWN_S = 600.0
"""Seconds for which an answer is known, or for as long as it is good: a restart of the source, or its repair."""

AFTER_FAILURE_S = 1.0
"""Seconds for which a source that failed is not asked again about the same name."""


_T = TypeVar("_T")


class Known(NamedTuple):
    """An answer about a name. `found`: None if nobody has it. `is_good`: the source need not be asked again."""

    found: Found | None
    is_good: bool


class _Answer(NamedTuple):
    found: Found | None
    given_s: float
    good_until_s: float


class Answers:
    """The last answers by name. `found_s`, `missing_s`: seconds for which they are good."""

    def __init__(self, found_s: float, missing_s: float) -> None:
        self._found_s = found_s
        self._missing_s = missing_s
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._failed_until_s: OrderedDict[str, float] = OrderedDict()

    def known(self, name: str, now: float) -> Known | None:
        """Return what is known of a name; None: nothing."""
        answer = self._answers.get(name)
        if answer is None or now >= max(answer.good_until_s, answer.given_s + KNOWN_S):
            return None
        self._answers.move_to_end(name)
        return Known(answer.found, now < answer.good_until_s)

    def is_out(self, user: str) -> bool:
        """Return True if the last answer, however old, was that the user is disabled, or that there is none."""
        answer = self._answers.get(user)
        return answer is not None and (answer.found is None or answer.found.disabled)

    def forget(self, name: str) -> None:
        """Drop the answer about a name."""
        self._answers.pop(name, None)

    def note(self, name: str, found: Found | None, now: float) -> None:
        """Keep an answer. That about a user is kept under the user's own name, too."""
        good_s = self._missing_s if found is None else self._found_s
        for each in {name} if found is None else {name, found.user}:
            _keep(self._answers, each, _Answer(found, now, now + good_s))
            self._failed_until_s.pop(each, None)

    def note_failure(self, name: str, now: float) -> None:
        """Note that the source could not be asked."""
        _keep(self._failed_until_s, name, now + AFTER_FAILURE_S)

    def has_failed(self, name: str, now: float) -> bool:
        """Return True if the source has just failed to answer, and is not to be asked again yet."""
        return now < self._failed_until_s.get(name, now)

    def users(self) -> Iterator[Found]:
        """Yield the users with an answer, each once."""
        yield from {answer.found.user: answer.found for answer in self._answers.values() if answer.found}.values()

    def __len__(self) -> int:
        return len(self._answers)


def _keep(values: OrderedDict[str, _T], name: str, value: _T) -> None:
    values[name] = value
    values.move_to_end(name)
    if len(values) > ANSWERS_MAX:
        values.popitem(last=False)
