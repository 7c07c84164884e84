"""Rounds of checkpoints to a real S3 server over a line that fails now and then."""

from pathlib import Path
from uuid import uuid4

import pytest
import trio

from benchmarks.clients.wire import Address
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from replicator.store.store import Store
from tests.objects.faulty_line import UNAVAILABLE, Fault, faulty_line
from tests.objects.s3_server import BUCKET, needs_rclone
from tests.replication.checkpoints.one_store import Cluster, Running, change
from tests.store.consistency import check_file
from tests.store.harness import save


@needs_rclone
@pytest.mark.parametrize(
    "faults",
    [
        (),
        (Fault(answer=UNAVAILABLE), Fault(answer=UNAVAILABLE)),
        (Fault(forth_bytes=200), Fault(back_bytes=20), Fault(forth_bytes=700)),
    ],
    ids=["none", "503", "cut"],
)
async def test_round_to_s3_completes_despite_faults(tmp_path: Path, server: Address, faults: tuple[Fault, ...]) -> None:
    environment = Environment()
    with faulty_line(server, *faults) as line:
        objects = ObjectStore(f"s3://{BUCKET}/{uuid4()}", environment, line.endpoint)
        async with Store.open(tmp_path / "node.db", "dc1.1", environment) as store, trio.open_nursery() as nursery:
            node = Running(store, objects, environment, Cluster())
            nursery.start_soon(node.log_truncation.run)
            await change(store)
            with trio.fail_after(60):
                status = await node.log_truncation.checkpoint_now()
                assert (status.saved, status.in_force) == (3, True)
                assert await node.objects() == await node.listed()
                await node.assert_sound()
                await save(store, 100)
                await node.assert_sound()
                assert (await node.log_truncation.checkpoint_now()).saved == 1
                assert await node.objects() == await node.listed()
            nursery.cancel_scope.cancel()
    check_file(tmp_path / "node.db")
