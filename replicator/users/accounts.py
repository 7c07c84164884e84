"""Accounts: the users of a passwd-file and the contents of their lines, for operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from replicator.users.names import folded
from replicator.users.passwd_file.line import PasswdFileError
from replicator.users.passwd_file.table import UserTable, read_users
from replicator.users.words.quota_limits import QuotaLimits


@dataclass(frozen=True, slots=True)
class Account:
    """A user, and what the user's line says. Limits: None if there is none; `cluster`: None if the line names none.

    `user`: the log-in name. `mail_user`: whose mail that opens: the same, or another user (`mail_user`).
    `has_password`: the line has a hash that is understood. `origin`: where the user comes from, which is the file, the
    cluster's table, or a server with its own name of the user.
    """

    user: str
    mail_user: str
    disabled: bool
    has_password: bool
    storage_limit_bytes: int | None
    messages_limit: int | None
    cluster: str | None
    origin: str


def list_accounts(path: Path, quota: QuotaLimits) -> list[Account]:
    """Return the users of a file, in its order. Raises PasswdFileError."""
    return list(accounts_of(_read(path), quota, str(path)))


def find_account(path: Path, name: str, quota: QuotaLimits) -> Account | None:
    """Return the user of a name or an address in a file, or of the name of a user's mail; None: there is none.

    Raises PasswdFileError.
    """
    table = _read(path)
    user = table.find(next(iter(table.names_of(folded(name))), name))
    return None if user is None else account_of(table, user, quota, str(path))


def accounts_of(table: UserTable, quota: QuotaLimits, origin: str) -> Iterator[Account]:
    """Return the users of a table; `quota`: the limits of users whose lines set none. `origin`: as of `Account`."""
    return (account_of(table, user, quota, origin) for user in table.users)


def account_of(table: UserTable, user: str, quota: QuotaLimits, origin: str) -> Account:
    """Return a user of a table; see `accounts_of`."""
    limits = quota._replace(**table.quota_of(table.user_of(user)))
    return Account(
        user=user,
        mail_user=table.user_of(user),
        disabled=user in table.disabled,
        has_password=table.users[user] is not None,
        storage_limit_bytes=limits.storage_bytes,
        messages_limit=limits.messages,
        cluster=table.clusters.get(user),
        origin=origin,
    )


def _read(path: Path) -> UserTable:
    try:
        return read_users(path)
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error
