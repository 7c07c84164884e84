"""Names and numbers in a request's path and query: untrusted text, checked here."""

from __future__ import annotations

from http import HTTPStatus

from replicator.http.message import ProblemError, Request

TIME_MAX_MS = 2**48 - 1  # as many bits as a stamp has (design section 2)


def number(request: Request, name: str, maximum: int, minimum: int = 0) -> int | None:
    """Return a number of the query; None if it is not there. Raises ProblemError."""
    text = request.query.get(name)
    if text is None:
        return None
    # isdecimal alone accepts other scripts' digits, and int() takes time quadratic in the length
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))
    if not is_number or not minimum <= int(text) <= maximum:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name} must be a number from {minimum} to {maximum}")
    return int(text)


def flag(request: Request, name: str) -> bool:
    """Return whether a flag of the query is `true`; False if it is not there. Raises ProblemError."""
    given = request.query.get(name, "false")
    if given not in {"true", "false"}:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name} must be true or false")
    return given == "true"


def text(request: Request, name: str) -> str:
    """Return a text of the query, which must be there. Raises ProblemError."""
    if name not in request.query:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {name} is missing")
    return request.query[name]


def no_such_user(name: str) -> ProblemError:
    """Return the problem that nobody has this name."""
    return ProblemError(HTTPStatus.NOT_FOUND, f"there is no user {name!r}; `replicator user list` lists all users")
