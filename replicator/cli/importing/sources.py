"""Sources of a user's mail, as operators name them: a path, or the URL of an account at an IMAP server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from replicator.cli.sources import MailSource, SourceError, read_account, read_source
from replicator.cli.sources.imap.urls import is_imap_url, name_of_url, parse_imap_url

PASSWORD_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for IMAP servers: a password, and the master, if one logs in for users (`user*master`)."""

    password: str | None = field(default=None, repr=False)
    master: str | None = None


def read_password(file: Path) -> str:
    """Return the first line of a file. Raises OSError, ValueError."""
    with file.open("rb") as stream:
        line = stream.readline(PASSWORD_BYTES_MAX + 1)
    if len(line) > PASSWORD_BYTES_MAX:
        raise ValueError(f"its first line has more than {PASSWORD_BYTES_MAX} octets")
    return line.rstrip(b"\r\n").decode("utf-8")


def source_at(place: str, folder: str, credentials: Credentials) -> MailSource:
    """Return the mail at a path or a URL, for `folder` and others. Raises SourceError."""
    if not is_imap_url(place):
        return read_source(Path(place), folder)
    try:
        url = parse_imap_url(place)
    except ValueError as error:
        raise SourceError(str(error)) from error
    password = url.password if url.password is not None else credentials.password
    if password is None:
        raise SourceError(f"{url}: a password is needed; name a file with it by --password-file")
    login = url.user if credentials.master is None else f"{url.user}*{credentials.master}"
    return read_account(url, login, password, folder)


def place_name(place: str) -> str:
    """Return the name of a place by which its memory is kept: whole, and without a password."""
    return name_of_url(place) if is_imap_url(place) else os.path.realpath(place)


def check_named(user: str, place: str) -> None:
    """Check that these can be a user, and a path or URL. Raises ValueError, whose text quotes nothing of them."""
    try:
        user.encode()
    except UnicodeEncodeError:
        raise ValueError("the user's name is not UTF-8") from None
    if is_imap_url(place):
        parse_imap_url(place)
    elif "\0" in place:
        raise ValueError("a path has no NUL")
