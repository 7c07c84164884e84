"""What a configuration says, and what it says where the file is silent.

Paths are absolute, durations are seconds, sizes are bytes. The defaults stand here and nowhere else; two of them
depend on other keys: `node.data` is the node's id, and `durability.copies` is 2 or, on a single node, 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from protocol.units import GIB, KIB
from replicator.addresses import is_loopback

DAY_S = 86_400.0


class Address(NamedTuple):
    """Where to listen or connect. Prints as it is configured: `host:port`, IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether nothing but this machine is on the other end."""
        return is_loopback(self.host)


class WhenShort(StrEnum):
    """What a write does while fewer than `durability.copies` nodes can be reached."""

    PROCEED = "proceed"
    REFUSE = "refuse"


class Scope(StrEnum):
    """What has one master (design section 5)."""

    MAILBOX = "mailbox"
    USER = "user"
    DOMAIN = "domain"
    GLOBAL = "global"
    DYNAMIC = "dynamic"


class UidConflict(StrEnum):
    """What a merge does to UIDs that collide (design section 3)."""

    RENUMBER = "renumber"
    UIDVALIDITY = "uidvalidity"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """This node. `priority`: the reachable node with the lowest is the root, then the lowest id."""

    id: str
    data: Path
    cluster: str = "mail"
    priority: int = 100


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Which doors are open and where. None: not served."""

    peer: Address | None = None
    imap: Address | None = None
    lmtp: Address | None = None
    http: Address | None = None


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another node of the cluster."""

    id: str
    address: Address


@dataclass(frozen=True, slots=True)
class DurabilityConfig:
    """How many nodes have a change on disk before the client hears OK, this one included."""

    copies: int = 2
    when_short: WhenShort = WhenShort.PROCEED


@dataclass(frozen=True, slots=True)
class MastershipConfig:
    """Who numbers changes, and how soon a silent node is taken for dead."""

    scope: Scope = Scope.MAILBOX
    heartbeat_s: float = 1.0
    timeout_s: float = 4.0


@dataclass(frozen=True, slots=True)
class UsersConfig:
    """Who may have mail here (`replicator.users`). The file need not exist yet."""

    passwd_file: Path


@dataclass(frozen=True, slots=True)
class ConflictConfig:
    """How a merge settles colliding UIDs."""

    uid: UidConflict = UidConflict.RENUMBER


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How much history is kept for nodes that are away."""

    keep_s: float = 7 * DAY_S
    max_size_bytes: int = GIB


@dataclass(frozen=True, slots=True)
class ContentConfig:
    """Where large message parts lie, which nodes may share, and for how long after they were expunged.

    `attachments`: the directory; None: in the node's own data.
    """

    inline_max_bytes: int = 64 * KIB
    keep_expunged_s: float = 14 * DAY_S
    attachments: Path | None = None


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where checkpoints go: `file:///absolute/path` or `s3://bucket/prefix`, at Amazon's or at `endpoint`.

    `shared`: all nodes that say so by the same URL reach the same objects.
    """

    url: str
    endpoint: str | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files. With `ca`, nodes prove themselves to each other: both present a certificate that it signed."""

    certificate: Path
    key: Path
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A node's whole configuration, checked."""

    node: NodeConfig
    users: UsersConfig
    checkpoint: CheckpointConfig
    listen: ListenConfig = field(default_factory=ListenConfig)
    peers: tuple[PeerConfig, ...] = ()
    durability: DurabilityConfig = field(default_factory=DurabilityConfig)
    mastership: MastershipConfig = field(default_factory=MastershipConfig)
    conflict: ConflictConfig = field(default_factory=ConflictConfig)
    log: LogConfig = field(default_factory=LogConfig)
    content: ContentConfig = field(default_factory=ContentConfig)
    tls: TlsConfig | None = None


def default_copies(nodes: int) -> int:
    """`durability.copies` where the file does not say: two, if there are two."""
    return min(DurabilityConfig().copies, nodes)


def default_config(
    sid: str, directory: Path, *, listen: ListenConfig | None = None, peers: tuple[PeerConfig, ...] = ()
) -> Config:
    """The configuration that a file in `directory` gives if it says no more than this."""
    directory = directory.absolute()
    return Config(
        node=NodeConfig(sid, directory / sid),
        users=UsersConfig(directory / "users.passwd"),
        checkpoint=CheckpointConfig((directory / "checkpoints").as_uri()),
        listen=listen or ListenConfig(),
        peers=peers,
        durability=DurabilityConfig(copies=default_copies(1 + len(peers))),
    )
