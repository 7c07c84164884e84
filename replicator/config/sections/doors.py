"""The doors of a node: [listen], [lmtp], [http], [workers]; for proxies before them [proxy] and [[cluster]]."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path

from replicator.config import values
from replicator.config.addresses import Address, Network, PeerAddress
from replicator.config.formatting import path_text, quoted
from replicator.config.source import Section

WORKERS_MAX = 8
SMALL_CORES = 2


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Addresses of the doors. None: the door stays shut."""

    peer: PeerAddress | None = None
    imap: Address | None = None
    lmtp: Address | None = None
    http: Address | None = None
    imaps: Address | None = None
    socketmap: Address | None = None
    doveadm: Address | None = None


def read_listen(section: Section, directory: Path) -> ListenConfig:
    """Read [listen]."""

    def door(key: str) -> Address | None:
        return section.take(key, values.address(lowest_port=0), None)

    peer = section.take("peer", values.peer_address(0, directory), None)
    return ListenConfig(
        peer=peer,
        imap=door("imap"),
        imaps=door("imaps"),
        lmtp=door("lmtp"),
        socketmap=door("socketmap"),
        doveadm=door("doveadm"),
        http=door("http"),
    )


def format_listen(listen: ListenConfig) -> str:
    """Return [listen] as a file has it."""
    doors = {key.name: getattr(listen, key.name) for key in fields(listen)}
    lines = [f"{door} = {quoted(str(address))}\n" for door, address in doors.items() if address is not None]
    return "[listen]    # leave a line out to switch that listener off\n" + "".join(lines)


@dataclass(frozen=True, slots=True)
class LmtpConfig:
    """Delivery. `aliases`: the file of aliases and catch-all addresses; None: there are none."""

    aliases: Path | None = None


def read_lmtp(section: Section, file: values.PathParser) -> LmtpConfig:
    """Read [lmtp]."""
    return LmtpConfig(section.take("aliases", file, None))


def format_lmtp(lmtp: LmtpConfig, directory: Path) -> str:
    """Return [lmtp] as a file in `directory` has it; empty: it sets nothing."""
    if lmtp.aliases is None:
        return ""
    return f"[lmtp]\naliases = {path_text(lmtp.aliases, directory)}    # as postmap(1) reads them\n"


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP listener. `tokens`: the file of its tokens; None: every client that can connect may do everything.

    `directories`: absolute paths and `s3://` URLs below which the holder of a token may have inventories written; None:
    `inventories` in `node.data` and below `checkpoint.url`.
    """

    tokens: Path | None = None
    directories: tuple[str, ...] | None = None


def read_http(section: Section, directory: Path) -> HttpConfig:
    """Read [http]."""
    return HttpConfig(
        tokens=section.take("tokens", values.path(directory), None),
        directories=section.take("directories", values.places(directory), None),
    )


def format_http(http: HttpConfig, directory: Path) -> str:
    """Return [http] as a file in `directory` has it; empty: it sets nothing."""
    if http == HttpConfig():
        return ""
    tokens = f"tokens = {path_text(http.tokens, directory)}\n" if http.tokens else ""
    if http.directories is None:
        return f"[http]\n{tokens}"
    return f"[http]\n{tokens}directories = [{', '.join(map(quoted, http.directories))}]\n"


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """Numbers of processes. `doors`: processes that serve IMAP and LMTP; 0: the node's one process serves them."""

    doors: int = 0

    @classmethod
    def of_cores(cls, cores: int) -> WorkersConfig:
        """Return the numbers for a machine with so many cores: one core is left to the node's own process.

        Two cores are too few: what doors and core tell each other takes as much as the second core gives.
        """
        return cls(0 if cores <= SMALL_CORES else min(cores - 1, WORKERS_MAX))


def read_workers(section: Section) -> WorkersConfig:
    """Read [workers]. How many processes there are without it depends on the machine."""
    defaults = WorkersConfig.of_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    return WorkersConfig(section.take("doors", values.whole_number(0, WORKERS_MAX), defaults.doors))


def format_workers(workers: WorkersConfig) -> str:
    """Return [workers] as a file has it."""
    return f"[workers]\ndoors = {workers.doors}    # processes that serve IMAP and LMTP; 0: none\n"


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Networks of proxies in front of the doors for mail. They name each client in a header (PROXY protocol).

    `private`: networks of proxies that protect clients' passwords themselves, whether they send a header or not, and
    whose lines to the node nobody else can read: the node takes passwords from them without TLS.
    """

    trusted: tuple[Network, ...] = ()
    private: tuple[Network, ...] = ()


def read_proxy(section: Section) -> ProxyConfig:
    """Read [proxy]."""
    defaults = ProxyConfig()
    return ProxyConfig(
        trusted=section.take("trusted", values.networks, defaults.trusted),
        private=section.take("private", values.networks, defaults.private),
    )


def format_proxy(proxy: ProxyConfig) -> str:
    """Return [proxy] as a file has it; empty: it sets nothing."""
    if proxy == ProxyConfig():
        return ""
    lists = {"trusted": proxy.trusted, "private": proxy.private}
    return "[proxy]\n" + "".join(
        f"{key} = {json.dumps([str(network) for network in networks])}\n" for key, networks in lists.items() if networks
    )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster of the site, this one or another, and where proxies find its doors for mail."""

    name: str
    imap: Address | None = None
    lmtp: Address | None = None


def read_cluster(section: Section) -> ClusterConfig:
    """Read a [[cluster]]."""
    return ClusterConfig(
        name=section.take_required("name", values.cluster_name, "mail"),
        imap=section.take("imap", values.address(1), None),
        lmtp=section.take("lmtp", values.address(1), None),
    )


def format_cluster(cluster: ClusterConfig) -> str:
    """Return a [[cluster]] as a file has it."""
    doors = {"imap": cluster.imap, "lmtp": cluster.lmtp}
    lines = "".join(f'{door} = "{address}"\n' for door, address in doors.items() if address)
    return f'[[cluster]]    # of the site, for proxies\nname = "{cluster.name}"\n{lines}'
