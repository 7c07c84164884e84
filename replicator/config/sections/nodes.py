"""The nodes of a cluster: [node], [[peer]], [durability], [mastership] and [conflict]."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from replicator.config import values
from replicator.config.addresses import Address, PeerAddress
from replicator.config.formatting import duration_text, path_text, quoted
from replicator.config.source import Section

EXAMPLE_SID = "dc1"
EXAMPLE_ADDRESS: PeerAddress = Address("127.0.0.1", 4421)
PRIORITY_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """This node. `priority`: the reachable node with the lowest priority, then the lowest id, is the root.

    `removed`: ids of nodes that have left the cluster for good, for which the log is not kept.
    """

    id: str
    data: Path
    cluster: str = "mail"
    priority: int = 100
    removed: tuple[str, ...] = ()

    @property
    def own_socket(self) -> Path:
        """The socket in the file system by which commands reach the node that runs with this configuration."""
        return self.data / "http.sock"

    @property
    def database(self) -> Path:
        """The file of the node's database."""
        return self.data / "node.db"

    @property
    def dovecots(self) -> Path:
        """The directory of what the node remembers of syncs with Dovecots."""
        return self.data / "dovecots"

    @property
    def cluster_users(self) -> Path:
        """The passwd-file that the node writes if users come from the cluster."""
        return self.data / "users.passwd"


def default_node(sid: str, directory: Path) -> NodeConfig:
    """Return a node that has its data beside its configuration, in `directory`."""
    return NodeConfig(sid, directory / sid)


def read_node(section: Section, directory: Path) -> NodeConfig:
    """Read [node]."""
    sid = section.take_required("id", values.sid, EXAMPLE_SID)
    defaults = default_node(sid, directory)
    return NodeConfig(
        id=sid,
        data=section.take("data", values.path(directory), defaults.data),
        cluster=section.take("cluster", values.cluster_name, defaults.cluster),
        priority=section.take("priority", values.whole_number(0, PRIORITY_MAX), defaults.priority),
        removed=section.take("removed", values.sids, ()),
    )


def format_node(node: NodeConfig, directory: Path) -> str:
    """Return [node] as a file in `directory` has it."""
    return (
        "[node]\n"
        f"id = {quoted(node.id)}\n"
        f"data = {path_text(node.data, directory)}    # paths are relative to this file\n"
        f"cluster = {quoted(node.cluster)}\n"
        f"priority = {node.priority}    # the reachable node with the lowest priority, then the lowest id, is root\n"
        + (f"removed = {json.dumps(node.removed)}    # nodes that have left for good\n" if node.removed else "")
    )


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another node of the cluster."""

    id: str
    address: PeerAddress


def read_peer(section: Section, directory: Path) -> PeerConfig:
    """Read a [[peer]]."""
    return PeerConfig(
        id=section.take_required("id", values.sid, EXAMPLE_SID),
        address=section.take_required("address", values.peer_address(1, directory), EXAMPLE_ADDRESS),
    )


def format_peer(peer: PeerConfig) -> str:
    """Return a [[peer]] as a file has it."""
    return f"[[peer]]\nid = {quoted(peer.id)}\naddress = {quoted(str(peer.address))}\n"


class WhenShort(StrEnum):
    """Behaviour of a write while fewer than `durability.copies` nodes can be reached."""

    PROCEED = "proceed"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class DurabilityConfig:
    """Nodes, including this one, that must have a change on disk before the client hears OK."""

    copies: int = 2
    when_short: WhenShort = WhenShort.PROCEED


def default_copies(nodes: int) -> int:
    """Return the default of `durability.copies`: two, or one on a single node."""
    return min(DurabilityConfig().copies, nodes)


def read_durability(section: Section, nodes: int) -> DurabilityConfig:
    """Read [durability] of a cluster with so many nodes."""
    return DurabilityConfig(
        copies=section.take(
            "copies", values.whole_number(1, nodes, "this node and each [[peer]]"), default_copies(nodes)
        ),
        when_short=section.take("when_short", values.choice(WhenShort), DurabilityConfig().when_short),
    )


def format_durability(durability: DurabilityConfig) -> str:
    """Return [durability] as a file has it."""
    return (
        "[durability]\n"
        f"copies = {durability.copies}    # nodes with a change on disk before its client hears OK\n"
        f'when_short = {quoted(durability.when_short)}    # "proceed" or "refuse" changes while fewer are reachable\n'
    )


class Scope(StrEnum):
    """Unit of mail that has one master (design section 5)."""

    MAILBOX = "mailbox"
    USER = "user"
    DOMAIN = "domain"
    GLOBAL = "global"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class MastershipConfig:
    """Scope of masters, and the timing after which a silent node counts as dead."""

    scope: Scope = Scope.MAILBOX
    heartbeat_s: float = 1.0
    timeout_s: float = 4.0


def read_mastership(section: Section) -> MastershipConfig:
    """Read [mastership]."""
    defaults = MastershipConfig()
    # Faster heartbeats would measure the scheduler.
    pace = values.duration(lowest_s=0.01)
    mastership = MastershipConfig(
        scope=section.take("scope", values.choice(Scope), defaults.scope),
        heartbeat_s=section.take("heartbeat", pace, defaults.heartbeat_s),
        timeout_s=section.take("timeout", pace, defaults.timeout_s),
    )
    if mastership.timeout_s < 2 * mastership.heartbeat_s:
        least = f"must be at least twice the heartbeat of {mastership.heartbeat_s:g} s"
        section.problem("timeout", f"{least}, or one late heartbeat breaks the link; it is {mastership.timeout_s:g} s")
    return mastership


def format_mastership(mastership: MastershipConfig) -> str:
    """Return [mastership] as a file has it."""
    return (
        "[mastership]\n"
        f'scope = {quoted(mastership.scope)}    # or "user", "domain", "global", "dynamic"\n'
        f"heartbeat = {duration_text(mastership.heartbeat_s)}\n"
        f"timeout = {duration_text(mastership.timeout_s)}\n"
    )


class UidConflict(StrEnum):
    """Treatment of colliding UIDs by a merge (design section 3)."""

    RENUMBER = "renumber"
    UIDVALIDITY = "uidvalidity"


@dataclass(frozen=True, slots=True)
class ConflictConfig:
    """Treatment of colliding UIDs by a merge."""

    uid: UidConflict = UidConflict.RENUMBER


def read_conflict(section: Section) -> ConflictConfig:
    """Read [conflict]."""
    return ConflictConfig(section.take("uid", values.choice(UidConflict), ConflictConfig().uid))


def format_conflict(conflict: ConflictConfig) -> str:
    """Return [conflict] as a file has it."""
    return f'[conflict]\nuid = {quoted(conflict.uid)}    # or "uidvalidity"\n'
