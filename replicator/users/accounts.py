"""Accounts: the users of a passwd-file and the contents of their lines, for operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from replicator.users.passwd_file.line import PasswdFileError
from replicator.users.passwd_file.table import UserTable, read_users
from replicator.users.words.quota_limits import QuotaLimits


@dataclass(frozen=True, slots=True)
class Account:
    """A user, and what the user's line says. Limits: None if there is none; `cluster`: None if the line names none.

    `has_password`: the line has a hash that is understood. `origin`: where the user comes from, which is the file, the
    cluster's table, or a server with its own name of the user.
    """

    user: str
    disabled: bool
    has_password: bool
    storage_limit_bytes: int | None
    messages_limit: int | None
    cluster: str | None
    origin: str


def list_accounts(path: Path, quota: QuotaLimits) -> list[Account]:
    """Return the users of a file, in its order. Raises PasswdFileError."""
    try:
        return list(accounts_of(read_users(path), quota, str(path)))
    except OSError as error:
        raise PasswdFileError(f"{path}: cannot be read: {error.strerror}") from error


def accounts_of(table: UserTable, quota: QuotaLimits, origin: str) -> Iterator[Account]:
    """Yield the users of a table; `quota`: the limits of users whose lines set none. `origin`: as of `Account`."""
    for user, password in table.users.items():
        limits = quota._replace(**table.quotas.get(user, {}))
        yield Account(
            user=user,
            disabled=user in table.disabled,
            has_password=password is not None,
            storage_limit_bytes=limits.storage_bytes,
            messages_limit=limits.messages,
            cluster=table.clusters.get(user),
            origin=origin,
        )
