"""Counts of rows that lie in the database until something is done about them, such as bodies that are to be fetched.

There may be millions, so that counting them takes seconds. They are counted at leisure: on a connection of its own, and
with pauses many times as long as the count took.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import trio

from replicator.errors import DatabaseFailedError
from replicator.replication import timing
from replicator.store.bodies import deletion_candidates
from replicator.store.bodies.body_rows import lacking_count
from replicator.store.db.queries import Connection
from replicator.store.gc import expunged
from replicator.store.log.pending_resync import count as postponed_count
from replicator.store.store import Store

PAUSE_SHARE = 50  # times as long as a count took: so counts take at most 2 % of one processor, and of the disk


class BacklogCounts(NamedTuple):
    """The counts, as of one moment."""

    postponed: int
    texts_lacking: int
    expunged_messages: int
    expunged_bytes: int
    deletion_candidates: int
    outdated_outlines: int


async def count_at_leisure(
    store: Store, outdated: Callable[[Connection], int], show: Callable[[BacklogCounts], None]
) -> None:
    """Count and show, with pauses, until cancelled. While the database fails, the last counts stay.

    `outdated` returns the number of outlines of an earlier version.
    """
    count = partial(_count, outdated=outdated)
    while True:
        began = trio.current_time()
        with suppress(DatabaseFailedError):  # `status` and health say so
            async with store.reader() as reader:
                show(await reader.read(count))
        took_s = trio.current_time() - began
        await trio.sleep(max(timing.NODE_METRICS_COUNT_EVERY_S, PAUSE_SHARE * took_s))


def _count(connection: Connection, outdated: Callable[[Connection], int]) -> BacklogCounts:
    messages, size_bytes = expunged.totals(connection)
    return BacklogCounts(
        postponed_count(connection),
        lacking_count(connection),
        messages,
        size_bytes,
        deletion_candidates.count(connection),
        outdated(connection),
    )
