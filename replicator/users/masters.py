"""Master users: they log in by their own passwords, and act as other users (RFC 4616, Dovecot's master users).

A client names both, as `user*master` if the separator is `*`, or the user as SASL's authorization identity. Masters
stand in a passwd-file of their own, and are no users: they have no mail, and act as others only.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from replicator.runtime.environment import ThreadRunner
from replicator.users.followed_file import FollowedFile
from replicator.users.logins import Passwords, may_come
from replicator.users.names import folded

MARK = "*"
"""Begins the names under which attempts of masters are counted: a user may have the same name."""


class Acting(NamedTuple):
    """A master, and the name of the user as whom it would act."""

    user: str
    master: str


class Masters:
    """The master users of one passwd-file. `separator`: stands between the names; None: they come apart only.

    `key`: as of `FollowedFile`. The file is always read at once, for it is short.
    """

    def __init__(self, path: Path, separator: str | None, key: bytes, run_in_thread: ThreadRunner) -> None:
        self._separator = separator
        self.file = FollowedFile(path, key, run_in_thread, site=None, is_from_cluster=False, is_of_masters=True)
        self.passwords = Passwords(self.file, key, run_in_thread)

    def acting(self, name: str, as_user: str | None = None) -> Acting | None:
        """Return the master that a client names, if it names one. `as_user`: its authorization identity, if any.

        A name stands for itself only: who would act as the user of the same name is no master.
        """
        user, master = as_user, name
        if user is None and self._separator is not None and self._separator in name:
            user, _, master = name.partition(self._separator)
        return None if user is None or folded(user) == folded(master) else Acting(user, folded(master))

    def shuts_out(self, master: str, address: str | None) -> str | None:
        """Return why a master may not log in from an IP address, whatever is shown: for the log only."""
        table = self.file.table
        if table is None:
            return None
        if master in table.disabled:
            return "the master user is disabled"
        if may_come(table, master, address):
            return None
        return f"the master user may log in from {table.nets[master]} only"
