"""Rebuilding the database of a stopped node from its peers and its damaged database (design section 11).

The node's links run while its doors stay shut. The new database is built beside the old one and replaces it at the end:
until then an interruption loses nothing, and the next rebuild continues where this one stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial

import trio

from replicator.config import Config
from replicator.errors import DataError, MailError
from replicator.network.certificates import Certificates
from replicator.network.streams import Tls, certified, guarded, listen
from replicator.node_parts import attachments_of, make_directory
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.handshake import REBUILDING
from replicator.replication.rebuild.rebuilder import Progress, Rebuild, RebuildError, Rebuilt
from replicator.runtime.addresses import client_address
from replicator.runtime.environment import Environment
from replicator.store.db import schema
from replicator.store.repair import damaged_database, database_swap
from replicator.store.store import Store

log = logging.getLogger(__name__)


async def rebuild_node(
    config: Config, *, tell: Callable[[Progress], None], environment: Environment | None = None
) -> Rebuilt:
    """Replace the node's database and set the old one aside. `tell` is called with the progress.

    Raises RebuildError if the rebuild is impossible now, and whatever `run_node` raises. On error or cancellation the
    old database stays in place, and the node can use it as long as nothing has been taken into the new one.
    """
    environment = environment or Environment()
    make_directory(config.node.data)
    path = config.node.database
    with schema.exclusive(path):
        with ExitStack() as failing:
            failing.callback(database_swap.give_up, path)
            try:
                rebuilt = await _filled(config, environment, tell)
            except MailError as error:
                raise RebuildError(
                    f"cannot fill the new database: {error}; is the disk sound, and does it have room?"
                ) from error
            failing.pop_all()
        date = datetime.fromtimestamp(environment.clock_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            aside = database_swap.take_place(path, date)
        except OSError as error:
            raise DataError(
                f"{path}: {error.strerror}; the new database is complete and lies beside it; run this again"
            ) from error
    rebuilt.set_aside = str(aside) if aside else None
    return rebuilt


async def _filled(config: Config, environment: Environment, tell: Callable[[Progress], None]) -> Rebuilt:
    """Build the new database beside the old one and close it."""
    path = config.node.database
    new = database_swap.replacement_of(path)
    origin = environment.new_origin(config.node.id)
    with ExitStack() as ended:
        ended.callback(damaged_database.discard, path)
        damaged = ended.enter_context(
            damaged_database.opened(await environment.run_in_thread(partial(damaged_database.legible, path)))
        )
        async with Store.open(new, origin, environment, attachments_of(config), config.limits) as store:
            await store.write(lambda tx: schema.claim(tx.connection, config.node.id, config.node.cluster))
            await store.write(lambda tx: schema.begin(tx.connection))  # as the damaged one did
            tls = Tls(Certificates(config.tls))
            coordinator = Coordinator(config, store, environment, tls.dial, certified, capabilities=(REBUILDING,))
            async with trio.open_nursery() as nursery:
                if config.listen.peer:
                    sockets = await listen(config.listen.peer)
                    handler = guarded(
                        lambda stream: coordinator.connections.accept(tls.accept(stream), client_address(stream))
                    )
                    await nursery.start(trio.serve_listeners, handler, sockets)
                nursery.start_soon(coordinator.run)
                log.info("rebuilding node %s as %s", config.node.id, origin)
                rebuilt = await Rebuild(store, coordinator, environment, tell).run(damaged)
                nursery.cancel_scope.cancel()
    return rebuilt
