"""A repair plan in a bucket."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import trio

from benchmarks.clients.wire import Address
from replicator.cli.plans.plan_files import Plan
from replicator.cli.target import CommandError
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from replicator.tasks import PlannedMailbox
from resync.plan import MANIFEST
from tests.inventory.planning import planned, write_plan
from tests.objects.s3_server import BUCKET, needs_rclone

pytestmark = needs_rclone


def test_plan_in_a_bucket_is_read_like_one_in_a_directory(server: Address, tmp_path: Path) -> None:
    rows = [planned("alice", bytes([number]) * 16, 7, {"dc1": None, "dc2": ("dc2.a", 3)}) for number in range(250)]
    directory = write_plan(tmp_path / "plan", ("dc1", "dc2"), {"dc1": rows[:200], "dc2": rows[200:]})
    url, endpoint = f"s3://{BUCKET}/{uuid4()}", f"http://{server.host}:{server.port}"
    store = ObjectStore(url, Environment(), endpoint)

    async def upload(*names: str) -> None:
        for name in names:
            await store.put(name, [(directory / name).read_bytes()])

    files = [str(path.relative_to(directory)) for path in directory.rglob("*.parquet")]
    trio.run(upload, *files)
    with pytest.raises(CommandError, match=f"{url} has no plan.json"):
        Plan(url, endpoint)
    trio.run(upload, MANIFEST)
    plan = Plan(url, endpoint)
    assert plan.manifest.mailboxes == {"dc1": 200, "dc2": 50}
    found = list(plan.mailboxes(("dc1", "dc2"), trees=False))
    assert found == list(Plan(str(directory), None).mailboxes(("dc1", "dc2"), trees=False))
    assert [one.mailbox for one in found] == [row["mailbox"].hex() for row in rows]
    assert isinstance(found[0], PlannedMailbox)
    assert list(plan.mailboxes(("dc1", "dc2"), trees=True)) == []
