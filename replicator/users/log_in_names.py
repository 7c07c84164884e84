"""The log-in names of a passwd-file: what names and addresses mean, whose mail that opens, and where it is.

Belongs to the event loop. All that asks for what the file says raises UsersUnavailableError while it is unknown.
"""

from __future__ import annotations

from replicator.errors import OtherClusterError, UsersUnavailableError
from replicator.users.followed_file import LEAVING_S, FollowedFile
from replicator.users.names import folded
from replicator.users.words.home_cluster import Site
from replicator.users.words.mail_user import NOBODY

CHANGED = f"the list of users has just changed; try again in {LEAVING_S:.0f} seconds"


class LogInNames:
    """The log-in names of one file. `site`: where this node is; None: every user's mail is here."""

    def __init__(self, file: FollowedFile, site: Site | None) -> None:
        self._file = file
        self._site = site

    def find(self, name: str) -> str | None:
        """Return the log-in name that a name or an address means (see `names`), in whichever cluster; None: none."""
        table = self._file.known()
        for user in table.candidates(name):
            if user in table.users:
                return user
            is_lost = user not in table.log_ins and self._file.is_leaving(user)
            if is_lost or self._file.leaves(user) is not None:
                raise UsersUnavailableError(CHANGED)  # until then the mail does not go to another candidate either
        return None

    def first_of(self, name: str) -> str:
        """Return the first log-in name that opens the mail of exactly the user of this name; if none does, this name.

        Operators see users by the names of their mail, and may ask by these. Never raises: whoever goes on to `find`
        hears what is unknown.
        """
        self._file.refresh()
        return next(iter(self._file.table.names_of(folded(name)) if self._file.table else ()), name)

    def mail_user(self, name: str) -> str:
        """Return the user whose mail a log-in name opens. Raises UsersUnavailableError if the line makes no sense."""
        user = self._file.known().user_of(name)
        if user == NOBODY:
            raise UsersUnavailableError(f"{_unknown(name)}; try again later")
        return user

    def of(self, user: str) -> list[str]:
        """Return the log-in names that open the mail of exactly this user.

        Raises UsersUnavailableError also if the file has just lost such a name, and has no other, or while it is not
        known whose mail some name opens: it may be this.
        """
        table = self._file.known()
        if unknown := table.log_ins.get(NOBODY):
            raise UsersUnavailableError(f"{_unknown(min(unknown))}: correct the word `user=` in the line")
        names = table.names_of(user)
        if not names and self._file.is_leaving(user):
            raise UsersUnavailableError(CHANGED)
        return names

    def home_of(self, name: str) -> tuple[str, str] | None:
        """Return the log-in name that a name means, and its cluster; see `UserDirectory.home_of`."""
        user = self.find(name)
        if user is None or self._site is None:
            return None
        return user, self._site.home_of(self._file.known().clusters.get(user))

    def is_home(self, name: str) -> bool:
        """Return True if the mail that a log-in name opens is in this node's cluster, as far as is known."""
        named = self._file.table.clusters.get(name) if self._file.table else None
        return self._site is None or self._site.home_of(named) == self._site.own

    def check_home(self, name: str) -> None:
        """Raise OtherClusterError if the mail that a log-in name opens is in another cluster."""
        if not self.is_home(name):
            raise OtherClusterError(f"the mail of {name} is in another cluster; ask there")


def _unknown(name: str) -> str:
    return f"it is not known now whose mail {name} opens"
