"""Failures of commands: the one place where errors become NO or BAD with a response code (RFC 5530)."""

from __future__ import annotations

import re
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
from replicator.mail.mailstore import check_folder_name

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

_NAMED_LIMITS = (
    (re.compile(r"a user may have \d+ (folders|subscriptions)"), "imap_folders_per_user"),
    (re.compile(r"a user may have \d+ annotations"), "imap_annotations_per_user"),
    (re.compile(r"a folder may have \d+ annotations"), "imap_annotations_per_folder"),
)
"""Patterns of the names that masters give to limits, and the keys in `[limits]`. Other nodes send the names alone."""


class CommandFailedError(Exception):
    """Failure of a command, which is answered with `condition` (NO or BAD); the session goes on."""

    def __init__(self, text: str, code: str | None = None, *, condition: str = "NO") -> None:
        super().__init__(text)
        self.code = code
        self.condition = condition


def code_of(error: MailError) -> str | None:
    """Return the response code of a NO for this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def limit_named(error: MailboxFullError) -> str | None:
    """Return the key of the limit that the error names; None if it names none, as where UIDVALIDITYs run out."""
    return next((limit for words, limit in _NAMED_LIMITS if words.search(str(error))), None)


@contextmanager
def offering_to_create(name: str) -> Iterator[None]:
    """Answer NO [TRYCREATE] if the destination of APPEND, COPY or MOVE is missing (RFC 3501 sections 6.3.11, 6.4.7).

    Raises InvalidNameError if there can be none of this name.
    """
    try:
        yield
    except FolderNotFoundError as error:
        check_folder_name(name)
        raise CommandFailedError(str(error), "TRYCREATE") from error
