"""Failures of commands: the one place where errors become NO or BAD with a response code (RFC 5530)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replicator.errors import (
    ContentUnavailableError,
    DatabaseFailedError,
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
    QuotaExceededError,
    UnavailableError,
    UnknownEncodingError,
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
    (UnknownEncodingError, "UNKNOWN-CTE"),  # RFC 3516 section 4.3
    (ContentUnavailableError, "UNAVAILABLE"),
    (DurabilityError, "UNAVAILABLE"),
    (UnavailableError, "UNAVAILABLE"),
    (DatabaseFailedError, "UNAVAILABLE"),
    (UsersUnavailableError, "UNAVAILABLE"),
    (DiskFullError, "OVERQUOTA"),
    (QuotaExceededError, "OVERQUOTA"),  # RFC 9208 section 4.3
    (BadCharsetError, f"BADCHARSET ({' '.join(CHARSETS)})"),
)


class CommandFailedError(Exception):
    """Failure of a command, which is answered with `condition` (NO or BAD); the session goes on."""

    def __init__(self, text: str, code: str | None = None, *, condition: str = "NO") -> None:
        super().__init__(text)
        self.code = code
        self.condition = condition


def code_of(error: MailError) -> str | None:
    """Return the response code of a NO for this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


@contextmanager
def offering_to_create() -> Iterator[None]:
    """Answer NO [TRYCREATE] if APPEND, COPY or MOVE has no destination (RFC 3501 sections 6.3.11 and 6.4.7)."""
    try:
        yield
    except FolderNotFoundError as error:
        raise CommandFailedError(str(error), "TRYCREATE") from error
