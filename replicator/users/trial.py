"""A log-in that an operator tries: whether a name and a password would let a client in, and if not, why.

Clients are told that a log-in failed and nothing else, so this is for operators alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replicator.users.passwd_file.table import UserTable
from replicator.users.words.home_cluster import NOWHERE, Site


class Obstacle(StrEnum):
    """Reasons why a user may not log in by a password."""

    NO_SUCH_USER = "no_such_user"
    OTHER_CLUSTER = "other_cluster"
    DISABLED = "disabled"
    NO_PASSWORD = "no_password"  # noqa: S105 - no secret
    UNUSABLE_HASH = "unusable_hash"
    WRONG_PASSWORD = "wrong_password"  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class Reason:
    """An obstacle, and a sentence about it."""

    obstacle: str
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome. `user`: whom the name means; None: nobody. It may log in if there are no `reasons`.

    `waits_s`: seconds for which attempts at this user are delayed now, at the addresses that `slowed` names. `answer`:
    what a server said that knows the users; None: they come from a passwd-file.
    """

    user: str | None
    reasons: tuple[Reason, ...]
    waits_s: float
    slowed: tuple[str, ...]
    answer: str | None = None


def reasons_against(table: UserTable, user: str, site: Site | None, *, is_right: bool | None) -> list[Reason]:
    """Return why a user of the table may not log in here. `is_right`: the password is; None: it cannot be checked."""
    found = []
    home = None if site is None else site.home_of(table.clusters.get(user))
    if site is not None and home == NOWHERE:
        text = f"the line of {user} names no cluster that makes sense, so no node has the mail: add `cluster=NAME`"
        found.append(Reason(Obstacle.OTHER_CLUSTER, text))
    elif site is not None and home != site.own:
        text = f"the mail of {user} is in the cluster {home}, and this node is in {site.own}: log in there"
        found.append(Reason(Obstacle.OTHER_CLUSTER, text))
    if user in table.disabled:
        found.append(Reason(Obstacle.DISABLED, f"{user} is disabled: `replicator user enable` ends that"))
    if user in table.unusable:
        found.append(Reason(Obstacle.UNUSABLE_HASH, f"the hash cannot be understood: {table.unusable[user]}"))
    elif table.users.get(user) is None:
        text = f"{user} has no password, and logs in by an access token or a certificate, if at all"
        found.append(Reason(Obstacle.NO_PASSWORD, text))
    elif not is_right:
        found.append(Reason(Obstacle.WRONG_PASSWORD, "the password is wrong"))
    return found
