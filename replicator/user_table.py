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

from replicator.errors import MailError
from replicator.mail.annotations import USER_TABLE
from replicator.mail.mailstore import MailStore
from replicator.runtime.environment import ThreadRunner, run_in_thread
from replicator.runtime.line_files import write_lines
from replicator.runtime.signals import Signal
from replicator.store.db.transaction import Commit
from replicator.users import UserExistsError, UserUnknownError, folded
from replicator.users.passwd_file import SECRET, SECRET_BYTES, needs_secret, user_of, with_hash

log = logging.getLogger(__name__)

LINE = "/shared/vendor/mail-replicator/user/"
"""Begins the name of the annotation that has a user's line; the SHA-256 of the user's name follows."""
SCRAM_SECRET = "/shared/vendor/mail-replicator/scram-secret"  # noqa: S105 - a name
HEAD = b"# The users of the cluster, written by the node: changes here are lost. Use `replicator user`.\n"
RETRY_S = 5.0

Users: TypeAlias = Mapping[str, bytes]
"""Lines by users, without line ends."""
Changes: TypeAlias = Mapping[str, bytes | None]
"""The new lines of users; None: the user is removed."""


class ClusterUsers:
    """The table as this node shows it, its changes, and the passwd-file at `path`. Belongs to the event loop.

    Changes raise MailError as those of folders do.
    """

    def __init__(self, mail: MailStore, path: Path, run_in_thread: ThreadRunner = run_in_thread) -> None:
        self._mail = mail
        self._path = path
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
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except (MailError, OSError) as error:
                log.warning("%s: the users of the cluster cannot be written yet: %s", self._path, error)
                self._changed.set()
                await trio.sleep(RETRY_S)

    async def add(self, lines: Sequence[bytes], *, replace: bool = False) -> None:
        """Add users by their lines, without line ends, all or none; with `replace`, in place of those that there are.

        Raises UserExistsError; ValueError for a line that is not a user's.
        """

        def added(before: Users) -> Changes:
            named = {folded(user_of(line)): line for line in lines}
            known = sorted(before.keys() & named.keys())
            if known and not replace:
                raise UserExistsError(f"user {known[0]!r} already exists; set a new password instead")
            return named

        await self._change(added)

    async def set_password(self, user: str, hashed: str) -> None:
        """Replace the hash of the user's password; the rest of the line stays. Raises UserUnknownError, ValueError."""
        await self._change(lambda before: {folded(user): with_hash(_line_of(before, user), hashed)})

    async def delete(self, user: str) -> None:
        """Remove the user. The mail stays. Raises UserUnknownError."""

        def deleted(before: Users) -> Changes:
            _line_of(before, user)
            return {folded(user): None}

        await self._change(deleted)

    async def _change(self, decide: Callable[[Users], Changes]) -> None:
        """Make the change that is decided on the latest table that can be had, and show it."""
        async with self._editing:
            await self._mail.catch_up(USER_TABLE)
            before = await self._mail.annotations(USER_TABLE, None)

            def decided() -> dict[str, bytes | None]:
                changes = decide(_users_in(before))
                values = {_name_of(user): line for user, line in changes.items()}
                if SCRAM_SECRET not in before and any(line and needs_secret(line) for line in changes.values()):
                    values[SCRAM_SECRET] = base64.b64encode(secrets.token_bytes(SECRET_BYTES))
                return values

            await self._mail.annotate(USER_TABLE, None, await self._run_in_thread(decided))
            await self._write()

    async def _write(self) -> None:
        """Write the file as this node shows the table. Raises NotReadyError before this node knows it, OSError."""
        async with self._writing:
            values = await self._mail.annotations(USER_TABLE, None)
            await self._run_in_thread(partial(_write_file, self._path, values))


def _write_file(path: Path, values: Mapping[str, bytes]) -> None:
    users = _users_in(values)
    if not users and not path.exists():
        return  # there has never been a user: mail and log-ins wait instead of being refused
    secret = [SECRET + values[SCRAM_SECRET] + b"\n"] if SCRAM_SECRET in values else []
    write_lines(path, [HEAD, *secret, *(users[user] + b"\n" for user in sorted(users))])


def _users_in(values: Mapping[str, bytes]) -> Users:
    """Return the lines by users, without those that no node of this program writes."""
    found: dict[str, bytes] = {}
    for name, line in values.items():
        with suppress(ValueError):
            user = folded(user_of(line))
            if name == _name_of(user):
                found[user] = line
    return found


def _name_of(user: str) -> str:
    """Return the name of the annotation with the line of a user, whose name is folded."""
    return LINE + hashlib.sha256(user.encode()).hexdigest()


def _line_of(users: Users, user: str) -> bytes:
    line = users.get(folded(user))
    if line is None:
        raise UserUnknownError(f"there is no user {user!r}; `replicator user list` lists all users")
    return line
