"""Tokens of the HTTP listener: a file with a line `name:role:sha256` for each, and the rights of their holders.

The secret of a token is 256 random bits, so its plain SHA-256 tells nothing about it: unlike a password, it cannot be
guessed, neither through the listener nor from the file. At every request the file is examined, as the passwd-file is,
and read if it has changed, so a deleted token ends at once. While it cannot be read, no token holds.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from protocol.units import MIB
from replicator.runtime.files.line_files import edit_lines

log = logging.getLogger(__name__)

FILE_MAX_BYTES = MIB
"""Octets of the file: ten thousand tokens."""

SECRET_BYTES = 32

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):(?P<role>read|operate|proxy):(?P<digest>[0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

FileVersion = tuple[int, int, int, int]


class Role(StrEnum):
    """The rights of the holder of a token: `read` GET and HEAD, `proxy` what proxies ask, `operate` everything.

    Proxies try passwords, so `read` is not enough for what they ask.
    """

    READ = "read"
    OPERATE = "operate"
    PROXY = "proxy"


class Token(NamedTuple):
    """A line of the file. `digest`: SHA-256 of the secret, in hexadecimal."""

    name: str
    role: Role
    digest: str


class TokenFileError(Exception):
    """The file cannot be read or changed, or the request is invalid. The text names the file and what to do."""


class Tokens:
    """The tokens in one file, as of now. Belongs to the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: FileVersion | None = None
        self._problem = ""
        self._tokens: dict[str, Token] = {}  # by digest

    def holder(self, secret: str) -> Token | None:
        """Return the token with this secret, or None if there is none.

        The time of the look-up depends on the digest. It gives nothing away: nobody can choose a secret by its digest.
        """
        self.refresh()
        return self._tokens.get(_digest(secret))

    def refresh(self) -> None:
        """Read the file again if it has changed, and log problems once."""
        try:
            stat = self._path.stat()
            version = stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
            if version == self._version:
                return
            tokens, problems = _parsed(self._path, _read_lines(self._path))
        except (OSError, TokenFileError) as error:
            self._version, self._tokens = None, {}
            reason = error.strerror if isinstance(error, OSError) else str(error)
            advice = "; `replicator token add` makes the first" if isinstance(error, FileNotFoundError) else ""
            self._warn(f"{self._path}: cannot be read, so no token is accepted: {reason}{advice}")
            return
        by_digest = {token.digest: token for token in reversed(tokens)}  # of two, the first counts
        self._version, self._tokens, self._problem = version, by_digest, ""
        for problem in problems:
            log.warning("%s", problem)
        if not tokens:
            self._warn(f"{self._path}: there is no token yet; `replicator token add` makes one")

    def _warn(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem


def add_token(path: Path, name: str, role: Role) -> str:
    """Add a token and return its secret, which is kept nowhere. Blocks. A missing file is created.

    Raises TokenFileError if the name is invalid or taken, or the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise TokenFileError(f"{name!r} is not a token's name: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    line = f"{name}:{role}:{_digest(secret)}\n".encode()

    def add(lines: list[bytes]) -> list[bytes]:
        if any(_is_of(old, name) for old in lines):
            raise TokenFileError(f"{path}: there is a token {name!r} already; delete it, or choose another name")
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return [*lines, line]

    _edit(path, add, create=True)
    return secret


def delete_token(path: Path, name: str) -> None:
    """Delete a token: running nodes refuse it from now on. Blocks. Raises TokenFileError."""

    def delete(lines: list[bytes]) -> list[bytes]:
        rest = [line for line in lines if not _is_of(line, name)]
        if len(rest) == len(lines):
            raise TokenFileError(f"{path}: there is no token {name!r}; `replicator token list` lists all")
        return rest

    _edit(path, delete)


def list_tokens(path: Path) -> Sequence[Token]:
    """Return the tokens, in the order of the file; none if there is no file. Raises TokenFileError."""
    try:
        return _parsed(path, _read_lines(path))[0]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise TokenFileError(f"{path}: cannot be read: {error.strerror}") from error


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _is_of(line: bytes, name: str) -> bool:
    return line.partition(b":")[0] == name.encode()


def _read_lines(path: Path) -> list[bytes]:
    with path.open("rb") as stream:
        data = stream.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise TokenFileError(f"{path}: larger than {FILE_MAX_BYTES} bytes; this is not a file of tokens")
    return data.splitlines(keepends=True)


def _parsed(path: Path, lines: Sequence[bytes]) -> tuple[tuple[Token, ...], list[str]]:
    """Return the tokens and the problems of single lines. Empty lines and lines that begin with `#` are ignored."""
    tokens: dict[str, Token] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.decode(errors="replace").strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            forms = ", ".join(f"name:{role}:SHA256" for role in Role)
            problems.append(f"{path}:{number}: of none of the forms {forms}; it is ignored")
        elif match["name"] in tokens:
            problems.append(f"{path}:{number}: there is a token {match['name']!r} above; this one is ignored")
        else:
            tokens[match["name"]] = Token(match["name"], Role(match["role"]), match["digest"])
    return tuple(tokens.values()), problems


def _edit(path: Path, change: Callable[[list[bytes]], list[bytes]], *, create: bool = False) -> None:
    try:
        edit_lines(path, _read_lines, change, create=create)
    except OSError as error:
        raise TokenFileError(f"{path}: not changed: {error.strerror}") from error
