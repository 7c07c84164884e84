"""A node that pushes mail to a Dovecot whose own replicator syncs with the node, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import trio
from prometheus_client import CollectorRegistry

from replicator.dsync.users import Syncing
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import REPLICATOR
from tests.dsync.pushed import QUIET_S, config_of, listening_dovecot, pusher_of, running, syncs, until_equal
from tests.dsync.sides import DovecotSide, History, NodeSide, door, node_replicas
from tests.effort import examples
from tests.one_node import one_node


async def play(directory: Path, location: str) -> None:
    """Let both sides change INBOX again and again, each time until it is the same, and then until nobody syncs."""
    random, registry, syncing = Random(location), CollectorRegistry(), Syncing()
    async with one_node(directory) as mail, door(node_replicas(mail, wall_clock_ms), syncing=syncing) as here:
        with listening_dovecot(location, REPLICATOR.format(address=here)) as (server, address):
            # Now and then Dovecot's replicator does not bring an expunge that came during a sync: a round does.
            config = replace(config_of(address), replicator=True, sync_every_s=5.0)
            histories = [History(side, random) for side in (DovecotSide(server), NodeSide(mail))]
            async with running(pusher_of(mail, address, config=config, registry=registry, syncing=syncing)):
                for _ in range(examples(5, 20)):
                    async with trio.open_nursery() as nursery:
                        for history in histories:
                            nursery.start_soon(history.go_on)
                    await until_equal(server, mail)
                await trio.sleep(QUIET_S)
                before = syncs(registry, address)
                await trio.sleep(QUIET_S)
                most = before + 2  # a round, and what follows if it has found something
                assert syncs(registry, address) <= most, "both sides call each other again and again"
                await until_equal(server, mail)
