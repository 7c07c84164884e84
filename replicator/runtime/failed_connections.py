"""Why a connection could not be made, in the words of the system, for operators."""

from __future__ import annotations

import os


def reason_of(error: OSError | UnicodeError) -> str:
    """Return the reasons of a failed connection, joined. UnicodeError: a name that cannot be looked up.

    Trio reports that all attempts failed, one for each address of a name, and keeps the reasons in the cause.
    """
    cause = error.__cause__
    attempts = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause or error,)
    return "; ".join(dict.fromkeys(map(_plain, attempts)))


def _plain(error: BaseException) -> str:
    """Return the system's text for an error. A failed name look-up has a negative number and its own text."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
