"""The passwd-file: read it whole, change one line of it.

A line that is wrong costs one user the password, nobody else anything: the user still has mail, and the problem is
reported. Names that differ in case alone are one user. Edits keep every other byte of the file, are atomic (temporary
file, fsync, rename), and exclude each other by a lock on the directory, so that nothing is left over if one dies.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from protocol.units import MIB
from replicator.users.names import folded
from replicator.users.schemes import DEFAULT_SCHEME, PasswordHash, hash_password, parse_hash

FILE_MAX_BYTES = 64 * MIB
"""Half a million users, each with a line of usual length."""

USER_MAX_BYTES = 254
"""An address may not be longer (RFC 5321 section 4.5.3.1.3, less its angle brackets)."""


NO_USERS = b"# user:{SCHEME}hash\n"
"""The file when its last user is gone: nodes do not believe an empty one."""


class PasswdFileError(Exception):
    """The file cannot be read or changed, or what was asked for cannot be. The text names the file and what to do."""


class UserExistsError(PasswdFileError):
    """The user is in the file already."""


class UserUnknownError(PasswdFileError):
    """The user is not in the file."""


@dataclass(frozen=True, slots=True)
class UserTable:
    """What the file says, by folded name. A user whose hash cannot be used has None; `problems` name file and line."""

    users: dict[str, PasswordHash | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_users(path: Path) -> UserTable:
    """Parse the file. Blank lines and lines that begin with `#` say nothing. Raises OSError, PasswdFileError."""
    return _parsed(path, _read_lines(path))


def read_whole_file(path: Path) -> UserTable:
    """Parse the file, unless its end shows that something is still writing it, or was cut short by a full disk.

    Such a file lacks users who exist, and may name one who does not: half a name. Raises OSError, PasswdFileError.
    """
    lines = _read_lines(path)
    if not lines:
        raise PasswdFileError("it is empty, perhaps cut off by a copy or a full disk; it counts once it has a line")
    if not lines[-1].endswith(b"\n"):
        raise PasswdFileError("its last line is cut off, or has no line end; it counts once that is there")
    return _parsed(path, lines)


def _parsed(path: Path, lines: list[bytes]) -> UserTable:
    users: dict[str, PasswordHash | None] = {}
    first_lines: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not _is_entry(line):
            continue
        try:
            name, password = _fields(line)
            user = folded(name)
            _check_first(name, number, first_lines.setdefault(user, number))
            users[user] = None
            users[user] = parse_hash(password)
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return UserTable(users, tuple(problems))


def list_users(path: Path) -> list[str]:
    """The users' folded names, in the order of the file. Raises PasswdFileError."""
    try:
        return list(read_users(path).users)
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error


def add_user(path: Path, user: str, password: str, *, scheme: str = DEFAULT_SCHEME) -> None:
    """Add a line, the name folded; the file is created if need be, readable by its owner only. Blocks.

    Raises UserExistsError, and PasswdFileError for a name or password that cannot be and for a file that cannot be
    written; so do the functions below.
    """
    line = _new_line(path, folded(user), password, scheme)

    def add(lines: list[bytes]) -> list[bytes]:
        if _position(lines, user) is not None:
            raise UserExistsError(f"{path}: user {user!r} exists already; set another password instead")
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return [*lines, line + b"\n"]

    _edit(path, add, create=True)


def set_password(path: Path, user: str, password: str, *, scheme: str = DEFAULT_SCHEME) -> None:
    """Replace the user's hash; the rest of the line stays. Blocks. Raises UserUnknownError."""
    _, _, hashed = _new_line(path, user, password, scheme).partition(b":")

    def replace(lines: list[bytes]) -> list[bytes]:
        position = _known_position(path, lines, user)
        old = lines[position]
        end = old[len(old.rstrip(b"\r\n")) :]
        name, *fields = old.rstrip(b"\r\n").split(b":", 2)
        lines[position] = b":".join([name, hashed, *fields[1:]]) + end
        return lines

    _edit(path, replace)


def delete_user(path: Path, user: str) -> None:
    """Remove the user's line. Mail stays where it is, and a comment where no line is left. Raises UserUnknownError."""

    def delete(lines: list[bytes]) -> list[bytes]:
        del lines[_known_position(path, lines, user)]
        return lines or [NO_USERS]

    _edit(path, delete)


def check_user_name(user: str) -> None:
    """Raise ValueError if this cannot be a user's name."""
    if not 1 <= len(user.encode("utf-8", "surrogateescape")) <= USER_MAX_BYTES:
        raise ValueError(f"a user's name has 1 to {USER_MAX_BYTES} bytes")
    if user[0] == "#" or ":" in user or " " in user or not user.isprintable():
        raise ValueError(f"a user's name has no colon, space or control character and no '#' in front: {user!r}")


def _new_line(path: Path, user: str, password: str, scheme: str) -> bytes:
    try:
        check_user_name(user)
        return f"{user}:{hash_password(password, scheme)}".encode()
    except ValueError as error:
        raise PasswdFileError(f"{path}: not changed: {error}") from error


def _read_lines(path: Path) -> list[bytes]:
    with path.open("rb") as stream:
        data = stream.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise PasswdFileError(f"{path}: larger than {FILE_MAX_BYTES} bytes; this is not a passwd-file")
    return data.splitlines(keepends=True)


def _is_entry(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith(b"#")


def _fields(line: bytes) -> tuple[str, str]:
    try:
        user, _, rest = line.rstrip(b"\r\n").decode().partition(":")
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8; save the file as UTF-8 text") from error
    check_user_name(user)
    return user, rest.partition(":")[0]


def _check_first(name: str, number: int, first: int) -> None:
    if number != first:
        raise ValueError(f"user {name!r} is already in line {first}, which counts; remove one of them")


def _position(lines: list[bytes], user: str) -> int | None:
    """The user's first line: the one that counts."""
    return next((number for number, line in enumerate(lines) if _is_of(line, user)), None)


def _is_of(line: bytes, user: str) -> bool:
    name = line.rstrip(b"\r\n").partition(b":")[0]
    # What is not UTF-8 is nobody's, and differs from every name that can be asked for.
    return _is_entry(line) and folded(name.decode("utf-8", "surrogateescape")) == folded(user)


def _known_position(path: Path, lines: list[bytes], user: str) -> int:
    position = _position(lines, user)
    if position is None:
        raise UserUnknownError(f"{path}: there is no user {user!r}; add it first")
    return position


def _edit(path: Path, change: Callable[[list[bytes]], list[bytes]], *, create: bool = False) -> None:
    path = path.resolve()  # what a symbolic link points to is to be replaced, not the link
    try:
        with _locked(path.parent):
            try:
                lines = _read_lines(path)
            except FileNotFoundError:
                if not create:
                    raise
                lines = []
            _replace(path, b"".join(change(lines)))
    except OSError as error:
        raise PasswdFileError(f"{path}: not changed: {error.strerror}") from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)  # the rename is on disk before anyone hears that it happened
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    """Put a new file in place of the old, with its owner and mode."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - it is open already
            if path.exists():
                old = path.stat()
                os.fchmod(descriptor, old.st_mode & 0o7777)
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
