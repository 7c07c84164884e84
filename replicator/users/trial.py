"""A log-in that an operator tries: whether a name and a password would let a client in, and if not, why.

Clients are told that a log-in failed and nothing else, so this is for operators alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replicator.users.logins import may_come
from replicator.users.names import folded
from replicator.users.passwd_file.table import UserTable
from replicator.users.words.home_cluster import NOWHERE, Site
from replicator.users.words.mail_user import NOBODY

_DISABLED = "the user is disabled; `replicator user enable` lets the user log in again"


class Obstacle(StrEnum):
    """Reasons why a user may not log in by a password."""

    NO_SUCH_USER = "no_such_user"
    NO_SUCH_MASTER = "no_such_master"
    OTHER_CLUSTER = "other_cluster"
    NO_MAIL = "no_mail"
    DISABLED = "disabled"
    NO_PASSWORD = "no_password"  # noqa: S105 - no secret
    UNUSABLE_HASH = "unusable_hash"
    WRONG_ADDRESS = "wrong_address"
    WRONG_PASSWORD = "wrong_password"  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class Reason:
    """An obstacle, and a sentence about it."""

    obstacle: str
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome. `user`: whom the name means; None: nobody. It may log in if there are no `reasons`.

    `waits_s`: seconds for which attempts at this user are delayed now, at the addresses that `slowed` names.
    `only_from`: the networks from which the user may log in; None: from everywhere. `master`: who would act as the
    user; the delays and networks are the master's then. `origin`: where the user comes from, as in `Account`; None:
    there is none. `answer`: what a server said about the password; None: it was not asked.
    """

    user: str | None
    reasons: tuple[Reason, ...]
    waits_s: float
    slowed: tuple[str, ...]
    only_from: tuple[str, ...] | None = None
    master: str | None = None
    origin: str | None = None
    answer: str | None = None


def reasons_against_mail(table: UserTable, user: str, site: Site | None) -> list[Reason]:
    """Return why a user of the table has no mail here."""
    found = []
    home = None if site is None else site.home_of(table.clusters.get(user))
    if site is not None and home == NOWHERE:
        text = f"the line of {user} names no cluster that makes sense, so no node has the mail: add `cluster=NAME`"
        found.append(Reason(Obstacle.OTHER_CLUSTER, text))
    elif site is not None and home != site.own:
        text = f"the mail of {user} is in the cluster {home}, and this node is in {site.own}: log in there"
        found.append(Reason(Obstacle.OTHER_CLUSTER, text))
    if table.user_of(user) == NOBODY:
        text = f"it is not known whose mail {user} opens: the word `user=` in the line makes no sense"
        found.append(Reason(Obstacle.NO_MAIL, text))
    return found


def no_such_user(table: UserTable, name: str) -> Reason:
    """Return the reason why a name that means nobody may not log in: perhaps it is that of a user who was renamed."""
    names = table.names_of(name)
    renamed = f"; the user {name} logs in as {', '.join(names)}" if names else ""
    return Reason(Obstacle.NO_SUCH_USER, f"there is no user {name!r}, nor one by a part of this name{renamed}")


def disabled(user: str) -> Reason:
    """Return the reason why a user who is disabled may not log in."""
    return Reason(Obstacle.DISABLED, f"{user} is disabled: `replicator user enable` ends that")


def shut_out(table: UserTable, name: str, address: str | None) -> str | None:
    """Return why the user of a name may not log in from an IP address, whatever is shown; None: the user may."""
    user = table.find(name)
    if user is None:
        return no_such_user(table, folded(name)).text if table.names_of(folded(name)) else None
    if user in table.disabled:
        return _DISABLED
    return None if may_come(table, user, address) else f"the user may log in from {table.nets[user]} only"


def shut_out_by_master(table: UserTable, name: str) -> str | None:
    """Return why no master may act as the user of a name; None: masters may."""
    user = table.find(name)
    if user is None:
        return f"there is no user {folded(name)!r}"
    return _DISABLED if user in table.disabled else None


def reasons_against_master(
    table: UserTable, master: str, address: str | None, *, is_right: bool | None
) -> list[Reason]:
    """Return why a master user may not log in as somebody; see `reasons_against`."""
    if master in table.users:
        return reasons_against(table, master, address, is_right=is_right)
    return [Reason(Obstacle.NO_SUCH_MASTER, f"there is no master user {master!r}")]


def reasons_against(table: UserTable, user: str, address: str | None, *, is_right: bool | None) -> list[Reason]:
    """Return why a user of the table may not log in. `is_right`: the password is; None: it cannot be checked.

    `address`: the client's IP address; None: from wherever the user may log in.
    """
    found = []
    if user in table.disabled:
        found.append(disabled(user))
    nets = table.nets.get(user)
    if nets is not None and not nets.networks and not nets.is_local:
        found.append(Reason(Obstacle.WRONG_ADDRESS, f"`allow_nets` of {user} makes no sense, which lets nobody in"))
    elif nets is not None and address is not None and not nets.has(address):
        text = f"{user} may log in from {nets} only, and not from {address}"
        found.append(Reason(Obstacle.WRONG_ADDRESS, text))
    if user in table.unusable:
        found.append(Reason(Obstacle.UNUSABLE_HASH, f"the hash cannot be understood: {table.unusable[user]}"))
    elif table.users.get(user) is None:
        text = f"{user} has no password, and logs in by an access token or a certificate, if at all"
        found.append(Reason(Obstacle.NO_PASSWORD, text))
    elif not is_right:
        found.append(Reason(Obstacle.WRONG_PASSWORD, "the password is wrong"))
    return found
