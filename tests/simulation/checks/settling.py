"""Checks that a cluster is settled: all nodes linked, all equal, nothing left to do, nothing left in memory."""

from __future__ import annotations

from collections.abc import Sized

import trio

from replicator.replication import timing
from replicator.store.db import queries
from replicator.store.log.forks import strays
from tests.replication.cluster import Node
from tests.simulation.machine import Machine
from tests.simulation.records.story import Story
from tests.store.harness import connection_of

SETTLE_S = 180.0  # after everything is healed
POLL_S = 0.25
REST_S = 15.0  # for what is left in memory to go; heartbeats go on
REST_UNANSWERED_S = (
    timing.LINK_REPLY_LONG_S + REST_S
)  # where replies came under other tags, requests end by their timeouts only


async def wait_until_settled(machines: list[Machine], story: Story, rest_s: float = REST_S) -> None:
    """Wait until the nodes are equal and idle; fail after `SETTLE_S` with the reason.

    Then memory has `rest_s` to empty, and they must still be equal and idle.
    """
    await trio.sleep(POLL_S)  # a node that has just gone on notices that it stood still, and links its peers anew
    with trio.move_on_after(SETTLE_S):
        while reason_unsettled(machines):  # noqa: ASYNC110 - many conditions, in virtual time
            await trio.sleep(POLL_S)
    reason = reason_unsettled(machines)
    if reason:
        story.say(f"it does not settle: {reason}")
    assert not reason, f"{SETTLE_S:.0f} s after all was healed: {reason}"
    with trio.move_on_after(rest_s):
        while leftovers(machines) or reason_unsettled(machines):  # noqa: ASYNC110 - the same
            await trio.sleep(POLL_S)
    assert not leftovers(machines), f"at rest there is still: {leftovers(machines)}"
    reason = reason_unsettled(machines)
    assert not reason, f"at rest: {reason}"


def reason_unsettled(machines: list[Machine]) -> str:
    """Return the reason why the nodes, which all run, are not equal and idle; empty if they are."""
    nodes = [machine.node for machine in machines]
    everybody = sorted(node.sid for node in nodes)
    for node in nodes:
        mastership = node.coordinator.mastership
        up = sorted(link.sid for link in node.coordinator.connections.links)
        if up != [sid for sid in everybody if sid != node.sid]:
            return f"{node.sid} has links to {up} only"
        if list(mastership.table.component) != everybody:
            return f"{node.sid} reaches {mastership.table.component} only"
        if not node.coordinator.elections.machine.settled:
            return f"{node.sid} has no settled term"
        if node.coordinator.durability.is_short:
            return f"{node.sid} finds too few nodes that have caught up"
    first = nodes[0]
    for node in nodes:
        if node.store.context != first.store.context:
            return f"{node.sid} has other entries than {first.sid}: {_difference(node, first)}"
        if node.store.waiting:
            return f"{len(node.store.waiting)} entries wait at {node.sid}: {sorted(node.store.waiting)[:3]}"
    for node in nodes:
        if _digests(node) != _digests(first):
            return f"{node.sid} shows something else than {first.sid}"
        for user in queries.users(connection_of(node.store)):
            if strays(connection_of(node.store), user):
                return f"mail of {user} lies in a folder that is gone at {node.sid}"
    return ""


def _difference(node: Node, other: Node) -> dict[str, tuple[int, int]]:
    mine, theirs = node.store.context, other.store.context
    pairs = {origin: (mine.get(origin, 0), theirs.get(origin, 0)) for origin in sorted({*mine, *theirs})}
    return {origin: pair for origin, pair in pairs.items() if pair[0] != pair[1]}


def _digests(node: Node) -> dict[bytes, bytes]:
    return {chain.id: chain.digest() for chain in queries.chains_of(connection_of(node.store), None)}


def leftovers(machines: list[Machine]) -> list[str]:
    """Return what nodes still hold in memory although no client or task wants anything."""
    found = []
    for machine in machines:
        node = machine.node
        coordinator = node.coordinator
        held_for: dict[str, Sized] = {
            "changes awaiting durability": coordinator.durability._waiting,
            "awaited entries": node.store._awaited,
            "jobs of the writer": node.store._writer._waiting,
            "questions for masters": coordinator.elections._questions,
            "mailboxes getting ready": coordinator.mastership._readying,
            "held WHO": coordinator.elections.machine._held,
            "mailboxes with branches": coordinator.fork_scheduler._suspects,
            "loading views": node.store.views._loading,
        }
        for what, held in held_for.items():
            if held:
                found.append(f"{node.sid}: {len(held)} {what}")
        for feed in coordinator.feeds.values():
            if feed.receiver._waiting or feed.receiver._waiting_bytes:
                found.append(f"{node.sid}: entries from {feed.link.sid} not yet written")
            if feed.link._answering:
                found.append(f"{node.sid}: {feed.link._answering} requests of {feed.link.sid}")
            if len(feed.link._pending) > 1:  # a PING
                found.append(f"{node.sid}: {len(feed.link._pending)} requests to {feed.link.sid}")
    return found
