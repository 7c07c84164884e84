"""How a command fails: the one place where errors become NO or BAD with a response code (RFC 5530)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    FlagLimitError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidFlagError,
    InvalidNameError,
    MailboxFullError,
    MailError,
    MessageTooLargeError,
    UnavailableError,
    UsersUnavailableError,
)
from replicator.imap.wire.search_keys import CHARSETS, BadCharsetError

_CODES: tuple[tuple[type[MailError], str], ...] = (
    (FolderNotFoundError, "NONEXISTENT"),
    (FolderExistsError, "ALREADYEXISTS"),
    (InvalidNameError, "CANNOT"),
    (InvalidFlagError, "CANNOT"),
    (FlagLimitError, "LIMIT"),
    (MailboxFullError, "LIMIT"),
    (MessageTooLargeError, "TOOBIG"),  # RFC 7889 section 4
    (ContentUnavailableError, "UNAVAILABLE"),
    (DurabilityError, "UNAVAILABLE"),
    (UnavailableError, "UNAVAILABLE"),
    (UsersUnavailableError, "UNAVAILABLE"),
    (DiskFullError, "OVERQUOTA"),
    (BadCharsetError, f"BADCHARSET ({' '.join(CHARSETS)})"),
)


class CommandFailedError(Exception):
    """The command is answered by `condition`, NO or BAD, and the session goes on."""

    def __init__(self, text: str, code: str | None = None, *, condition: str = "NO") -> None:
        super().__init__(text)
        self.code = code
        self.condition = condition


def code_of(error: MailError) -> str | None:
    """The response code of a NO for this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


@contextmanager
def offering_to_create() -> Iterator[None]:
    """A missing destination of APPEND, COPY or MOVE is NO [TRYCREATE] (RFC 3501 sections 6.3.11 and 6.4.7)."""
    try:
        yield
    except FolderNotFoundError as error:
        raise CommandFailedError(str(error), "TRYCREATE") from error
