"""A passwd-file, followed as it changes. Belongs to the event loop; time is trio's.

The file is examined on every request and read again when it has changed; that costs a `stat`, and now and then a
moment. Many new lines are read in a thread. Some programs write the file in place while requests arrive: a file that is
empty or ends within a line is not accepted, and users missing from the next version are not removed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from replicator.errors import UsersUnavailableError
from replicator.runtime.environment import ThreadRunner
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.signals import Signal
from replicator.users.decoys import Decoys
from replicator.users.passwd_file.line import Line, PasswdFileError
from replicator.users.passwd_file.table import UserTable, read_few_lines, read_new_table, read_whole_file
from replicator.users.schemes import PasswordHash
from replicator.users.words.home_cluster import Site

log = logging.getLogger(__name__)

LEAVING_S = 10.0
"""Seconds before a missing user counts as removed: half a file may end at a line end.

Copies rarely stall for longer, and mail for removed users must be refused at some time.
"""

LOGGED_MAX = 100
"""Problems of lines that are logged each time the file is read; the others are counted."""

FileVersion = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A line that has just disappeared from the file. With `in_place`, log-ins stay valid meanwhile.

    `mail_user`: whose mail it opened.
    """

    password: PasswordHash | None
    mail_user: str
    in_place: bool
    until_s: float


class _Lost(NamedTuple):
    """A line that has gone: its hash, and whose mail it opened."""

    password: PasswordHash | None
    mail_user: str


class FollowedFile:
    """The users of one passwd-file, as of now.

    `key`: secret, for decoys if the file has no secret. `site`: where this node is; None: every user's mail is here.
    `is_from_cluster`: the node writes the file itself, once it has the cluster's table of users. `is_of_masters`: these
    are master users, and no others.
    """

    def __init__(
        self,
        path: Path,
        key: bytes,
        run_in_thread: ThreadRunner,
        *,
        site: Site | None,
        is_from_cluster: bool,
        is_of_masters: bool = False,
    ) -> None:
        self._path = path
        self._is_of_masters = is_of_masters
        self._key = key
        self._run_in_thread = run_in_thread
        self._site = site
        self._is_from_cluster = is_from_cluster
        self.version: FileVersion | None = None
        self.table: UserTable | None = None  # None: no file could be read since the process started
        self.decoys = Decoys(UserTable(), key)
        self._leaving: dict[str, Leaving] = {}
        self._leaving_mail: dict[str, float] = {}  # until when lines that opened these users' mail may come back
        self._unreadable: str | None = None
        self._has_reader = False
        self._is_behind = Signal()  # set: the file has changed, and is to be read in a thread

    @property
    def origin(self) -> str:
        """The origin of these users, for operators."""
        return "the cluster's table" if self._is_from_cluster else str(self._path)

    def known(self) -> UserTable:
        """Return the users. Raises UsersUnavailableError while they are unknown."""
        self.refresh()
        if self.table is None:
            raise UsersUnavailableError("the list of users cannot be read now; try again later")
        return self.table

    def leaves(self, user: str) -> Leaving | None:
        """Return the user, if the file has just lost it."""
        leaving = self._leaving.get(user)
        return leaving if leaving is not None and trio.current_time() < leaving.until_s else None

    def is_leaving(self, user: str) -> bool:
        """Return True if the file has just lost a line that opened the mail of this user."""
        until_s = self._leaving_mail.get(user)
        return until_s is not None and trio.current_time() < until_s

    def unreadable(self) -> list[str]:
        """Return the reason why the file cannot be read now; empty if it can."""
        self.refresh()
        return [self._unreadable] if self._unreadable else []

    def problems(self) -> list[str]:
        """Return all problems of the file now, including single lines, as `file:line: problem`."""
        unreadable, table = self.unreadable(), self.table
        return [*unreadable, *((*table.problems, *table.remarks) if table else ()), *self._homeless()]

    async def load(self) -> None:
        """Read the file before `run` begins, in a thread if it has many users."""
        self.refresh(may_hold_up=False)
        if self._is_behind.is_set():
            await self._catch_up()

    async def run(self) -> None:
        """Read in a thread what would hold up the event loop, until cancelled. Meanwhile the last contents hold."""
        self._has_reader = True
        try:
            while True:
                await self._is_behind.wait()
                await self._catch_up()
        finally:
            self._has_reader = False
            self._is_behind.clear()

    async def _catch_up(self) -> None:
        """Read the file in a thread; `refresh` changes nothing until then."""
        before, version = self.table, self._file_version()

        def read() -> tuple[UserTable, Decoys]:
            table = read_new_table(self._path, before)
            return table, Decoys(table, self._key)

        try:
            if version is None:
                return
            table, decoys = await self._run_in_thread(read)
        except (OSError, PasswdFileError) as error:
            self.version = version
            self._note_unreadable(error)
        else:
            is_in_place = self._is_in_place(version)
            self.version = version
            self._note_read(len(table.users))
            self._replace(table, decoys, in_place=is_in_place)
        finally:
            self._is_behind.clear()

    def refresh(self, *, may_hold_up: bool = True) -> None:
        """Read the file again if it has changed, and log changes. While it cannot be read, the last contents hold.

        What would take long is left to `run`, if that runs, or without `may_hold_up` to `load`.
        """
        if self._is_behind.is_set():
            return
        version = self._file_version()
        if version is None or version == self.version:
            return
        try:
            if may_hold_up and not self._has_reader:
                reading = read_whole_file(self._path, self.table)
            elif (found := read_few_lines(self._path, self.table)) is not None:
                reading = found
            else:
                self._is_behind.set()
                return
        except (OSError, PasswdFileError) as error:
            self.version = version
            self._note_unreadable(error)
            return
        in_place = self._is_in_place(version)
        self.version = version
        table, removed, added = reading
        self._note_read(len(table.users))
        if removed is None:
            self._replace(table, Decoys(table, self._key), in_place=in_place)
            return
        self._patch(removed, added, in_place=in_place)
        for problem in self._homeless():
            log.warning("%s", problem)

    def _is_in_place(self, version: FileVersion) -> bool:
        return self.version is None or version[0] == self.version[0]

    def _note_read(self, users: int) -> None:
        self._unreadable = None
        what = "master users" if self._is_of_masters else "users"
        log.info("%s read %s", what, LogFields({"users": users, "file": self._path}))

    def _replace(self, table: UserTable, decoys: Decoys, *, in_place: bool) -> None:
        """Use another table from now on."""
        if self.table is not None:
            before = self.table
            gone = before.users.keys() - table.users.keys()
            lost = {user: _Lost(before.users[user], before.user_of(user)) for user in gone}
            self._note_leaving(lost, in_place=in_place)
        self.table = table
        self.decoys = decoys
        for problem in (*table.problems[:LOGGED_MAX], *table.remarks, *self._homeless()):
            log.warning("%s", problem)
        if len(table.problems) > LOGGED_MAX:
            log.warning("%s: %d more lines have problems", self._path, len(table.problems) - LOGGED_MAX)

    def _patch(self, removed: Sequence[Line], added: Sequence[Line], *, in_place: bool) -> None:
        """Follow a change of the table in which these lines went and came."""
        gone: dict[str, _Lost] = {}
        for line in removed:
            assert line.user is not None, "only users' lines change a table"
            gone[line.user] = _Lost(line.password, line.user if line.mail_user is None else line.mail_user)
            self.decoys.remove(line.user, line.password)
        for line in added:
            assert line.user is not None, "only users' lines change a table"
            gone.pop(line.user, None)
            self.decoys.add(line.user, line.password)
        self._note_leaving(gone, in_place=in_place)

    def _note_leaving(self, gone: Mapping[str, _Lost], *, in_place: bool) -> None:
        """Keep missing users for a while, but not their sessions if the file was replaced as a whole."""
        self._leaving = {user: leaving for user in self._leaving if (leaving := self.leaves(user)) is not None}
        for user, lost in gone.items():
            self._leaving[user] = Leaving(*lost, in_place, trio.current_time() + LEAVING_S)
        by_time = sorted(self._leaving.values(), key=lambda leaving: leaving.until_s)
        self._leaving_mail = {leaving.mail_user: leaving.until_s for leaving in by_time}

    def _file_version(self) -> FileVersion | None:
        try:
            stat = self._path.stat()
        except OSError as error:
            self._note_unreadable(error)
            self.version = None
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def _note_unreadable(self, error: OSError | PasswdFileError) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        if self.table is not None:
            consequence = "so the node keeps the last users that it could read"
        elif self._is_of_masters:
            consequence = "so no master user can log in"
        elif isinstance(error, FileNotFoundError):
            consequence = "so the node accepts neither mail nor logins until `replicator user add` creates it"
        else:
            consequence = "so the node accepts neither mail nor logins"
        text = f"{self._path}: cannot be read, {consequence}: {reason}"
        if self._is_from_cluster and self.table is None and isinstance(error, FileNotFoundError):
            text = (
                "the cluster's table of users is not here yet, so the node accepts neither mail nor logins; it comes"
                " from the other nodes; if there is none, begin it by `replicator user import` or `replicator user add`"
            )
        if text != self._unreadable:
            log.warning("%s", text)
        self._unreadable = text

    def _homeless(self) -> list[str]:
        """Return a problem if lines lack the name of a cluster."""
        if self._site is None or not self._site.has_others or self.table is None:
            return []
        if len(self.table.clusters) == len(self.table.users):
            return []
        lacking = [user for user in self.table.users if user not in self.table.clusters]
        problem = f"{self._path}: {len(lacking)} users name no cluster, and so have mail in none: add `cluster=NAME` to"
        return [f"{problem} their lines, the first of which is that of {lacking[0]}"] if lacking else []
