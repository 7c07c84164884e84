"""The passwd-file: reading it, and changing single lines.

An invalid line disables one user's password, or that user's own quota, and affects no one else: the user still has
mail, and the problem is reported. Names that differ only in case are one user. Edits keep every other byte of the file.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar

from protocol.units import MIB
from replicator.runtime.files.line_files import edit_lines
from replicator.users import scram
from replicator.users.file_patch import Stretch, stretch_between
from replicator.users.names import folded
from replicator.users.schemes import DEFAULT_SCHEME, PasswordHash, hash_password, parse_hash
from replicator.users.words.foreign_words import foreign_words, meaning_of
from replicator.users.words.home_cluster import NOWHERE, home_cluster
from replicator.users.words.nologin import is_disabled, with_nologin
from replicator.users.words.quota_limits import OwnLimits, own_limits

T = TypeVar("T")

FILE_MAX_BYTES = 64 * MIB
"""Octets of the file: half a million users, each with a line of usual length."""

USER_MAX_BYTES = 254
"""Octets of a name; no address is longer (RFC 5321 section 4.5.3.1.3, without its angle brackets)."""


FEW_LINES = 2000
"""Lines that are parsed in a tenth of a second: as many as may hold up a node's event loop."""

LINE_MAX_BYTES = 4096
"""Octets of a line that is kept in the cluster's table."""

DIGEST_BYTES = 4
"""Octets of the digest of a file: few enough for people to compare, and nobody learns a hash from them."""

DIGESTS = 1 << 8 * DIGEST_BYTES

NO_HASH = "*"
"""Placeholder for a hash: the user logs in without a password, by a token or a certificate, or not at all."""

NO_USERS = b"# user:{SCHEME}hash\n"
"""Contents of a file without users: nodes reject an empty one."""

SECRET = b"# secret for SCRAM, keep it: "
"""Begins a comment with the secret that gives users who do not exist the same salt at each attempt, and at each node.

It stands in the file because all nodes have copies of that, and because nobody else may read it.
"""
SECRET_BYTES = 32
_SECRET_LINE = re.compile(re.escape(SECRET) + rb"([A-Za-z0-9+/]{43}=)\r?\n?")


class PasswdFileError(Exception):
    """The file cannot be read or changed, or the request is invalid. The text names the file and what to do."""


class UserExistsError(PasswdFileError):
    """The user is in the file already."""


class UserUnknownError(PasswdFileError):
    """The user is not in the file."""


class Line(NamedTuple):
    """A line. `user` is folded, `name` as written; None: the line makes no sense. `digest`: of its bytes."""

    user: str | None
    name: str
    password: PasswordHash | None
    limits: OwnLimits
    cluster: str | None
    disabled: bool
    problems: tuple[str, ...]
    digest: int
    hash_problem: str | None = None
    foreign: frozenset[str] = frozenset()


@dataclass(slots=True)
class UserTable:
    """Users of the file by folded name; None is an unusable hash, or none. `problems` name file and line.

    `quotas`: of the users whose lines set limits. `clusters`: of the users whose lines name one (`home_cluster`).
    `disabled`: the users who may not log in (`nologin`). `unusable`: why a user's hash cannot be understood.
    `remarks` tell of words that do nothing here (`foreign_words`).
    `secret`: what SECRET says. `digest`: a number that is equal for files with the same lines of users and the same
    secret, in whichever order. `lines`: what each line says, by its bytes. `data`: the file, if it may be patched.
    """

    users: dict[str, PasswordHash | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    quotas: dict[str, OwnLimits] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    unusable: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    digest: int = 0
    lines: dict[bytes, Line] = field(default_factory=dict, repr=False)
    data: bytes = field(default=b"", repr=False)

    def take_out(self, text: bytes) -> Line:
        """Remove a line of a user."""
        line = self.lines.pop(text)
        assert line.user is not None, "lines that make no sense are problems"
        for of_users in (self.users, self.quotas, self.clusters):
            of_users.pop(line.user, None)
        self.disabled.discard(line.user)
        self.digest = (self.digest - line.digest) % DIGESTS
        return line

    def put_in(self, text: bytes, line: Line) -> None:
        """Add a line of a user."""
        assert line.user is not None, "lines that make no sense are problems"
        self.lines[text] = line
        self.users[line.user] = line.password
        if line.limits:
            self.quotas[line.user] = line.limits
        if line.cluster is not None:
            self.clusters[line.user] = line.cluster
        if line.disabled:
            self.disabled.add(line.user)
        self.digest = (self.digest + line.digest) % DIGESTS


class Reading(NamedTuple):
    """A table that was read. `removed`, `added`: lines of users by which it was changed; None: it is another table."""

    table: UserTable
    removed: Sequence[Line] | None = None
    added: Sequence[Line] = ()


def read_users(path: Path) -> UserTable:
    """Parse the file, ignoring blank lines and lines that begin with `#`. Raises OSError, PasswdFileError."""
    return _parsed(path, _read_lines(path))


def read_whole_file(path: Path, before: UserTable | None = None) -> Reading:
    """Parse the file, unless its end shows that it is still being written, or was truncated by a full disk.

    `before`: its users when it was read last. Only new lines are parsed, and if no line has a problem, `before` itself
    is changed, which takes no longer with many users than with few, but for reading the file.

    Such a file lacks existing users, and may contain a truncated name of a user who does not exist. Raises OSError,
    PasswdFileError.
    """
    data = _read_whole(path)
    patched = None if before is None else _patched(before, data)
    return _new_table(path, data, before) if patched is None else patched


def read_few_lines(path: Path, before: UserTable | None) -> Reading | None:
    """Read the file as `read_whole_file` does, if that takes a moment only; else None, and `before` stays as it is.

    It does if the file, or what has changed in it, has at most `FEW_LINES`. Raises as `read_whole_file`.
    """
    data = _read_whole(path)
    patched = None if before is None else _patched(before, data)
    if patched is not None:
        return patched
    return _new_table(path, data, before) if data.count(b"\n") <= FEW_LINES else None


def read_new_table(path: Path, before: UserTable | None) -> UserTable:
    """Read the file as `read_whole_file` does, and never change `before`. Raises as that."""
    return _new_table(path, _read_whole(path), before).table


def _read_whole(path: Path) -> bytes:
    data = _read(path)
    if not data:
        raise PasswdFileError("it is empty, perhaps because of a copy or a full disk; it is used once it has a line")
    if not data.endswith(b"\n"):
        raise PasswdFileError("its last line is truncated or has no line end; it is used once the line end is there")
    return data


def _new_table(path: Path, data: bytes, before: UserTable | None) -> Reading:
    table = _parsed(path, data.splitlines(keepends=True), before)
    table.data = data
    return Reading(table)


def _patched(table: UserTable, data: bytes) -> Reading | None:
    """Change the table as the file has changed; None, and no change, if what is told of its lines may change as well.

    Problems name lines by their numbers, and a user may have one line only. None also if more than `FEW_LINES` differ.
    """
    if table.problems or not table.data:
        return None
    stretch = stretch_between(table.data, data)
    before, after = set(stretch.old), set(stretch.new)
    old = [text for text in stretch.old if text not in after]
    added = [text for text in stretch.new if text not in before]
    if max(len(old), len(added)) > FEW_LINES or any(text.startswith(SECRET) for text in (*stretch.old, *stretch.new)):
        return None
    if len(after) < len(stretch.new) and any(n > 1 and _is_entry(text) for text, n in Counter(stretch.new).items()):
        return None
    leaving = {text: table.lines[text] for text in old if _is_entry(text)}
    coming = {text: _line(text) for text in added if _is_entry(text)}
    if not _has_remarks_of(table, stretch, coming):
        return None
    left = {line.user for line in leaving.values()}
    users = {line.user for line in coming.values()}
    is_plain = all(line.user is not None and not line.problems for line in coming.values())
    if not is_plain or len(users) < len(coming) or any(user in table.users and user not in left for user in users):
        return None
    for text in leaving:
        table.take_out(text)
    for text, line in coming.items():
        table.put_in(text, line)
    table.data = data
    return Reading(table, list(leaving.values()), list(coming.values()))


def _has_remarks_of(table: UserTable, stretch: Stretch, coming: Mapping[bytes, Line]) -> bool:
    """Return True if a table's remarks, which name lines by their numbers, stand after this change, too."""
    if not table.remarks:
        return not any(line.foreign for line in coming.values())
    if len(stretch.old) != len(stretch.new):
        return False
    return _foreign(stretch.old, table.lines) == _foreign(stretch.new, ChainMap({**coming}, table.lines))


def _foreign(texts: Sequence[bytes], lines: Mapping[bytes, Line]) -> list[tuple[int, frozenset[str]]]:
    """Return which of the lines have words that do nothing here."""
    read = ((number, lines[text].foreign) for number, text in enumerate(texts) if _is_entry(text))
    return [(number, foreign) for number, foreign in read if foreign]


def _parsed(path: Path, lines: list[bytes], before: UserTable | None = None) -> UserTable:
    """Parse the lines; those that `before` has are not parsed again, which takes a hundredth of the time."""
    known = before.lines if before is not None else {}
    first_lines: dict[str, int] = {}
    problems: list[str] = []
    found: dict[bytes, Line] = {}
    of_users: dict[str, Line] = {}
    unusable: dict[str, str] = {}
    foreign: dict[str, list[int]] = {}  # numbers of lines, by words
    for number, text in enumerate(lines, 1):
        if not _is_entry(text):
            continue
        line = known.get(text) or _line(text)
        found[text] = line
        first = number if line.user is None else first_lines.setdefault(line.user, number)
        if first != number:
            problem = f"user {line.name!r} is already in line {first}, which takes precedence; remove one of them"
            problems.append(f"{path}:{number}: {problem}")
            continue
        problems += (f"{path}:{number}: {problem}" for problem in line.problems)
        if line.user is not None:
            of_users[line.user] = line
            for word in line.foreign:
                foreign.setdefault(word, []).append(number)
            if line.hash_problem is not None:
                unusable[line.user] = f"{path}:{number}: {line.hash_problem}"
    digests = [line.digest for line in found.values()]
    digests += (_digest(text.rstrip(b"\r\n")) for text in lines if text.startswith(SECRET))
    return UserTable(
        {user: line.password for user, line in of_users.items()},
        tuple(problems),
        {user: line.limits for user, line in of_users.items() if line.limits},
        {user: line.cluster for user, line in of_users.items() if line.cluster is not None},
        {user for user, line in of_users.items() if line.disabled},
        unusable,
        tuple(_remark(path, word, numbers) for word, numbers in sorted(foreign.items())),
        _secret(lines),
        sum(digests) % DIGESTS,
        found,
    )


def _remark(path: Path, word: str, numbers: list[int]) -> str:
    return f"{path}:{numbers[0]}: {word} does nothing here: {meaning_of(word)} (in {len(numbers)} lines)"


def _line(text: bytes) -> Line:
    problems: list[str] = []

    def understood(parse: Callable[[str], T], given: str) -> T | None:
        try:
            return parse(given)
        except ValueError as error:
            problems.append(str(error))
            return None

    bare = text.rstrip(b"\r\n")
    try:
        name, password, more = _fields(text)
    except ValueError as error:
        return Line(None, "", None, {}, None, disabled=True, problems=(str(error),), digest=_digest(bare))
    hashed = None if password == NO_HASH else understood(parse_hash, password)
    hash_problem = problems[0] if problems else None
    limits = understood(own_limits, more) or {}
    try:
        cluster = home_cluster(more)
    except ValueError as error:
        problems.append(str(error))
        cluster = NOWHERE
    disabled = understood(is_disabled, more) is not False  # what makes no sense lets nobody in
    return Line(
        folded(name),
        name,
        hashed,
        limits,
        cluster,
        disabled=disabled,
        problems=tuple(problems),
        digest=_digest(bare),
        hash_problem=hash_problem,
        foreign=foreign_words(more),
    )


def _digest(line: bytes) -> int:
    return int.from_bytes(blake2b(line, digest_size=DIGEST_BYTES).digest())


def _secret(lines: list[bytes]) -> bytes | None:
    found = next(filter(None, map(_SECRET_LINE.fullmatch, lines)), None)
    return base64.b64decode(found[1]) if found else None


def list_users(path: Path) -> list[str]:
    """Return the users' folded names, in the order of the file. Raises PasswdFileError."""
    try:
        return list(read_users(path).users)
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error


def add_user(path: Path, user: str, password: str, *, scheme: str = DEFAULT_SCHEME) -> None:
    """Add a line, with the name folded. Blocks.

    A missing file is created, readable by its owner only. Raises UserExistsError, and PasswdFileError for an invalid
    name or password and for a file that cannot be written; so do the functions below.
    """
    line = _new_line(path, user, password, scheme)

    def add(lines: list[bytes]) -> list[bytes]:
        if _position(lines, user) is not None:
            raise UserExistsError(f"{path}: user {user!r} already exists; `replicator user passwd` sets a new password")
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return _with_secret([*lines, line + b"\n"], scheme)

    _edit(path, add, create=True)


def set_password(path: Path, user: str, password: str, *, scheme: str = DEFAULT_SCHEME) -> None:
    """Replace the user's hash; the rest of the line stays. Blocks. Raises UserUnknownError."""
    _, _, hashed = _new_line(path, user, password, scheme).partition(b":")
    _edit_line(path, user, lambda line: _with_hash(line, hashed), lambda lines: _with_secret(lines, scheme))


def set_disabled(path: Path, user: str, *, disabled: bool) -> None:
    """Disable the user, or let the user log in again; the rest of the line stays. Blocks. Raises UserUnknownError."""
    _edit_line(path, user, lambda line: with_nologin(line, disabled=disabled))


def delete_user(path: Path, user: str) -> None:
    """Remove the user's line. The mail stays. A file without lines gets a comment. Raises UserUnknownError."""

    def delete(lines: list[bytes]) -> list[bytes]:
        del lines[_known_position(path, lines, user)]
        return lines or [NO_USERS]

    _edit(path, delete)


def check_user_name(user: str) -> None:
    """Raise ValueError if this is not a valid user name."""
    if not 1 <= len(user.encode("utf-8", "surrogateescape")) <= USER_MAX_BYTES:
        raise ValueError(f"a user name must have 1 to {USER_MAX_BYTES} bytes")
    if user[0] == "#" or ":" in user or " " in user or not user.isprintable():
        raise ValueError(f"a user name must have no colon, space or control character and not begin with '#': {user!r}")


def user_of(line: bytes) -> str:
    """Return the user of a line without its end. Raises ValueError if the line is none, or anything in it is wrong."""
    if len(line) > LINE_MAX_BYTES or not _is_entry(line) or b"\n" in line or b"\r" in line:
        raise ValueError(f"a user's line is `user:{{SCHEME}}hash`, with at most {LINE_MAX_BYTES} bytes and no line end")
    user, password, more = _fields(line)
    if password != NO_HASH:
        parse_hash(password)
    own_limits(more)
    home_cluster(more)
    is_disabled(more)
    return user


def name_in(line: bytes) -> str:
    """Return the name in a line without its end, whatever follows it. Raises ValueError if there is none."""
    if not _is_entry(line) or b"\n" in line or b"\r" in line:
        raise ValueError("not a user's line")
    name = line.partition(b":")[0].decode()
    check_user_name(name)
    return name


def with_hash(line: bytes, hashed: str) -> bytes:
    """Return a line, without its end, with this hash in place of its own. Raises ValueError as `user_of`."""
    if ":" in hashed or not hashed.isprintable():
        raise ValueError("a hash must have no colon and no control character")
    changed = _with_hash(line, hashed.encode())
    user_of(changed)
    return changed


def _with_hash(line: bytes, hashed: bytes) -> bytes:
    name, *fields = line.split(b":", 2)
    return b":".join([name, hashed, *fields[1:]])


def needs_secret(line: bytes) -> bool:
    """Return True if the line's user logs in by SCRAM, so that the file needs a secret."""
    return line.partition(b":")[2].upper().startswith(b"{%s}" % scram.SCHEME.encode())


def new_line(user: str, password: str, scheme: str) -> str:
    """Return a line without its end, with the name folded. Blocks. Raises PasswdFileError."""
    try:
        check_user_name(user)
        return f"{folded(user)}:{hash_password(password, scheme)}"
    except ValueError as error:
        raise PasswdFileError(f"not changed: {error}") from error


def valid_lines(path: Path) -> dict[str, str]:
    """Return the lines of a file, without their ends, by users. Raises PasswdFileError if anything is wrong in it."""
    try:
        table, lines = read_users(path), _read_lines(path)
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error
    if table.problems:
        raise PasswdFileError(f"{len(table.problems)} lines are wrong, the first of them {table.problems[0]}")
    entries = {number: line.rstrip(b"\r\n") for number, line in enumerate(lines, 1) if _is_entry(line)}
    found = {}
    for number, line in entries.items():
        try:
            found[folded(user_of(line))] = line.decode()
        except ValueError as error:
            raise PasswdFileError(f"{path}:{number}: {error}") from error
    return found


def _new_line(path: Path, user: str, password: str, scheme: str) -> bytes:
    try:
        return new_line(user, password, scheme).encode()
    except PasswdFileError as error:
        raise PasswdFileError(f"{path}: {error}") from error


def _with_secret(lines: list[bytes], scheme: str) -> list[bytes]:
    """Return the lines with a secret, if they need one now and have none."""
    if scheme.upper() != scram.SCHEME or _secret(lines) is not None:
        return lines
    return [SECRET + base64.b64encode(secrets.token_bytes(SECRET_BYTES)) + b"\n", *lines]


def _read_lines(path: Path) -> list[bytes]:
    return _read(path).splitlines(keepends=True)


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise PasswdFileError(f"{path}: larger than {FILE_MAX_BYTES} bytes; this is not a passwd-file")
    return data


def _is_entry(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith(b"#")


def _fields(line: bytes) -> tuple[str, str, str]:
    """Return the name, the hash, and all fields after it."""
    try:
        user, _, rest = line.rstrip(b"\r\n").decode().partition(":")
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8; save the file as UTF-8 text") from error
    check_user_name(user)
    password, _, more = rest.partition(":")
    return user, password, more


def _position(lines: list[bytes], user: str) -> int | None:
    """Return the index of the user's first line, which is the valid one."""
    return next((number for number, line in enumerate(lines) if _is_of(line, user)), None)


def _is_of(line: bytes, user: str) -> bool:
    name = line.rstrip(b"\r\n").partition(b":")[0]
    # A name that is not UTF-8 belongs to no user, and differs from every name that can be requested.
    return _is_entry(line) and folded(name.decode("utf-8", "surrogateescape")) == folded(user)


def _known_position(path: Path, lines: list[bytes], user: str) -> int:
    position = _position(lines, user)
    if position is None:
        raise UserUnknownError(f"{path}: there is no user {user!r}; `replicator user list` lists all users")
    return position


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
        edit_lines(path, _read_lines, change, create=create)
    except OSError as error:
        raise PasswdFileError(f"{path}: not changed: {error.strerror}") from error
