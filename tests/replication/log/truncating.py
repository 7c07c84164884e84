"""Truncate logs, and wait until nodes agree about what is left of them."""

from functools import partial

from replicator.status import CheckpointStatus
from replicator.store.db import queries
from replicator.store.log.entry_removal import collect
from tests.replication.cluster import Cluster, Node, until


async def forget_log(node: Node) -> None:
    """Remove all settled entries from the node's log."""
    while (await node.store.write(partial(collect, upto=dict(node.store.context)))).entries:
        pass
    assert await node.store.read(queries.log_collected)


async def logs_agree(nodes: Cluster) -> None:
    """Wait until all nodes have, or no longer need, the same entries, and show the same."""
    await until(lambda: all(node.store.context == nodes["dc1"].store.context for node in nodes.all()))
    await nodes.converged()
    await until(lambda: not any(node.coordinator.state_transfer.is_running for node in nodes.all()))


SAID_S = 45.0  # nodes announce what they have settled every ten seconds, pass it on, and look at it every ten seconds


async def log_entries(node: Node) -> int:
    return (await node.store.read(queries.log_counts))[0]


async def checkpoint(node: Node) -> CheckpointStatus:
    return await node.coordinator.log_truncation.checkpoint_now()
