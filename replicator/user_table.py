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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio

from protocol.units import MIB
from replicator.errors import MailError
from replicator.mail.annotations import USER_TABLE
from replicator.mail.mailstore import MailStore
from replicator.runtime.environment import ThreadRunner, run_in_thread
from replicator.runtime.files.line_files import write_lines
from replicator.runtime.signals import Signal
from replicator.store.db.transaction import Commit
from replicator.users import UserExistsError, UserUnknownError, folded
from replicator.users.nologin import with_nologin
from replicator.users.passwd_file import FILE_MAX_BYTES, SECRET, SECRET_BYTES, name_in, needs_secret, user_of, with_hash

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

    Changes raise MailError as those of folders do.
    """

    def __init__(self, mail: MailStore, path: Path, run_in_thread: ThreadRunner = run_in_thread) -> None:
        self._mail = mail
        self._path = path
        self._file = _File(path)
        self._run_in_thread = run_in_thread
        self._changed = Signal()
        self._changed.set()
        self._editing = trio.Lock()
        self._writing = trio.Lock()

    def note(self, commit: Commit) -> None:
        """Have the file written anew if the commit changes the table."""
        if USER_TABLE in commit.mended or any(entry.user == USER_TABLE for entry in commit.applied):
            self._changed.set()

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
        return _name_of(folded(user)) in await self._mail.annotations(USER_TABLE, None)

    async def add(self, lines: Sequence[bytes], *, replace: bool = False) -> None:
        """Add users by their lines, without line ends, all or none; with `replace`, in place of those that there are.

        Raises UserExistsError; ValueError for a line that is not a user's.
        """
        named = {folded(user_of(line)): line for line in lines}
        if len(named) < len(lines):
            raise ValueError("a user is named twice")

        def added(before: Values) -> Changes:
            known = next((user for user in named if _name_of(user) in before), None)
            if known is not None and not replace:
                raise UserExistsError(f"user {known!r} already exists; set a new password instead")
            return named

        await self._change(added)

    async def set_password(self, user: str, hashed: str) -> None:
        """Replace the hash of the user's password; the rest of the line stays. Raises UserUnknownError, ValueError."""
        await self._change(lambda before: {folded(user): with_hash(_line_of(before, user), hashed)})

    async def set_disabled(self, user: str, *, disabled: bool) -> None:
        """Disable the user, or let the user log in again; the rest of the line stays. Raises as `set_password`."""

        def changed(before: Values) -> Changes:
            line = with_nologin(_line_of(before, user), disabled=disabled)
            user_of(line)
            return {folded(user): line}

        await self._change(changed)

    async def delete(self, user: str) -> None:
        """Remove the user. The mail stays. Raises UserUnknownError."""

        def deleted(before: Values) -> Changes:
            _line_of(before, user)
            return {folded(user): None}

        await self._change(deleted)

    async def _change(self, decide: Callable[[Values], Changes]) -> None:
        """Make the change that is decided on the latest table that can be had, and show it."""
        async with self._editing:
            await self._mail.catch_up(USER_TABLE)
            before = await self._mail.annotations(USER_TABLE, None)
            changes = decide(before)
            values = {_name_of(user): line for user, line in changes.items()}
            if sum(map(len, (*before.values(), *filter(None, values.values())))) > TABLE_MAX_BYTES:
                raise ValueError(f"the users' lines would have more than {TABLE_MAX_BYTES} bytes")
            if SCRAM_SECRET not in before and any(line and needs_secret(line) for line in changes.values()):
                values[SCRAM_SECRET] = base64.b64encode(secrets.token_bytes(SECRET_BYTES))
            await self._mail.annotate(USER_TABLE, None, values)
            await self._write()

    async def _write(self) -> None:
        """Write the file as this node shows the table. Raises NotReadyError before this node knows it, OSError."""
        async with self._writing:
            values = await self._mail.annotations(USER_TABLE, None)
            await self._run_in_thread(partial(self._file.write, values))


class _File:
    """The passwd-file, and what was written last. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: Values | None = None
        self._users: dict[str, str] = {}  # by names of their annotations

    def write(self, values: Values) -> None:
        """Write the lines among these annotations, unless the file has them. Blocks. Raises OSError."""
        if values == self._values:
            return
        if not values and not self._path.exists():
            return  # there has never been a user: mail and log-ins wait instead of being refused
        before, known = self._values or {}, self._users
        users = {
            name: user
            for name, line in values.items()
            if (user := known.get(name) if before.get(name) == line else _user_in(name, line)) is not None
        }
        secret = [SECRET + values[SCRAM_SECRET] + b"\n"] if SCRAM_SECRET in values else []
        lines = (values[name] + b"\n" for name in sorted(users, key=users.__getitem__))
        write_lines(self._path, [HEAD, *secret, *lines])
        self._values, self._users = values, users


def _user_in(name: str, line: bytes) -> str | None:
    """Return the user of a line under this name of an annotation; None for what no node of this program writes."""
    with suppress(ValueError):
        user = folded(name_in(line))
        return user if name == _name_of(user) else None
    return None


def _name_of(user: str) -> str:
    """Return the name of the annotation with the line of a user, whose name is folded."""
    return LINE + hashlib.sha256(user.encode()).hexdigest()


def _line_of(values: Values, user: str) -> bytes:
    line = values.get(_name_of(folded(user)))
    if line is None:
        raise UserUnknownError(f"there is no user {user!r}; `replicator user list` lists all users")
    return line
