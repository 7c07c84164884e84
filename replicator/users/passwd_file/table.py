"""The users of a passwd-file as a table: read as a whole, or changed by what has changed in the file."""

from __future__ import annotations

import base64
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from protocol.units import MIB
from replicator.users.names import candidates
from replicator.users.passwd_file.line import DIGEST_BYTES, Line, PasswdFileError, digest_of, is_entry, parse_line
from replicator.users.passwd_file.stretch import Stretch, stretch_between
from replicator.users.schemes import PasswordHash
from replicator.users.words.allowed_nets import AllowedNets
from replicator.users.words.foreign_words import meaning_of
from replicator.users.words.mail_user import NOBODY
from replicator.users.words.quota_limits import OwnLimits

FILE_MAX_BYTES = 64 * MIB
"""Octets of the file: half a million users, each with a line of usual length."""

FEW_LINES = 2000
"""Lines that are parsed in a tenth of a second: as many as may hold up a node's event loop."""

DIGESTS = 1 << 8 * DIGEST_BYTES

SECRET = b"# secret for SCRAM, keep it: "
"""Begins a comment with the secret that gives users who do not exist the same salt at each attempt, and at each node.

It stands in the file because all nodes have copies of that, and because nobody else may read it.
"""
SECRET_BYTES = 32
_SECRET_LINE = re.compile(re.escape(SECRET) + rb"([A-Za-z0-9+/]{43}=)\r?\n?")


@dataclass(slots=True)
class UserTable:
    """Users of the file by folded name; None is an unusable hash, or none. `problems` name file and line.

    `quotas`: of the users whose lines set limits. `clusters`: of the users whose lines name one (`home_cluster`).
    `disabled`: the users who may not log in (`nologin`). `nets`: from where users may, of those whose lines say it.
    `mail_users`: whose mail log-in names open that open another user's (`mail_user`); `log_ins`: these names by users.
    `unusable`: why a user's hash cannot be understood.
    `remarks` tell of words that do nothing here (`foreign_words`).
    `secret`: what SECRET says. `digest`: a number that is equal for files with the same lines of users and the same
    secret, in whichever order. `lines`: what each line says, by its bytes. `data`: the file, if it may be patched.
    """

    users: dict[str, PasswordHash | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    quotas: dict[str, OwnLimits] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    nets: dict[str, AllowedNets] = field(default_factory=dict)
    mail_users: dict[str, str] = field(default_factory=dict)
    log_ins: dict[str, set[str]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    digest: int = 0
    lines: dict[bytes, Line] = field(default_factory=dict, repr=False)
    data: bytes = field(default=b"", repr=False)

    def candidates(self, name: str) -> Iterator[str]:
        """Yield the log-in names that a name or an address may mean, best first (see `names`), and none after a match.

        That is a log-in name, or the name of a user whose mail others open: who has been renamed. Nobody else gets the
        mail for that.
        """
        for user in candidates(name):
            yield user
            if user in self.users or user in self.log_ins:
                return

    def find(self, name: str) -> str | None:
        """Return the log-in name that a name or an address means; None: none."""
        return next((user for user in self.candidates(name) if user in self.users), None)

    def user_of(self, name: str) -> str:
        """Return the user whose mail a log-in name of the table opens, or `NOBODY`."""
        return self.mail_users.get(name, name)

    def names_of(self, user: str) -> list[str]:
        """Return the log-in names that open a user's mail: the user's own first, the others sorted."""
        if user == NOBODY:  # lines that make no sense have nothing in common
            return []
        own = [user] if user in self.users and user not in self.mail_users else []
        return own + sorted(self.log_ins.get(user, ()))

    def quota_of(self, user: str) -> OwnLimits:
        """Return the limits of a user's mail: those of the first of the user's names that has any."""
        return next((self.quotas[name] for name in self.names_of(user) if name in self.quotas), {})

    def take_out(self, text: bytes) -> Line:
        """Remove a line of a user."""
        line = self.lines.pop(text)
        assert line.user is not None, "lines that make no sense are problems"
        for of_users in (self.users, self.quotas, self.clusters, self.nets):
            of_users.pop(line.user, None)
        owner = self.mail_users.pop(line.user, None)
        if owner is not None:
            self.log_ins[owner].discard(line.user)
            if not self.log_ins[owner]:
                del self.log_ins[owner]
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
        if line.nets is not None:
            self.nets[line.user] = line.nets
        if line.mail_user is not None:
            self.mail_users[line.user] = line.mail_user
            self.log_ins.setdefault(line.mail_user, set()).add(line.user)
        self.digest = (self.digest + line.digest) % DIGESTS


class Reading(NamedTuple):
    """A table that was read. `removed`, `added`: lines of users by which it was changed; None: it is another table."""

    table: UserTable
    removed: Sequence[Line] | None = None
    added: Sequence[Line] = ()


def read_users(path: Path) -> UserTable:
    """Parse the file, ignoring blank lines and lines that begin with `#`. Raises OSError, PasswdFileError."""
    return _parsed(path, read_lines(path))


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
    if len(after) < len(stretch.new) and any(n > 1 and is_entry(text) for text, n in Counter(stretch.new).items()):
        return None
    leaving = {text: table.lines[text] for text in old if is_entry(text)}
    coming = {text: parse_line(text) for text in added if is_entry(text)}
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
    read = ((number, lines[text].foreign) for number, text in enumerate(texts) if is_entry(text))
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
        if not is_entry(text):
            continue
        line = known.get(text) or parse_line(text)
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
    log_ins: dict[str, set[str]] = {}
    for user, line in of_users.items():
        if line.mail_user is not None:
            log_ins.setdefault(line.mail_user, set()).add(user)
    digests = [line.digest for line in found.values()]
    digests += (digest_of(text.rstrip(b"\r\n")) for text in lines if text.startswith(SECRET))
    return UserTable(
        {user: line.password for user, line in of_users.items()},
        tuple(problems),
        {user: line.limits for user, line in of_users.items() if line.limits},
        {user: line.cluster for user, line in of_users.items() if line.cluster is not None},
        {user for user, line in of_users.items() if line.disabled},
        {user: line.nets for user, line in of_users.items() if line.nets is not None},
        {user: line.mail_user for user, line in of_users.items() if line.mail_user is not None},
        log_ins,
        unusable,
        tuple(_remark(path, word, numbers) for word, numbers in sorted(foreign.items())),
        secret_in(lines),
        sum(digests) % DIGESTS,
        found,
    )


def _remark(path: Path, word: str, numbers: list[int]) -> str:
    return f"{path}:{numbers[0]}: {word} does nothing here: {meaning_of(word)} (in {len(numbers)} lines)"


def secret_in(lines: list[bytes]) -> bytes | None:
    """Return the secret among the lines."""
    found = next(filter(None, map(_SECRET_LINE.fullmatch, lines)), None)
    return base64.b64decode(found[1]) if found else None


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of the file, with their ends. Raises OSError, PasswdFileError."""
    return _read(path).splitlines(keepends=True)


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise PasswdFileError(f"{path}: larger than {FILE_MAX_BYTES} bytes; this is not a passwd-file")
    return data
