"""Expunged mail: its undelete, which the ledger records, and its removal at the end of the retention."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import trio

from replicator.replication.tasks.undelete import UndeleteTask
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.gc.expunged import Kept
from replicator.tasks import UndeleteOptions
from tests.replication.cluster import Node
from tests.simulation.bodies import holds_bodies
from tests.simulation.ledger import Ledger
from tests.simulation.machine import Machine
from tests.store.harness import connection_of

SKEW_S = 600.0  # of clocks, and of stamps given out by clocks that were ahead


class LedgerUndelete(UndeleteTask):
    """An undelete that the ledger records. `hears`: returns True if the node's answer reaches the client."""

    def __init__(
        self, options: UndeleteOptions, node: Node, ledger: Ledger, hears: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(options, node.store, node.coordinator, node.environment)
        self._ledger, self._hears = ledger, hears

    async def _submit(self, kept: Kept, stored: StoredBody) -> None:
        asked = self._ledger.asks_to_restore(kept.content_hash)
        await super()._submit(kept, stored)
        if self._hears():
            self._ledger.restored(kept.content_hash, asked)


async def forget_all(machines: list[Machine], keep_s: float) -> None:
    """End the retention of all expunged mail, and check that all bodies without a message go, and no others."""
    held = {machine.sid: _held(machine) for machine in machines}
    for machine in machines:
        await machine.node.coordinator.bodies._retention.keep_unnamed()
        machine.clock.ahead_s += keep_s + SKEW_S
    await trio.sleep(1)  # the retention follows clocks only as time goes by
    for machine in machines:
        await machine.node.coordinator.bodies._retention.expire()
        _check(machine, held[machine.sid])


def _held(machine: Machine) -> list[bytes]:
    """Return the hashes of the messages shown whose bodies are on this disk."""
    shown = _hashes(connection_of(machine.node.store), "SELECT DISTINCT content_hash FROM by_uid")
    return [content_hash for content_hash in shown if holds_bodies(machine, [content_hash])]


def _check(machine: Machine, held: list[bytes]) -> None:
    connection = connection_of(machine.node.store)
    gone = [content_hash.hex() for content_hash in held if not holds_bodies(machine, [content_hash])]
    assert not gone, f"{machine.sid} has forgotten texts of messages that it shows: {gone[:3]}"
    kept = _hashes(connection, "SELECT guid FROM expunged")
    assert not kept, f"{machine.sid} still keeps {len(kept)} expunged messages"
    named = "SELECT content_hash FROM by_uid"
    left = _hashes(connection, f"SELECT hash FROM content WHERE hash NOT IN ({named})")
    assert not left, f"{machine.sid} still has texts that no message has: {[one.hex() for one in left[:3]]}"
    astray = _hashes(connection, "SELECT holder FROM attachment WHERE text NOT IN (SELECT hash FROM content)")
    assert not astray, f"{machine.sid} still holds parts of texts that are gone: {astray[:3]}"


def _hashes(connection: sqlite3.Connection, query: str) -> list[bytes]:
    return [value for (value,) in connection.execute(query).fetchall()]
