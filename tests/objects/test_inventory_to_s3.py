"""Inventories that are written to a bucket, file by file, with the manifest last."""

from __future__ import annotations

import random
import re
from contextlib import aclosing
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from benchmarks.clients.wire import Address
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore, ObjectStoreError
from replicator.store.inventory import parquet
from replicator.store.inventory.conversation import Done
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.targets import Bucket, target_of, whole_or_nothing
from replicator.store.inventory.writing import InventoryWriter
from resync.inventory import MANIFEST
from tests.inventory import expected
from tests.inventory.reading_back import ORDER, Listener, dc7, read_back
from tests.objects.faulty_line import Fault, faulty_line
from tests.objects.s3_server import BUCKET, needs_rclone
from tests.store.harness import INBOX
from tests.store.memory_cluster import save
from tests.store.memory_node import MemoryNode

pytestmark = needs_rclone

MARK = re.compile(r"\.inventory\.json\.[0-9a-f]{16}\.unfinished")
"""Name of the object that marks the inventory to which the place belongs."""


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/{uuid4()}"


@pytest.fixture
def node() -> MemoryNode:
    node, rng = MemoryNode("dc1.a"), random.Random(1)
    for _ in range(9):
        save(node, INBOX, rng)
    return node


async def objects(store: ObjectStore) -> dict[str, bytes]:
    async with aclosing(store.list()) as listing:
        names = [info.name async for info in listing]
    found: dict[str, bytes] = {}
    for name in names:
        async with aclosing(store.get(name)) as parts:
            found[name] = b"".join([part async for part in parts])
    return found


def test_complete_inventory_is_not_overwritten(
    node: MemoryNode, server: Address, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    monkeypatch.setattr(parquet, "FILE_ROWS", 4)
    endpoint = f"http://{server.host}:{server.port}"
    target = target_of(url, endpoint, tmp_path)
    assert isinstance(target, Bucket)
    target.prepare(overwrite=False)
    listener = Listener()
    InventoryWriter(node.connection, target, listener, dc7).write(ORDER)
    found = trio.run(objects, ObjectStore(url, Environment(), endpoint))
    size = sum(map(len, found.values()))
    assert (listener.events[-1].__class__, target.files, target.size_bytes) == (Done, len(found), size)
    assert sum(name.startswith("messages/") for name in found) == 3
    assert read_back(found)[0] == expected.tables(node.connection)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TargetError, match="holds a complete inventory"):
        target_of(url, endpoint, tmp_path).prepare(overwrite=True)


def test_failed_inventory_is_removed(
    node: MemoryNode, server: Address, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"http://{server.host}:{server.port}"
    broken = target_of(url, endpoint, tmp_path)
    store, before = ObjectStore(url, Environment(), endpoint), list[str]()
    broken.prepare(overwrite=False)
    trio.run(store.put, "heads/part-00007.parquet", [b"another's"])
    original, count = broken.writing, iter(range(99))

    def writing(name: str) -> object:
        if next(count) == 4:
            before.extend(sorted(trio.run(objects, store)))
            raise ObjectStoreError("the server is gone")
        return original(name)

    monkeypatch.setattr(broken, "writing", writing)
    with pytest.raises(ObjectStoreError, match="the server is gone"):
        InventoryWriter(node.connection, broken, Listener(), dc7).write(ORDER)
    assert MARK.fullmatch(before.pop(0)), before
    assert before == [
        "annotations/part-00000.parquet",
        "folders/part-00000.parquet", "heads/part-00000.parquet", "heads/part-00007.parquet",
        "subscriptions/part-00000.parquet",
    ]  # fmt: skip
    assert trio.run(objects, store) == {"heads/part-00007.parquet": b"another's"}


def test_remains_of_a_killed_inventory_are_overwritten_on_request(
    node: MemoryNode, server: Address, url: str, tmp_path: Path
) -> None:
    endpoint = f"http://{server.host}:{server.port}"
    store = ObjectStore(url, Environment(), endpoint)
    trio.run(store.put, "heads/part-00007.parquet", [b"half"])
    with pytest.raises(TargetError, match="`--overwrite`"):
        target_of(url, endpoint, tmp_path).prepare(overwrite=False)
    target = target_of(url, endpoint, tmp_path)
    target.prepare(overwrite=True)
    [mark] = trio.run(objects, store)
    assert MARK.fullmatch(mark)
    with pytest.raises(TargetError, match="`--overwrite`"):  # as after a death before the first file
        target_of(url, endpoint, tmp_path).prepare(overwrite=False)
    InventoryWriter(node.connection, target, Listener(), dc7).write(ORDER)
    assert read_back(trio.run(objects, store))[0]["messages"]


def test_two_inventories_started_in_one_place_do_not_mix(
    node: MemoryNode, server: Address, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both inventories have found the place empty."""
    endpoint = f"http://{server.host}:{server.port}"
    store = ObjectStore(url, Environment(), endpoint)
    first, second = (Bucket(url, endpoint, tmp_path) for _ in range(2))
    put = second._store.put

    async def put_late(name: str, data: list[bytes]) -> None:
        await trio.to_thread.run_sync(partial(first.prepare, overwrite=False))
        await put(name, data)

    monkeypatch.setattr(second._store, "put", put_late)
    with pytest.raises(TargetError, match="another inventory has just been started in s3://"):
        second.prepare(overwrite=False)
    InventoryWriter(node.connection, first, Listener(), dc7).write(ORDER)
    found = trio.run(objects, store)
    assert (len(found), read_back(found)[0]) == (first.files, expected.tables(node.connection))


def test_overwritten_inventory_ends_and_leaves_the_newer_one_intact(server: Address, url: str, tmp_path: Path) -> None:
    endpoint = f"http://{server.host}:{server.port}"
    store = ObjectStore(url, Environment(), endpoint)
    first, second = (Bucket(url, endpoint, tmp_path) for _ in range(2))
    first.prepare(overwrite=False)
    with first.writing("heads/part-00000.parquet") as file:
        file.write(b"first")
    second.prepare(overwrite=True)
    with second.writing("heads/part-00000.parquet") as file:
        file.write(b"second")
    with (
        pytest.raises(TargetError, match="has since been started in s3://"),
        whole_or_nothing(first),
        first.writing(MANIFEST),
    ):
        pass
    assert trio.run(objects, store).pop("heads/part-00000.parquet") == b"second"
    assert MANIFEST not in trio.run(objects, store)


def test_refusal_of_the_server_is_reported_with_what_to_check(server: Address, url: str, tmp_path: Path) -> None:
    denied = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with faulty_line(server, Fault(answer=denied)) as line:
        prepare = partial(target_of(url, line.endpoint, tmp_path).prepare, overwrite=False)
        with pytest.raises(ObjectStoreError, match="are `--to` and `--endpoint` right"):
            prepare()
