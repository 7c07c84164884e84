"""The cluster's user table: users who are the same at every node (design section 8, `users.source = "cluster"`).

Each user's line of a passwd-file is an annotation of an account that no user has. So the table is a chain, as a user's
folder tree is: a change is numbered by a master and on enough disks before it is answered, nodes that are parted go on,
and once they meet, each user is as the last change says. Each node writes what it shows of the table into a passwd-file
of its own, from which all its processes read users.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import trio
from sortedcontainers import SortedDict

from protocol.units import MIB
from replicator.errors import MailError, UsersUnavailableError
from replicator.mail.annotations import USER_TABLE
from replicator.mail.mailstore import MailStore
from replicator.runtime.environment import ThreadRunner, run_in_thread
from replicator.runtime.files.line_files import write_lines
from replicator.runtime.signals import Signal
from replicator.store.db.transaction import Commit
from replicator.users import MailNames, UserExistsError, UserUnknownError, folded
from replicator.users.passwd_file.line import (
    mail_user_in,
    name_in,
    needs_secret,
    owner_of,
    refusal_of,
    renamed,
    replaced,
    user_of,
    with_hash,
)
from replicator.users.passwd_file.table import FILE_MAX_BYTES, SECRET, SECRET_BYTES
from replicator.users.words.mail_user import NOBODY
from replicator.users.words.nologin import with_nologin
from resync.entry import FolderAnnotate

log = logging.getLogger(__name__)

LINE = "/shared/vendor/mail-replicator/user/"
"""Begins the name of the annotation that has a user's line; the SHA-256 of the user's name follows."""
SCRAM_SECRET = "/shared/vendor/mail-replicator/scram-secret"  # noqa: S105 - a name
HEAD = b"# The users of the cluster, written by the node: changes here are lost. Use `replicator user`.\n"
RETRY_S = 5.0
TABLE_MAX_BYTES = FILE_MAX_BYTES - MIB
"""Octets of all lines: nodes must be able to read the file."""

Values: TypeAlias = Mapping[str, bytes]
"""Annotations of the account, by their names: users' lines, without line ends, and the secret."""
Changes: TypeAlias = Mapping[str, bytes | None]
"""The new lines of users; None: the user is removed."""


class ClusterUsers:
    """The table as this node shows it, its changes, and the passwd-file at `path`. Belongs to the event loop.

    It reads the table once, and then follows the commits, so that a change costs no more with many users than with few:
    `note` must hear of all commits. Changes raise MailError as those of folders do.
    """

    def __init__(self, mail: MailStore, path: Path, run_in_thread: ThreadRunner = run_in_thread) -> None:
        self._mail = mail
        self._path = path
        self._file = _File(path)
        self._run_in_thread = run_in_thread
        self._values: dict[str, bytes] | None = None  # None: to be read
        self._bytes = 0  # of all values
        self._log_ins = _LogIns()
        self._unwritten: dict[str, bytes | None] = {}  # what the file lacks; everything, if `_is_new`
        self._is_new = True
        self._noted: list[tuple[str, bytes | None]] = []  # while the values are being read
        self._is_stale = False  # what is being read
        self._reading = trio.Lock()
        self._changed = Signal()
        self._changed.set()
        self._editing = trio.Lock()
        self._writing = trio.Lock()

    def note(self, commit: Commit) -> None:
        """Follow the commit's changes of the table, and have them written to the file."""
        if USER_TABLE in commit.mended:
            self._read_again()
        for entry in commit.applied:
            if entry.user != USER_TABLE:
                continue
            for change in entry.changes:
                if isinstance(change, FolderAnnotate):
                    self._show(change.values)
                else:
                    self._read_again()  # a merge, whose decisions are in the store

    def _read_again(self) -> None:
        self._values, self._is_stale = None, True
        self._changed.set()

    def _show(self, changes: Iterable[tuple[str, bytes | None]]) -> None:
        """Change what this node shows of the table."""
        self._changed.set()
        if self._values is None:
            self._noted += changes
            return
        for name, value in changes:
            before = self._values.pop(name, b"")
            self._bytes -= len(before)
            self._log_ins.remove(name, before)
            if value is not None:
                self._values[name] = value
                self._bytes += len(value)
                self._log_ins.add(name, value)
            self._unwritten[name] = value

    async def _shown(self) -> Mapping[str, bytes]:
        """Return what this node shows of the table. Raises NotReadyError before this node knows it."""
        async with self._reading:
            while self._values is None:
                self._noted, self._is_stale = [], False
                values = dict(await self._mail.annotations(USER_TABLE, None))
                log_ins = await self._run_in_thread(partial(_LogIns, values))
                if self._is_stale:
                    continue
                self._values, self._bytes, self._log_ins = values, sum(map(len, values.values())), log_ins
                self._unwritten, self._is_new = {**values}, True
                self._show(self._noted)  # the store may have had some of it already: then it is the same
            return self._values

    async def run(self) -> None:
        """Write the file whenever the table changes, until cancelled."""
        problem = ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except (MailError, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("%s: the users of the cluster cannot be written yet: %s", self._path, problem)
                self._changed.set()
                await trio.sleep(RETRY_S)
            else:
                problem = ""

    async def has(self, user: str) -> bool:
        """Return True if the table has a user of this name, as far as the nodes in reach know. Raises MailError."""
        await self._mail.catch_up(USER_TABLE)
        return _name_of(folded(user)) in await self._shown()

    async def names_of(self, user: str) -> list[str]:
        """Return the log-in names that open the mail of exactly this user, as `has` knows them.

        Raises MailError, also while it is not known whose mail some name opens: it may be this.
        """
        await self._mail.catch_up(USER_TABLE)
        values = await self._shown()
        if unknown := self._log_ins.of(NOBODY):
            names = sorted(folded(name_in(values[name])) for name in unknown)
            raise UsersUnavailableError(refusal_of(user, names[0], NOBODY))
        return self._names_of(values, folded(user))

    def _names_of(self, values: Values, user: str) -> list[str]:
        own = _name_of(user)
        names = {own} if own in values and mail_user_in(values[own]) is None else set()
        return sorted(folded(name_in(values[name])) for name in names | self._log_ins.of(user))

    def _mail_names(self, values: Values, line: bytes) -> MailNames:
        """Return whose mail a line opens, and the names of the other lines that do."""
        owner, name = owner_of(line), folded(name_in(line))
        others = self._names_of(values, owner) if owner != NOBODY else []
        return MailNames(owner, tuple(other for other in others if other != name))

    async def add(self, lines: Sequence[bytes], *, replace: bool = False) -> None:
        """Add users by their lines, without line ends, all or none; with `replace`, in place of those that there are.

        A line in place of another opens the same mail, unless it says whose it opens. Raises UserExistsError;
        ValueError for a line that is not a user's.
        """
        named = {folded(user_of(line)): line for line in lines}
        if len(named) < len(lines):
            raise ValueError("a user is named twice")

        def added(before: Values) -> Changes:
            known = next((user for user in named if _name_of(user) in before), None)
            if known is not None and not replace:
                raise UserExistsError(f"user {known!r} already exists; `replicator user passwd` sets a new password")
            changes: dict[str, bytes] = {}
            for user, line in named.items():
                old = before.get(_name_of(user))
                if old is None or owner_of(old) == NOBODY:
                    self._check_free(before, user, set(named))
                changes[user] = line if old is None else replaced(old, line)
                user_of(changes[user])
            return changes

        await self._change(added)

    async def set_password(self, user: str, hashed: str) -> None:
        """Replace the hash of the user's password; the rest of the line stays. Raises UserUnknownError, ValueError."""
        await self._change(lambda before: {folded(user): with_hash(_line_of(before, user), hashed)})

    async def set_disabled(self, user: str, *, disabled: bool) -> MailNames:
        """Disable the user, or let the user log in again, and return who else opens the mail.

        The rest of the line stays. Raises as `set_password`.
        """
        found = MailNames(NOBODY)

        def changed(before: Values) -> Changes:
            nonlocal found
            line = with_nologin(_line_of(before, user), disabled=disabled)
            user_of(line)
            found = self._mail_names(before, line)
            return {folded(user): line}

        await self._change(changed)
        return found

    async def rename(self, user: str, name: str) -> str:
        """Give the user another log-in name, and return the user whose mail that opens, as the old one did.

        The rest of the line stays. Raises UserUnknownError, UserExistsError, ValueError.
        """
        old, new = folded(user), folded(name)

        def changed(before: Values) -> Changes:
            line = renamed(_line_of(before, user), name)
            if _name_of(new) in before:
                raise UserExistsError(f"user {new!r} already exists; choose another name")
            self._check_free(before, new, {old})
            return {old: None, new: line}

        changes = await self._change(changed)
        return mail_user_in(changes[new] or b"") or new

    def _check_free(self, values: Values, user: str, but: AbstractSet[str]) -> None:
        """Raise UserExistsError if a log-in name opens the mail of the user of this name, or nobody knows whose.

        `but`: names that change.
        """
        for owner in (user, NOBODY):
            holders = (folded(name_in(values[name])) for name in self._log_ins.of(owner))
            holder = next((name for name in sorted(holders) if name not in but), None)
            if holder is not None:
                raise UserExistsError(refusal_of(user, holder, owner))

    async def delete(self, user: str) -> MailNames:
        """Remove the user, and return whose mail that was, and who else opens it. It stays. Raises UserUnknownError."""
        found = MailNames(NOBODY)

        def deleted(before: Values) -> Changes:
            nonlocal found
            found = self._mail_names(before, _line_of(before, user))
            return {folded(user): None}

        await self._change(deleted)
        return found

    async def _change(self, decide: Callable[[Values], Changes]) -> Changes:
        """Make the change that is decided on the latest table that can be had, show it, and return it."""
        async with self._editing:
            await self._mail.catch_up(USER_TABLE)
            before = await self._shown()
            changes = decide(before)
            values = {_name_of(user): line for user, line in changes.items()}
            if self._bytes + sum(map(len, filter(None, values.values()))) > TABLE_MAX_BYTES:
                raise ValueError(f"the users' lines would have more than {TABLE_MAX_BYTES} bytes")
            if SCRAM_SECRET not in before and any(line and needs_secret(line) for line in changes.values()):
                values[SCRAM_SECRET] = base64.b64encode(secrets.token_bytes(SECRET_BYTES))
            await self._mail.annotate(USER_TABLE, None, values)
            await self._write()
            return changes

    async def _write(self) -> None:
        """Write the file as this node shows the table. Raises NotReadyError before this node knows it, OSError."""
        async with self._writing:
            await self._shown()
            changes, is_new = self._unwritten, self._is_new
            self._unwritten, self._is_new = {}, False
            is_written = False
            try:
                await self._run_in_thread(partial(self._file.write, changes, is_new=is_new))
                is_written = True
            finally:
                if not is_written and not self._is_new:
                    self._unwritten, self._is_new = {**changes, **self._unwritten}, is_new


class _LogIns:
    """The lines that open the mail of other users than their names say, by these users, or that of `NOBODY`."""

    def __init__(self, values: Values = MappingProxyType({})) -> None:
        self._names: dict[str, set[str]] = {}  # of annotations
        for name, line in values.items():
            self.add(name, line)

    def of(self, user: str) -> AbstractSet[str]:
        """Return the names of the annotations with the lines that open the mail of a user, who is folded."""
        return self._names.get(user, frozenset())

    def add(self, name: str, line: bytes) -> None:
        """Add a line under the name of its annotation."""
        owner = _owner_in(name, line)
        if owner is not None:
            self._names.setdefault(owner, set()).add(name)

    def remove(self, name: str, line: bytes) -> None:
        """Remove a line that may be there."""
        owner = _owner_in(name, line)
        if owner is not None and owner in self._names:
            self._names[owner].discard(name)
            if not self._names[owner]:
                del self._names[owner]


class _File:
    """The passwd-file, and the lines that it has or shall have. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._users: dict[str, str] = {}  # by names of their annotations
        self._lines: SortedDict[str, bytes] = SortedDict()  # by users
        self._secret: bytes | None = None

    def write(self, changes: Mapping[str, bytes | None], *, is_new: bool) -> None:
        """Write the lines with these changes; `is_new`: with no others. Blocks. Raises OSError."""
        if is_new:
            self._users.clear()
            self._lines.clear()
            self._secret = None
        elif not changes:
            return
        for name, line in changes.items():
            self._change(name, line)
        if not self._lines and self._secret is None and not self._path.exists():
            return  # there has never been a user: mail and log-ins wait instead of being refused
        secret = [] if self._secret is None else [SECRET + self._secret + b"\n"]
        write_lines(self._path, [HEAD, *secret, *self._lines.values()])

    def _change(self, name: str, line: bytes | None) -> None:
        if name == SCRAM_SECRET:
            self._secret = line
            return
        before = self._users.pop(name, None)
        if before is not None:
            del self._lines[before]
        user = None if line is None else _user_in(name, line)
        if line is not None and user is not None:
            self._users[name] = user
            self._lines[user] = line + b"\n"


def _user_in(name: str, line: bytes) -> str | None:
    """Return the user of a line under this name of an annotation; None for what no node of this program writes."""
    with suppress(ValueError):
        user = folded(name_in(line))
        return user if name == _name_of(user) else None
    return None


def _owner_in(name: str, line: bytes) -> str | None:
    """Return the user whose mail a line opens under this name of an annotation, if that is another than its own."""
    owner = mail_user_in(line)
    return owner if owner is not None and _user_in(name, line) is not None else None


def _name_of(user: str) -> str:
    """Return the name of the annotation with the line of a user, whose name is folded."""
    return LINE + hashlib.sha256(user.encode()).hexdigest()


def _line_of(values: Values, user: str) -> bytes:
    line = values.get(_name_of(folded(user)))
    if line is None:
        raise UserUnknownError(f"there is no user {user!r}; `replicator user list` lists all users")
    return line
