"""A new database for a node that does not run, from its peers and what its damaged one still has (design section 11).

The node's links run without doors for clients. The new database lies beside the old one and takes its place in the end:
until then nothing is lost by an interruption, and the next rebuild goes on where this one was.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial

import trio

from replicator.config import Config
from replicator.environment import Environment
from replicator.errors import DataError, MailError
from replicator.node import DATABASE, attachments_of, make_directory
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.connections import REBUILDING
from replicator.replication.rebuild.rebuilder import Progress, Rebuild, RebuildError, Rebuilt
from replicator.store.db import schema
from replicator.store.repair import damaged_database, database_swap
from replicator.store.store import Store
from replicator.streams import Tls, certified_names, guarded, listen

log = logging.getLogger(__name__)


async def rebuild_node(
    config: Config, *, tell: Callable[[Progress], None], environment: Environment | None = None
) -> Rebuilt:
    """Replace the node's database, and set the old one aside. `tell` hears how far it is.

    Raises RebuildError if it cannot be done now, and then, as if it is cancelled, the old database stays in its place;
    the node can use it if nothing has come into the new one. Raises as `run_node`, too.
    """
    environment = environment or Environment()
    make_directory(config.node.data)
    path = config.node.data / DATABASE
    with schema.exclusive(path):
        with ExitStack() as failing:
            failing.callback(database_swap.give_up, path)
            try:
                rebuilt = await _filled(config, environment, tell)
            except (MailError, sqlite3.Error) as error:
                raise RebuildError(f"the new database fails: {error}; is the disk sound, and has it room?") from error
            failing.pop_all()
        date = datetime.fromtimestamp(environment.clock_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            aside = database_swap.take_place(path, date)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; the new database lies beside it; run this again") from error
    rebuilt.set_aside = str(aside) if aside else None
    return rebuilt


async def _filled(config: Config, environment: Environment, tell: Callable[[Progress], None]) -> Rebuilt:
    """Build the new database beside the old one; it is closed then."""
    path = config.node.data / DATABASE
    new = database_swap.replacement_of(path)
    origin = environment.new_origin(config.node.id)
    with ExitStack() as ended:
        ended.callback(damaged_database.discard, path)
        damaged = ended.enter_context(
            damaged_database.opened(await environment.run_in_thread(partial(damaged_database.legible, path)))
        )
        async with Store.open(new, origin, environment, attachments_of(config)) as store:
            await store.write(lambda tx: schema.claim(tx.connection, config.node.id, config.node.cluster))
            await store.write(lambda tx: schema.begin(tx.connection))  # in the damaged one's place, which had
            tls = Tls(config.tls)
            coordinator = Coordinator(config, store, environment, tls.dial, certified_names, capabilities=(REBUILDING,))
            async with trio.open_nursery() as nursery:
                if config.listen.peer:
                    sockets = await listen(config.listen.peer)
                    handler = guarded(lambda stream: coordinator.connections.accept(tls.accept(stream)))
                    await nursery.start(trio.serve_listeners, handler, sockets)
                nursery.start_soon(coordinator.run)
                log.info("node %s is rebuilt as %s", config.node.id, origin)
                rebuilt = await Rebuild(store, coordinator, environment, tell).run(damaged)
                nursery.cancel_scope.cancel()
    return rebuilt
