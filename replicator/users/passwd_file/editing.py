"""Changes of single lines of a passwd-file that running nodes read. They keep every other byte of the file."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from replicator.runtime.files.line_files import edit_lines
from replicator.users import scram
from replicator.users.names import folded
from replicator.users.passwd_file.line import (
    MailNames,
    PasswdFileError,
    UserExistsError,
    UserUnknownError,
    is_entry,
    mail_user_in,
    name_in,
    new_line,
    owner_of,
    refusal_of,
    renamed,
    user_of,
    with_octets,
)
from replicator.users.passwd_file.table import SECRET, SECRET_BYTES, read_lines, read_users, secret_in
from replicator.users.schemes import DEFAULT_SCHEME
from replicator.users.words.allowed_nets import AllowedNets
from replicator.users.words.mail_user import NOBODY
from replicator.users.words.nologin import with_nologin

NO_USERS = b"# user:{SCHEME}hash\n"
"""Contents of a file without users: nodes reject an empty one."""


def list_users(path: Path) -> list[str]:
    """Return the users' folded names, in the order of the file. Raises PasswdFileError."""
    try:
        return list(read_users(path).users)
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error


def add_user(
    path: Path, user: str, password: str, *, scheme: str = DEFAULT_SCHEME, nets: AllowedNets | None = None
) -> None:
    """Add a line, with the name folded. Blocks. `nets`: the only networks from which the user may log in.

    A missing file is created, readable by its owner only. Raises UserExistsError, and PasswdFileError for an invalid
    name or password and for a file that cannot be written; so do the functions below.
    """
    line = _new_line(path, user, password, scheme, nets)

    def add(lines: list[bytes]) -> list[bytes]:
        if _position(lines, user) is not None:
            raise UserExistsError(f"{path}: user {user!r} already exists; `replicator user passwd` sets a new password")
        _check_free(path, lines, user)
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return _with_secret([*lines, line + b"\n"], scheme)

    _edit(path, add, create=True)


def set_password(path: Path, user: str, password: str, *, scheme: str = DEFAULT_SCHEME) -> None:
    """Replace the user's hash; the rest of the line stays. Blocks. Raises UserUnknownError."""
    _, _, hashed = _new_line(path, user, password, scheme).partition(b":")
    _edit_line(path, user, lambda line: with_octets(line, hashed), lambda lines: _with_secret(lines, scheme))


def set_disabled(path: Path, user: str, *, disabled: bool) -> MailNames:
    """Disable the user, or let the user log in again, and return who else opens the mail. Blocks.

    The rest of the line stays. Raises UserUnknownError.
    """
    found = MailNames(NOBODY)

    def note(lines: list[bytes]) -> list[bytes]:
        nonlocal found
        found = _mail_names(lines, _known_position(path, lines, user))
        return lines

    _edit_line(path, user, lambda line: with_nologin(line, disabled=disabled), note)
    return found


def rename_user(path: Path, user: str, name: str) -> str:
    """Give the user another log-in name, and return the user whose mail that opens, as the old one did. Blocks.

    The rest of the line stays. Raises UserUnknownError, UserExistsError.
    """
    owner = ""

    def rename(lines: list[bytes]) -> list[bytes]:
        nonlocal owner
        position = _known_position(path, lines, user)
        if _position(lines, name) is not None:
            raise UserExistsError(f"{path}: user {name!r} already exists; choose another name")
        old, others = lines[position], [*lines[:position], *lines[position + 1 :]]
        if _position(others, user) is not None:
            raise PasswdFileError(f"{path}: not changed: user {user!r} is in two lines; remove one of them")
        _check_free(path, others, name)
        bare = old.rstrip(b"\r\n")
        try:
            line = renamed(bare, name)
        except ValueError as error:
            raise PasswdFileError(f"{path}: not changed: {error}") from error
        owner = mail_user_in(line) or folded(name)
        lines[position] = line + old[len(bare) :]
        return lines

    _edit(path, rename)
    return owner


def delete_user(path: Path, user: str) -> MailNames:
    """Remove the user's line, and return whose mail it opened, and who else does. Blocks.

    The mail stays. A file without lines gets a comment. Raises UserUnknownError.
    """
    found = MailNames(NOBODY)

    def delete(lines: list[bytes]) -> list[bytes]:
        nonlocal found
        position = _known_position(path, lines, user)
        found = _mail_names(lines, position)
        del lines[position]
        return lines or [NO_USERS]

    _edit(path, delete)
    return found


def valid_lines(path: Path) -> dict[str, str]:
    """Return the lines of a file, without their ends, by users. Raises PasswdFileError if anything is wrong in it."""
    try:
        table, lines = read_users(path), read_lines(path)
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error
    if table.problems:
        raise PasswdFileError(f"{len(table.problems)} lines are wrong, the first of them {table.problems[0]}")
    entries = {number: line.rstrip(b"\r\n") for number, line in enumerate(lines, 1) if is_entry(line)}
    found = {}
    for number, line in entries.items():
        try:
            found[folded(user_of(line))] = line.decode()
        except ValueError as error:
            raise PasswdFileError(f"{path}:{number}: {error}") from error
    return found


def _new_line(path: Path, user: str, password: str, scheme: str, nets: AllowedNets | None = None) -> bytes:
    try:
        return new_line(user, password, scheme, nets).encode()
    except PasswdFileError as error:
        raise PasswdFileError(f"{path}: {error}") from error


def _with_secret(lines: list[bytes], scheme: str) -> list[bytes]:
    """Return the lines with a secret, if they need one now and have none."""
    if scheme.upper() != scram.SCHEME or secret_in(lines) is not None:
        return lines
    return [SECRET + base64.b64encode(secrets.token_bytes(SECRET_BYTES)) + b"\n", *lines]


def _position(lines: list[bytes], user: str) -> int | None:
    """Return the index of the user's first line, which is the valid one."""
    return next((number for number, line in enumerate(lines) if _is_of(line, user)), None)


def _is_of(line: bytes, user: str) -> bool:
    name = line.rstrip(b"\r\n").partition(b":")[0]
    # A name that is not UTF-8 belongs to no user, and differs from every name that can be requested.
    return is_entry(line) and folded(name.decode("utf-8", "surrogateescape")) == folded(user)


def _known_position(path: Path, lines: list[bytes], user: str) -> int:
    position = _position(lines, user)
    if position is None:
        raise UserUnknownError(f"{path}: there is no user {user!r}; `replicator user list` lists all users")
    return position


def _mail_names(lines: list[bytes], position: int) -> MailNames:
    """Return whose mail the line at this position opens, and the names of the others that do."""
    own, owner = lines[position], _owner(lines[position])
    if owner == NOBODY:
        return MailNames(NOBODY)
    opening = {folded(name_in(line.rstrip(b"\r\n"))) for line in filter(is_entry, lines) if _owner(line) == owner}
    return MailNames(owner, tuple(sorted(opening - {folded(name_in(own.rstrip(b"\r\n")))})))


def _owner(line: bytes) -> str:
    """Return the user whose mail a line opens, or `NOBODY`."""
    with suppress(ValueError):
        return owner_of(line.rstrip(b"\r\n"))
    return NOBODY


def _check_free(path: Path, lines: list[bytes], user: str) -> None:
    """Raise UserExistsError if one of the lines opens the mail of the user of this name, or nobody knows whose."""
    for line in filter(is_entry, lines):
        owner = mail_user_in(line)
        if owner is not None and owner in (NOBODY, folded(user)):
            name = name_in(line.rstrip(b"\r\n"))
            raise UserExistsError(f"{path}: {refusal_of(user, name, owner)}")


def _edit_line(
    path: Path,
    user: str,
    change: Callable[[bytes], bytes],
    complete: Callable[[list[bytes]], list[bytes]] = lambda lines: lines,
) -> None:
    """Change the user's line, without its end, and then what else the lines need."""

    def changed(lines: list[bytes]) -> list[bytes]:
        position = _known_position(path, lines, user)
        old = lines[position]
        bare = old.rstrip(b"\r\n")
        lines[position] = change(bare) + old[len(bare) :]
        return complete(lines)

    _edit(path, changed)


def _edit(path: Path, change: Callable[[list[bytes]], list[bytes]], *, create: bool = False) -> None:
    try:
        edit_lines(path, read_lines, change, create=create)
    except OSError as error:
        raise PasswdFileError(f"{path}: not changed: {error.strerror}") from error
