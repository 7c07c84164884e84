"""A power cut keeps all acknowledged operations.

In these tests the write-ahead log only grows, and its content at an acknowledgement was synced by then. So a disk after
a power cut is the database as of the start, with the write-ahead log cut and torn anywhere after that point.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from replicator.runtime.environment import Environment
from replicator.store.db.schema import PAGE_BYTES
from replicator.store.store import Store
from tests.effort import first
from tests.store.consistency import check_file
from tests.store.harness import INBOX, connection_of, creating, expunging, flagging, guid, open_store, saving

CUTS = 40


@dataclass(frozen=True)
class Acknowledged:
    """The size of the write-ahead log when the node had acknowledged this many entries."""

    wal_bytes: int
    seq: int


async def run_load(path: Path, rng: random.Random) -> list[Acknowledged]:
    """Make changes of all kinds. Leave `start.db`, the database before them, and `start.db-wal`, what followed."""
    acknowledged = []
    async with Store.open(path / "node.db", "dc1.a", Environment()) as store:
        connection_of(store).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection_of(store).execute("PRAGMA wal_autocheckpoint = 0")
        wal = path / "node.db-wal"
        shutil.copy(path / "node.db", path / "start.db")
        for number in range(60):
            job = rng.choice([
                saving(rng.randbytes(rng.randrange(20_000)), guid(number)),
                saving(b"text", guid(number)),
                flagging(*range(1, 20), added=[f"$Flag{number}"]),
                expunging(rng.randint(1, 20)),
                creating(f"a/{number}", guid(1000 + number)),
            ])  # fmt: skip
            await store.write(job)
            acknowledged.append(Acknowledged(wal.stat().st_size, store.context.get("dc1.a", 0)))
        shutil.copy(wal, path / "start.db-wal")
    return acknowledged


@pytest.mark.parametrize("seed", first(1, [1, 2]))
async def test_acknowledged_changes_survive_a_power_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged = await run_load(tmp_path, rng)
    wal = (tmp_path / "start.db-wal").read_bytes()
    for number in range(CUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(tmp_path / "start.db", folder / "node.db")
        cut = rng.randrange(len(wal))
        torn = rng.choice([b"", rng.randbytes(10_000), bytes(10_000), wal[cut + PAGE_BYTES :]])
        (folder / "node.db-wal").write_bytes(wal[:cut] + torn)
        synced = max((item.seq for item in acknowledged if item.wal_bytes <= cut), default=0)
        async with open_store(folder, "dc1.b") as store:
            assert synced <= store.context.get("dc1.a", 0) <= acknowledged[-1].seq
            view = await store.view(INBOX)
            assert (await store.write(saving(b"next", guid(5000)))).uids == (view.uidnext - 1,)
    check_file(tmp_path / "node.db")
