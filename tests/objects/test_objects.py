"""Behaviour that directories and S3 share, tested on both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from replicator.runtime.environment import Environment
from replicator.runtime.objects import PART_BYTES, ObjectInfo, ObjectMissingError, ObjectStore, ObjectStoreError
from tests.objects.contents import names, read

HARD_NAME = "mail/alice+work@example.org/%41 ü=&~#x/000-1_dc1.0.checkpoint"


async def test_object_is_written_read_listed_and_deleted(store: ObjectStore) -> None:
    await store.put(HARD_NAME, [b"a mailbox", b"", b"'s state"])
    assert await read(store, HARD_NAME) == b"a mailbox's state"
    assert [info async for info in store.list()] == [ObjectInfo(HARD_NAME, 17)]
    await store.delete([HARD_NAME])
    assert await names(store) == set()
    with pytest.raises(ObjectMissingError):
        await read(store, HARD_NAME)


async def test_object_of_many_parts_is_read_back_unchanged(store: ObjectStore) -> None:
    pieces = [os.urandom(3_000_000) for _ in range(2 * PART_BYTES // 3_000_000 + 1)]
    await store.put("large", iter(pieces))
    parts = [part async for part in store.get("large")]
    assert b"".join(parts) == b"".join(pieces)
    assert len(parts) > 2


async def test_second_put_replaces_the_object(store: ObjectStore) -> None:
    await store.put("a", [b"old and longer"])
    await store.put("a", [b"new"])
    assert await read(store, "a") == b"new"


async def test_empty_object_exists(store: ObjectStore) -> None:
    await store.put("a", [])
    assert await read(store, "a") == b""
    assert await store.exists("a")


async def test_only_objects_exist_and_not_their_prefixes(store: ObjectStore) -> None:
    assert not await store.exists(HARD_NAME)
    await store.put(HARD_NAME, [b"1"])
    assert await store.exists(HARD_NAME)
    assert not await store.exists(HARD_NAME.rpartition("/")[0])
    await store.delete([HARD_NAME])
    assert not await store.exists(HARD_NAME)


async def test_prefix_matches_whole_levels(store: ObjectStore) -> None:
    await store.put("mail/a", [b"1"])
    await store.put("mail/b/c", [b"1"])
    await store.put("mailbox/a", [b"1"])
    assert await names(store, "mail") == {"mail/a", "mail/b/c"}
    assert await names(store, "mail/b") == {"mail/b/c"}
    assert await names(store, "nothing") == set()


async def test_objects_beyond_one_answer_are_listed_and_deleted(store: ObjectStore) -> None:
    many = [f"many/{number:04}" for number in range(1050)]
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(_put_all, store, many[number::10])
    assert await names(store) == set(many)
    await store.delete(many)
    assert await names(store) == set()


async def _put_all(store: ObjectStore, some: list[str]) -> None:
    for name in some:
        await store.put(name, [b"x"])


async def test_missing_object_can_be_deleted_but_not_read(store: ObjectStore) -> None:
    await store.put("a", [b"1"])
    with pytest.raises(
        ObjectMissingError, match=r"nothing: cannot read it: .*do the object and its bucket or directory exist"
    ):
        await read(store, "nothing")
    await store.delete(["nothing", "a"])
    assert await names(store) == set()


@pytest.mark.parametrize("name", ["a//b", "../a", "a/../b"])
async def test_invalid_object_name_is_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(ObjectStoreError, match="cannot write it"):
        await store.put(name, [b"x"])


def _interrupted_data(then: Callable[[], object]) -> Iterator[bytes]:
    for _ in range(3):
        yield bytes(PART_BYTES)
    then()
    yield bytes(PART_BYTES)


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, OSError, ValueError])
async def test_object_whose_data_source_fails_does_not_appear(store: ObjectStore, error: type[Exception]) -> None:
    def fail() -> None:
        raise error("of the database")

    with pytest.raises(error, match=r"^of the database$"):
        await store.put("a", _interrupted_data(fail))
    assert await names(store) == set()


async def test_object_whose_writing_is_cancelled_does_not_appear(store: ObjectStore) -> None:
    with trio.CancelScope() as scope:
        await store.put("a", _interrupted_data(lambda: trio.from_thread.run_sync(scope.cancel)))
    assert scope.cancelled_caught
    assert await names(store) == set()


async def test_put_syncs_the_file_and_its_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def observed(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", observed)
    await ObjectStore((tmp_path / "new" / "objects").as_uri(), Environment()).put("mail/dc1/a", [b"x"])
    made = ["new", ""]
    written = ["new/objects/mail/dc1/a", "new/objects/mail/dc1", "new/objects/mail", "new/objects"]
    assert synced == [str(tmp_path / level) for level in (*made, *written)]


async def test_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "objects").write_bytes(b"a file")
    store = ObjectStore((tmp_path / "objects").as_uri(), Environment())
    with pytest.raises(ObjectStoreError, match=r"objects/a: cannot write it: .*may the node write to the directory\?"):
        await store.put("a", [b"x"])
