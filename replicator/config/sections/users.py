"""Users, and where they come from: [users]."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from replicator.config import values
from replicator.config.formatting import path_text, quoted
from replicator.config.sections.nodes import NodeConfig
from replicator.config.source import Section


class UserSource(StrEnum):
    """The source of users: a passwd-file that the operator keeps, the cluster's own table, or a server."""

    FILE = "file"
    CLUSTER = "cluster"
    LDAP = "ldap"
    ENDPOINT = "endpoint"
    DOVECOT = "dovecot"

    @property
    def is_server(self) -> bool:
        """True if a server knows the users, which has a section of this name."""
        return self in {UserSource.LDAP, UserSource.ENDPOINT, UserSource.DOVECOT}


@dataclass(frozen=True, slots=True)
class UsersConfig:
    """Users with mail here (`replicator.users`).

    The file need not exist yet. If users come from the cluster, the node writes it; if from a server, nobody does.
    `master_passwd_file`: of users who log in as others; `master_separator`: the character between the names of user and
    master in a log-in.
    """

    passwd_file: Path
    source: UserSource = UserSource.FILE
    master_passwd_file: Path | None = None
    master_separator: str | None = None


def default_users(directory: Path) -> UsersConfig:
    """Return users in a passwd-file beside the configuration, in `directory`."""
    return UsersConfig(directory / "users.passwd")


def read_users(section: Section, directory: Path, node: NodeConfig) -> UsersConfig:
    """Read [users] of this node."""
    source = section.take("source", values.choice(UserSource), UserSource.FILE)
    named = section.take("passwd_file", values.path(directory), None)
    masters = section.take("master_passwd_file", values.path(directory), None)
    separator = section.take("master_separator", values.separator, None)
    if separator is not None and masters is None:
        section.problem("master_separator", "there are no master users without `master_passwd_file`")
    if source is UserSource.FILE:
        file = named or default_users(directory).passwd_file
        return UsersConfig(file, source, masters, separator)
    if source.is_server:
        if named is not None:
            text = f'users come from the server of [{source}] (source = "{source}"); remove this key'
            section.problem("passwd_file", text)
        return UsersConfig(node.cluster_users, source, masters, separator)
    if named is not None:
        text = (
            'users come from the cluster (source = "cluster"); remove this key, and bring the users of the file in once'
        )
        section.problem("passwd_file", f"{text} by `replicator user import`")
    return UsersConfig(node.cluster_users, source, masters, separator)


def format_users(users: UsersConfig, directory: Path) -> str:
    """Return [users] as a file in `directory` has it."""
    lines = ["[users]"]
    if users.source.is_server:
        lines.append(f"source = {quoted(users.source)}    # see [{users.source}]")
    elif users.source is UserSource.CLUSTER:
        lines.append('source = "cluster"    # the same at all nodes; see `replicator user`')
    else:
        lines.append(f"passwd_file = {path_text(users.passwd_file, directory)}    # user:{{SCHEME}}hash")
    if users.master_passwd_file is not None:
        lines.append(f"master_passwd_file = {path_text(users.master_passwd_file, directory)}    # who log in as others")
    if users.master_separator is not None:
        lines.append(f"master_separator = {quoted(users.master_separator)}    # user, this character, master")
    return "\n".join(lines) + "\n"
