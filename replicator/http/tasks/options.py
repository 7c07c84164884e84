"""Options of a task in a request's body: untrusted JSON, checked here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeVar

from replicator.http.message import ProblemError
from replicator.tasks import RATE_MAX, TIME_MAX_MS

T = TypeVar("T")


class Options:
    """Options in a body. Every method raises ProblemError."""

    def __init__(self, body: bytes) -> None:
        try:
            fields = json.loads(body or b"{}", object_hook=_same)
        except ValueError as error:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
        except RecursionError:
            raise ProblemError(HTTPStatus.BAD_REQUEST, "the body is nested too deeply") from None
        if not isinstance(fields, dict):
            raise ProblemError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object with the task's options")
        self._fields: Mapping[str, object] = fields

    def allow(self, *names: str) -> None:
        """Refuse any other names."""
        if unknown := self._fields.keys() - set(names):
            known = ", ".join(names)
            raise ProblemError(
                HTTPStatus.BAD_REQUEST, f"{min(unknown)!r} is not an option of this task; its options are: {known}"
            )

    def has(self, name: str) -> bool:
        """Return True if a value is given, and not null."""
        return self._fields.get(name) is not None

    def flag(self, name: str) -> bool:
        """Return a truth value; false by default."""
        return self._value(name, bool, "true or false") or False

    def needed_flag(self, name: str) -> bool:
        """Return a truth value that must be given."""
        value = self._value(name, bool, "true or false")
        if value is None:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} is missing")
        return value

    def needed_text(self, name: str) -> str:
        """Return a text, as `text` does, that must be given."""
        text = self.text(name)
        if text is None:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} is missing")
        return text

    def text(self, name: str) -> str | None:
        """Return a non-empty text without surrogates: JSON can contain halves of a UTF-16 pair, UTF-8 cannot."""
        text = self._value(name, str, "a string")
        if text == "":
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} must not be empty")
        if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} contains surrogates, which are not characters")
        return text

    def time_ms(self, name: str) -> int | None:
        """Return milliseconds since the epoch."""
        time_ms = self._value(name, int, "a number")
        if time_ms is not None and not 0 <= time_ms < TIME_MAX_MS:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} must be milliseconds since 1970, not {time_ms}")
        return time_ms

    def needed_number(self, name: str, maximum: int) -> int:
        """Return a number from 1 on that must be given."""
        number = self._value(name, int, "a number")
        if number is None:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} is missing")
        if not 0 < number <= maximum:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} must be a number from 1 to {maximum}")
        return number

    def rate(self, of: str = "rows") -> int | None:
        """Return a number per second."""
        rate = self._value("rate", int, "a number")
        if rate is not None and not 0 < rate <= RATE_MAX:
            raise ProblemError(
                HTTPStatus.BAD_REQUEST, f"rate must be a number of {of} per second, from 1 to {RATE_MAX}"
            )
        return rate

    def list(self, name: str) -> list[object]:
        """Return a list, empty by default."""
        return self._value(name, list, "a list") or []

    def _value(self, name: str, kind: type[T], words: str) -> T | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if type(value) is not kind:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"{name} must be {words}")
        return value


def _same(document: dict[str, object]) -> dict[str, object]:
    """Return the document. Each call of a function in Python lets other threads go on, as the C parser does not."""
    return document
