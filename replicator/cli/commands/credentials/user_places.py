"""The place of a node's users: a passwd-file, or the table of users of the node's cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import counted
from replicator.cli.target import CommandError, NodeUrl, config_argument, url_of_config
from replicator.config import QuotaConfig, UserSource
from replicator.users import (
    Account,
    AllowedNets,
    MailNames,
    PasswdFileError,
    QuotaLimits,
    add_user,
    delete_user,
    find_account,
    folded,
    list_accounts,
    list_users,
    new_line,
    rename_user,
    set_disabled,
    set_password,
)


class UserPlace(Protocol):
    """The place of a node's users. Every method raises CommandError."""

    name: str

    def add(self, user: str, password: str, scheme: str, nets: AllowedNets | None) -> None:
        """Add a user, who may log in from these networks only; None: from everywhere."""
        ...

    def set_password(self, user: str, password: str, scheme: str) -> None:
        """Set a user's password."""
        ...

    def set_disabled(self, user: str, *, disabled: bool) -> MailNames:
        """Disable a user, or let the user log in again; return who else opens the mail."""
        ...

    def rename(self, user: str, name: str) -> str:
        """Give a user another log-in name, and return the user whose mail that opens."""
        ...

    def delete(self, user: str) -> MailNames:
        """Remove a user; return whose mail that was, which stays, and who else opens it."""
        ...

    def names(self) -> list[str]:
        """Return the users' names."""
        ...

    def accounts(self) -> list[Account]:
        """Return the users, and what their lines say."""
        ...

    def account(self, name: str) -> Account:
        """Return a user by a name or an address."""
        ...


class _File:
    """The users of a passwd-file."""

    def __init__(self, path: Path, quota: QuotaConfig) -> None:
        self.name = str(path)
        self._path = path
        self._quota = QuotaLimits(quota.storage_bytes, quota.messages)

    def add(self, user: str, password: str, scheme: str, nets: AllowedNets | None) -> None:
        with passwd_file_errors():
            add_user(self._path, user, password, scheme=scheme, nets=nets)

    def set_password(self, user: str, password: str, scheme: str) -> None:
        with passwd_file_errors():
            set_password(self._path, user, password, scheme=scheme)

    def set_disabled(self, user: str, *, disabled: bool) -> MailNames:
        with passwd_file_errors():
            return set_disabled(self._path, user, disabled=disabled)

    def rename(self, user: str, name: str) -> str:
        with passwd_file_errors():
            return rename_user(self._path, user, name)

    def delete(self, user: str) -> MailNames:
        with passwd_file_errors():
            return delete_user(self._path, user)

    def names(self) -> list[str]:
        with passwd_file_errors():
            return list_users(self._path)

    def accounts(self) -> list[Account]:
        with passwd_file_errors():
            return list_accounts(self._path, self._quota)

    def account(self, name: str) -> Account:
        with passwd_file_errors():
            found = find_account(self._path, name, self._quota)
        if found is None:
            raise CommandError(f"{self._path}: there is no user {folded(name)!r}, nor one by a part of this name")
        return found


class ClusterPlace:
    """The users of a node's cluster."""

    def __init__(self, url: NodeUrl) -> None:
        self.name = f"cluster of {url.name}"
        self.url = url

    def add(self, user: str, password: str, scheme: str, nets: AllowedNets | None) -> None:
        """See `UserPlace`."""
        with passwd_file_errors():
            line = new_line(user, password, scheme, nets)
        with NodeClient(self.url) as client:
            client.add_users([line])
            _tell_of_mail(client, user)

    def set_password(self, user: str, password: str, scheme: str) -> None:
        """See `UserPlace`."""
        with passwd_file_errors():
            _, _, hashed = new_line(user, password, scheme).partition(":")
        with NodeClient(self.url) as client:
            client.set_password(user, hashed)

    def set_disabled(self, user: str, *, disabled: bool) -> MailNames:
        """See `UserPlace`."""
        with NodeClient(self.url) as client:
            return client.set_disabled(user, disabled=disabled)

    def rename(self, user: str, name: str) -> str:
        """See `UserPlace`."""
        with NodeClient(self.url) as client:
            return client.rename_user(user, name)

    def delete(self, user: str) -> MailNames:
        """See `UserPlace`."""
        with NodeClient(self.url) as client:
            return client.delete_user(user)

    def names(self) -> list[str]:
        """See `UserPlace`."""
        with NodeClient(self.url) as client:
            return client.users()

    def accounts(self) -> list[Account]:
        """See `UserPlace`."""
        with NodeClient(self.url) as client:
            return client.accounts()

    def account(self, name: str) -> Account:
        """See `UserPlace`."""
        with NodeClient(self.url) as client:
            return client.account(name)


def user_place(config_file: Path, *, is_of_masters: bool = False) -> UserPlace:
    """Return where the users of a configuration are. Raises CommandError."""
    config = config_argument(config_file)
    if is_of_masters:
        if config.users.master_passwd_file is None:
            raise CommandError(f"{config_file}: name the file of master users in [users]: master_passwd_file")
        return _File(config.users.master_passwd_file, config.quota)
    if config.users.source is UserSource.FILE:
        return _File(config.users.passwd_file, config.quota)
    return ClusterPlace(url_of_config(config_file))


def _tell_of_mail(client: NodeClient, user: str) -> None:
    """Say so if a new user gets the mail of a former one."""
    messages = sum(mailbox.messages for mailbox in client.mailboxes(user))
    if messages:
        click.echo(
            f"{folded(user)} finds {counted(messages, 'message')} of the former user of this name; if that is somebody"
            f" else's mail, run `replicator user delete` and `replicator user purge`, and add {folded(user)} again",
            err=True,
        )


@contextmanager
def passwd_file_errors() -> Iterator[None]:
    """Turn errors of a passwd-file into CommandError."""
    try:
        yield
    except PasswdFileError as error:
        raise CommandError(str(error)) from error
