"""The users who get the mail of an address: by the aliases of a file, and by their names. Belongs to the event loop.

The order is that of Postfix's virtual(5), but for users, who come before catch-all addresses: an alias of the whole
address, of the address without its `+detail`, and of the name alone; the user of the address (see `names`); the
catch-all address of the domain. Targets are looked up again. An alias that names itself means the user of that name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import trio

from replicator.errors import (
    MailError,
    OtherClusterError,
    UnavailableError,
    UserNotLearnedError,
    UsersUnavailableError,
)
from replicator.runtime.logs.fields import LogFields
from replicator.users.aliases.table import AliasFileError, AliasTable, read_aliases
from replicator.users.followed_file import LEAVING_S
from replicator.users.names import UserNames, candidates, folded

log = logging.getLogger(__name__)

DEPTH_MAX = 50
"""Aliases of aliases of one address."""

EXPANSIONS_MAX = 1000
"""Addresses that one address may lead to, as in Postfix (virtual_alias_expansion_limit)."""

LEARNING_S = 30.0
"""Seconds for learning whom one address reaches. An MTA waits for longer, and would ask again anyway."""

LEARNED_AT_ONCE = 8
"""Names of one address that are learned at a time: fewer than a server of users is asked at once."""

LOGGED_MAX = 100
"""Problems that are logged each time the file is read; the others are counted."""


class Recipients:
    """The users whom addresses reach: those of `users`, and by the aliases of the file at `path`, if there is one.

    The file is read again when it has changed, as soon as somebody asks. While it cannot be read, the last contents
    hold; if there are none, nobody is known.
    """

    def __init__(self, users: UserNames, path: Path | None = None) -> None:
        self._users = users
        self._path = path
        self._version: tuple[int, int, int, int] | None = None
        self._table: AliasTable | None = AliasTable() if path is None else None
        self._unreadable: str | None = None
        self._lost: dict[str, float] = {}  # aliases that have gone, and until when mail for them waits
        self.refresh()

    def find(self, address: str) -> tuple[str, ...]:
        """Return the users whom mail to the address reaches, each once; none: the address is unknown.

        Raises UsersUnavailableError while users or aliases are unknown, UserNotLearnedError if it takes `ask`,
        OtherClusterError if the address is that of a user whose mail is there, and UnavailableError if it leads to too
        many others.
        """
        search = self._search(address, self._users)
        if search.unlearned:
            raise UserNotLearnedError(address)
        return search.users()

    async def ask(self, address: str) -> tuple[str, ...]:
        """Return what `find` does, after asking about all users on whom that depends. Raises as `find`.

        Raises UsersUnavailableError if it takes longer than `LEARNING_S`.
        """
        await trio.lowlevel.checkpoint()
        limit = trio.CapacityLimiter(LEARNED_AT_ONCE)
        heard = _Heard(self._users)

        async def ask(name: str) -> None:
            async with limit:
                await heard.ask(name)

        with trio.move_on_after(LEARNING_S):
            while (search := self._search(address, heard)).unlearned:  # a catch-all address may need another round
                async with trio.open_nursery() as nursery:
                    for name in search.unlearned:
                        nursery.start_soon(ask, name)
            return search.users()
        raise UsersUnavailableError("the server that knows the users takes too long for all of this alias; try again")

    def _search(self, address: str, users: _Names) -> _Search:
        """Return the search for the users of an address, which is done. Raises as `find`."""
        self.refresh()
        if self._table is None:
            raise UsersUnavailableError("the aliases cannot be read now; try again later")
        search = _Search(self._table, users, self._just_lost())
        search.expand(folded(address), ())
        return search

    def refresh(self) -> None:
        """Read the file again if it has changed, and log its problems."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
            version = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            if version == self._version:
                return
            self._version = version
            table = read_aliases(self._path)
        except (OSError, AliasFileError) as error:
            self._note_unreadable(error)
            return
        self._note_lost(table)
        self._table, self._unreadable = table, None
        log.info("aliases read %s", LogFields({"aliases": len(table.aliases), "file": self._path}))
        problems = self.problems()
        for problem in problems[:LOGGED_MAX]:
            log.warning("%s", problem)
        if len(problems) > LOGGED_MAX:
            log.warning("%s: %d more lines have problems", self._path, len(problems) - LOGGED_MAX)

    def _note_lost(self, table: AliasTable) -> None:
        """Note which aliases have gone: half a file may end at a line end, and mail must not bounce for that."""
        lost = self._table.aliases.keys() - table.aliases.keys() if self._table is not None else set()
        kept = {name: until_s for name, until_s in self._just_lost().items() if name not in table.aliases}
        self._lost = kept | (dict.fromkeys(lost, trio.current_time() + LEAVING_S) if lost else {})

    def _just_lost(self) -> Mapping[str, float]:
        """Return the aliases that have just gone."""
        if self._lost and trio.current_time() >= next(iter(self._lost.values())):  # those who went first are first
            now_s = trio.current_time()
            self._lost = {name: until_s for name, until_s in self._lost.items() if now_s < until_s}
        return self._lost

    def problems(self) -> list[str]:
        """Return all problems of the file, as `file:line: problem`; those of targets while users are known."""
        unreadable = [self._unreadable] if self._unreadable else []
        if self._table is None or self._path is None:
            return unreadable
        return [*unreadable, *problems_of(self._table, self._path, self._users)]

    def unreadable(self) -> list[str]:
        """Return the reason why the file cannot be read now; empty if it can."""
        self.refresh()
        return [self._unreadable] if self._unreadable else []

    def _note_unreadable(self, error: OSError | AliasFileError) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        consequence = "mail waits until it can be" if self._table is None else "the node keeps the last ones"
        text = f"{self._path}: the aliases cannot be read, so {consequence}: {reason}"
        if isinstance(error, OSError):
            self._version = None
        if text != self._unreadable:
            log.warning("%s", text)
        self._unreadable = text


class _Names(Protocol):
    """The part of `UserNames` that never waits."""

    def find(self, name: str) -> str | None:
        """See `UserNames`."""
        ...


class _Heard:
    """Users as one search hears of them: an answer holds for all of it, however long the other answers take."""

    def __init__(self, users: UserNames) -> None:
        self._users = users
        self._answers: dict[str, str | MailError | None] = {}

    async def ask(self, name: str) -> None:
        """Ask about a name, for `find`. Raises nothing."""
        try:
            self._answers[name] = await self._users.ask(name)
        except MailError as error:
            self._answers[name] = error

    def find(self, name: str) -> str | None:
        """See `UserNames`."""
        if name not in self._answers:
            return self._users.find(name)
        answer = self._answers[name]
        if isinstance(answer, MailError):
            raise answer
        return answer


def _key_of(table: AliasTable, users: _Names, address: str) -> str | None:
    """Return the alias by which an address is looked up; None: it may be a user's. Raises as `UserNames.find`."""
    key = next((one for one in candidates(address) if one in table.aliases), None)
    if key is not None:
        return key
    domain = f"@{address.rpartition('@')[2]}"
    return domain if "@" in address and domain in table.aliases and users.find(address) is None else None


def problems_of(table: AliasTable, path: Path, users: UserNames) -> Iterator[str]:
    """Yield the problems of the file's lines, and, while users are known, of targets that lead nowhere."""
    yield from table.problems
    text = "is no user here, and the node sends no mail elsewhere: this target gets none"
    try:
        for name, alias in table.aliases.items():
            for target in alias.targets:
                if not target.startswith("@") and not _leads_on(table, users, name, target):
                    yield f"{path}:{alias.line}: {target} {text}"
    except MailError:
        return  # told when the file changes next, if it is still wrong


def _leads_on(table: AliasTable, users: _Names, name: str, target: str) -> bool:
    """Return True if a target of the alias `name` is another alias, or may be a user here. Raises MailError."""
    try:
        key = _key_of(table, users, target)
        return users.find(target) is not None if key in {None, name} else True
    except OtherClusterError:
        return False
    except UserNotLearnedError:
        return True


class _Search:
    """The search for the users of one address, who are `found`. Without those `unlearned`, it is not complete."""

    def __init__(self, table: AliasTable, users: _Names, lost: Collection[str]) -> None:
        """`lost`: aliases that have just gone. Until that is sure, mail goes to nobody else in their place."""
        self._table = table
        self._users = users
        self._lost = lost
        self._seen: set[tuple[str, str]] = set()
        self._expansions = 0
        self.found: dict[str, None] = {}
        self.unlearned: dict[str, None] = {}
        self.elsewhere: OtherClusterError | None = None

    def users(self) -> tuple[str, ...]:
        """Return the users whom it has found. Raises OtherClusterError if there is only one elsewhere."""
        if not self.found and self.elsewhere is not None:
            raise self.elsewhere
        return tuple(self.found)

    def expand(self, address: str, path: tuple[str, ...]) -> None:
        """Find the users of an address. `path`: the aliases that lead to it. Raises as `Recipients.find`."""
        self._expansions += 1
        if self._expansions > EXPANSIONS_MAX or len(path) > DEPTH_MAX:
            raise UnavailableError(
                f"the alias leads to more than {EXPANSIONS_MAX} addresses, or through more than {DEPTH_MAX} others"
            )
        try:
            key = _key_of(self._table, self._users, address)
            user = self._users.find(address) if key is None or key in path else None
        except OtherClusterError as error:
            self.elsewhere = error
            return
        except UserNotLearnedError:
            self.unlearned.setdefault(address)
            return
        if self._lost and self._has_lost(address, key, user):
            raise UsersUnavailableError(f"the aliases have just changed; try again in {LEAVING_S:.0f} seconds")
        if user is not None:
            self.found.setdefault(user)
        elif key is not None and key not in path and (key, address) not in self._seen:
            self._seen.add((key, address))
            local = address.rpartition("@")[0] or address
            for target in self._table.aliases[key].targets:
                self.expand(f"{local}{target}" if target.startswith("@") else target, (*path, key))

    def _has_lost(self, address: str, key: str | None, user: str | None) -> bool:
        """Return True if an alias has just gone that would come before the one, or the user, that an address finds."""
        for name in candidates(address):
            if name == key:
                return False
            if name in self._lost:
                return True
        return key is None and user is None and f"@{address.rpartition('@')[2]}" in self._lost
