"""The directory of a cluster that runs on one machine: configurations, users, passwords, certificates.

Existing files are never changed: a cluster returns with its ports, its users and its mail. `dc1.toml` and so on are
ordinary configurations, to be edited freely. `passwords.txt` exists so that first passwords can be shown again.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from replicator.cli.target import CommandError, config_argument
from replicator.config import Address, Config, ListenConfig, PeerConfig, TlsConfig, config_text, default_config
from replicator.users import PasswdFileError, add_user
from replicator.users.passwd_file.table import read_users

HOST = "127.0.0.1"
FIRST_PORTS: Mapping[str, int] = {"peer": 4420, "imap": 1143, "lmtp": 1024, "http": 1080}
NODES_DEFAULT = 3
NODES_MAX = 16  # processes on one machine
FIRST_USERS = ("alice", "bob", "carol")
PASSWORD_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # noqa: S105  32 letters that nobody mistakes or needs to quote
PASSWORD_LENGTH = 14  # 70 bits
BEGUN_CA = "ca.new"
OWN_FILES = frozenset({"cluster.lock", "users.passwd", "passwords.txt", "ca", BEGUN_CA})
"""Files that may be there before any node is."""

_CONFIG_NAME = re.compile(r"dc[1-9][0-9]*\.toml")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node's configuration, with its file."""

    file: Path
    config: Config

    @property
    def sid(self) -> str:
        """The node's id."""
        return self.config.node.id


@dataclass(frozen=True, slots=True)
class Login:
    """A user, and the password if it is still the one generated at the first run."""

    user: str
    password: str | None


def check_directory(directory: Path) -> None:
    """Raise CommandError if the directory has files but no cluster: they belong to something else."""
    try:
        names = {entry.name for entry in directory.iterdir()} if directory.exists() else set()
    except OSError as error:
        raise CommandError(f"{directory}: {error.strerror}; use another --dir") from error
    foreign = names - OWN_FILES
    if foreign and not any(_CONFIG_NAME.fullmatch(name) for name in names):
        found = ", ".join(sorted(foreign)[:3])
        raise CommandError(f"{directory}: this directory has other files ({found}) and no cluster; use another --dir")


def prepare(directory: Path, nodes: int | None) -> list[ClusterNode]:
    """Return the cluster in `directory`, creating it if needed. Raises CommandError, ConfigurationError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files = sorted(
            (file for file in directory.iterdir() if _CONFIG_NAME.fullmatch(file.name)),
            key=lambda file: int(file.stem[2:]),
        )
        if not files:
            files = _create(directory, nodes or NODES_DEFAULT)
        elif nodes not in (None, len(files)):
            found = ", ".join(file.name for file in files)
            raise CommandError(
                f"{directory}: this directory has a cluster of {len(files)} nodes ({found}); "
                f"run it with --nodes {len(files)}, or create another one with --dir"
            )
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror}; use another --dir") from error
    return [ClusterNode(file, config_argument(file, serving=True)) for file in files]


def logins(directory: Path, passwd_file: Path) -> list[Login]:
    """Return all users, with those first passwords that are still valid. Each check takes a moment.

    There are none before the first user of a cluster that has a table of its own is added.
    """
    if not passwd_file.exists():
        return []
    passwords = _read_passwords(directory / "passwords.txt")
    found = []
    for user, stored in read_users(passwd_file).users.items():
        password = passwords.get(user)
        holds = stored is not None and password is not None and stored.check(password.encode())
        found.append(Login(user, password if holds else None))
    return found


def _create(directory: Path, nodes: int) -> list[Path]:
    sids = [f"dc{number}" for number in range(1, nodes + 1)]
    listens = _free_listens(len(sids))
    _create_users(directory)
    certificates = _create_certificates(directory.absolute() / "ca", sids)
    files = []
    for sid, listen in zip(sids, listens, strict=True):
        peers = tuple(
            PeerConfig(other, there.peer)
            for other, there in zip(sids, listens, strict=True)
            if other != sid and there.peer is not None
        )
        config = replace(default_config(sid, directory, listen=listen, peers=peers), tls=certificates[sid])
        files.append(directory / f"{sid}.toml")
        files[-1].write_text(config_text(config, directory), "utf-8")
    return files


def _create_certificates(directory: Path, sids: Sequence[str]) -> Mapping[str, TlsConfig]:
    """Create a CA and a certificate for each node, unless an interrupted run has created them.

    The CA is made beside its place and renamed, because half of one would be of no use to anybody.
    """
    from replicator.cli.authority import Authority  # noqa: PLC0415  only a new cluster needs it

    hosts = ("localhost", HOST)
    if not directory.exists():
        begun = directory.with_name(BEGUN_CA)
        shutil.rmtree(begun, ignore_errors=True)
        authority = Authority.create(begun, "mail-cluster")
        for sid in sids:
            authority.issue(sid, hosts)
        begun.rename(directory)
    authority = Authority.open(directory)
    certificates = {sid: authority.files(sid) for sid in sids}
    for sid, files in certificates.items():
        if not files.certificate.exists():  # the interrupted run was for fewer nodes
            authority.issue(sid, hosts)
    return certificates


def _create_users(directory: Path) -> None:
    """Create users with random passwords, unless there are users already."""
    passwd_file, passwords_file = directory / "users.passwd", directory / "passwords.txt"
    if passwd_file.exists():
        return
    passwords = {user: new_password() for user in FIRST_USERS}
    descriptor = os.open(passwords_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  it is open already
        file.writelines(f"{user} {password}\n" for user, password in passwords.items())
    try:
        for user, password in passwords.items():
            add_user(passwd_file, user, password)
    except PasswdFileError as error:
        raise CommandError(str(error)) from error


def new_password() -> str:
    """Return a random password that needs no quoting in shells and URLs."""
    return "".join(secrets.choice(PASSWORD_ALPHABET) for _ in range(PASSWORD_LENGTH))


def _read_passwords(file: Path) -> Mapping[str, str]:
    if not file.is_file():
        return {}
    lines = (line.partition(" ") for line in file.read_text("utf-8").splitlines())
    return {user: password for user, _, password in lines}


def _free_listens(nodes: int) -> list[ListenConfig]:
    """Return free ports for each node: the usual ones where possible."""
    given: set[int] = set()

    def take(first: int) -> Address:
        port = next(port for port in range(first, 65_536) if port not in given and _is_free(port))
        given.add(port)
        return Address(HOST, port)

    return [ListenConfig(**{door: take(first) for door, first in FIRST_PORTS.items()}) for _ in range(nodes)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a recently closed connection does not make a port unavailable.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
