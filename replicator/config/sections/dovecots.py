"""Dovecots with which a node syncs mail: [[dovecot]], where it begins, and [doveadm], where they begin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from replicator.config import values
from replicator.config.addresses import Address
from replicator.config.formatting import duration_text, path_text, quoted
from replicator.config.sections.user_servers import dovecot_auth_name
from replicator.config.source import Section, Source

EXAMPLE_DOVECOT = Address("127.0.0.1", 2425)


@dataclass(frozen=True, slots=True)
class DovecotConfig:
    """A Dovecot with which the node syncs its users' mail. `address`: the listener of its doveadm.

    `replicator`: its own replicator syncs with the cluster, too.

    `password_file`: its first line is the Dovecot's `doveadm_password`. `ca`: the file of the CA of its certificate;
    None: the CAs of the system. Without `tls`, the connection is not encrypted. `users`: patterns of the names of those
    whose mail is synced, with `*` and `?`. `sync_every_s`: how often the Dovecot is asked for changes of its own;
    `full_sync_every_s`: how often all mails are compared.
    """

    address: Address
    password_file: Path
    tls: bool = False
    ca: Path | None = None
    users: tuple[str, ...] = ("*",)
    sync_every_s: float = 300.0
    full_sync_every_s: float = values.DAY_S
    replicator: bool = False


def read_dovecots(source: Source, file: values.PathParser) -> tuple[DovecotConfig, ...]:
    """Read each [[dovecot]]."""
    if dovecot_auth_name(source) == "dovecot":
        return ()
    return tuple(_read_dovecot(section, file) for section in source.sections("dovecot"))


def _read_dovecot(section: Section, file: values.PathParser) -> DovecotConfig:
    address = section.take_required("address", values.address(lowest_port=1), EXAMPLE_DOVECOT)
    defaults = DovecotConfig(address, Path())
    dovecot = DovecotConfig(
        address=address,
        password_file=section.take_required("password_file", file, Path("dovecot.password")),
        tls=section.take("tls", values.boolean, not address.is_loopback),
        ca=section.take("ca", file, None),
        users=section.take("users", values.patterns, defaults.users),
        sync_every_s=section.take("sync_every", values.duration(1.0), defaults.sync_every_s),
        full_sync_every_s=section.take("full_sync_every", values.duration(1.0), defaults.full_sync_every_s),
        replicator=section.take("replicator", values.boolean, defaults.replicator),
    )
    if not dovecot.tls and not address.is_loopback:
        section.problem("tls", f"{address} is another machine, and the password opens all mail there: leave this out")
    if dovecot.ca is not None and not dovecot.tls:
        section.problem("ca", "it has no use without TLS; write `tls = true`, or leave this out")
    return dovecot


def format_dovecot(dovecot: DovecotConfig, directory: Path) -> str:
    """Return a [[dovecot]] as a file in `directory` has it."""
    password_file = path_text(dovecot.password_file, directory)
    return (
        "[[dovecot]]    # with which users' mail is synced\n"
        f"address = {quoted(str(dovecot.address))}\n"
        f"password_file = {password_file}    # its first line is the doveadm_password there\n"
        f"tls = {json.dumps(dovecot.tls)}\n"
        + (f"ca = {path_text(dovecot.ca, directory)}\n" if dovecot.ca is not None else "")
        + f"users = [{', '.join(map(quoted, dovecot.users))}]\n"
        f"sync_every = {duration_text(dovecot.sync_every_s)}    # to find its own changes\n"
        f"full_sync_every = {duration_text(dovecot.full_sync_every_s)}    # to compare all mails\n"
        f"replicator = {json.dumps(dovecot.replicator)}    # whether that of the Dovecot syncs with the cluster, too\n"
    )


@dataclass(frozen=True, slots=True)
class DoveadmConfig:
    """Syncs with Dovecots. `password_file`: its first line is the password that they give, `doveadm_password` there."""

    password_file: Path | None = None


def read_doveadm(section: Section, file: values.PathParser) -> DoveadmConfig:
    """Read [doveadm]."""
    return DoveadmConfig(section.take("password_file", file, None))


def format_doveadm(doveadm: DoveadmConfig, directory: Path) -> str:
    """Return [doveadm] as a file in `directory` has it; empty: it sets nothing."""
    if doveadm.password_file is None:
        return ""
    file = path_text(doveadm.password_file, directory)
    return f"[doveadm]\npassword_file = {file}    # its first line is Dovecot's doveadm_password\n"
