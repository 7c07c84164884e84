"""Make repair plans for a cluster, and apply them."""

from collections.abc import Iterable
from functools import partial

from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.tasks import ApplyOptions, ApplyStatus, PlannedMailbox
from tests.replication.cluster import Cluster, Node
from tests.replication.tasks.running import run_task


async def plan(nodes: Cluster, sids: Iterable[str] = ()) -> tuple[PlannedMailbox, ...]:
    """Make a plan of all that these nodes show differently, with mailboxes first: nodes must reorder them."""
    chains: dict[str, dict[bytes, Chain]] = {}
    for sid in sids or nodes.nodes:
        found = await nodes[sid].store.read(partial(queries.chains_of, user=None))
        chains[sid] = {chain.id: chain for chain in found}
    known = {chain.id: chain for of_node in chains.values() for chain in of_node.values()}
    planned = []
    for chain in sorted(known.values(), key=lambda chain: (-chain.uidvalidity, chain.id)):
        shown = {sid: of_node.get(chain.id) for sid, of_node in chains.items()}
        if len({one and one.digest() for one in shown.values()}) > 1:
            heads = {sid: one.head if one else None for sid, one in shown.items()}
            planned.append(PlannedMailbox(chain.user, chain.id.hex(), chain.uidvalidity, heads))
    return tuple(planned)


async def apply(node: Node, options: ApplyOptions) -> ApplyStatus:
    status = await run_task(node, options, ApplyStatus)
    assert (status.state, status.error, status.done) == ("done", None, len(options.mailboxes))
    assert sum(status.outcomes.values()) == status.done == status.total
    assert len(status.undone) == sum(
        count for outcome, count in status.outcomes.items() if outcome not in {"equal", "repaired"}
    )
    return status
