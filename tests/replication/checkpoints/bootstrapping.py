"""A node that begins with the checkpoints of another one, in a cluster of one."""

from collections.abc import Sequence
from pathlib import Path

from trio.testing import MockClock

from protocol.values import Context
from replicator.replication.checkpoints.bootstrap import Bootstrap
from replicator.runtime.objects import ObjectStore
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home
from replicator.store.store import Store
from tests.replication.cluster import virtual_environment


class Alone:
    """A cluster without other nodes."""

    def lacking(self, context: Context) -> Sequence[str]:  # noqa: ARG002
        return ()


def archive_of(path: Path, sid: str, clock: MockClock) -> Archive:
    environment = virtual_environment(clock, sid)
    return Archive(ObjectStore((path / "objects").as_uri(), environment), Home("mail", sid))


def bootstrap_of(store: Store, path: Path, clock: MockClock) -> Bootstrap:
    return Bootstrap(store, archive_of(path, "dc9", clock), virtual_environment(clock, "dc9").clock_ms)
