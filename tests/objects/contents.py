"""What an object store holds: names, and the octets of an object."""

from __future__ import annotations

from replicator.runtime.objects import ObjectStore


async def read(store: ObjectStore, name: str) -> bytes:
    return b"".join([part async for part in store.get(name)])


async def names(store: ObjectStore, prefix: str = "") -> set[str]:
    return {info.name async for info in store.list(prefix)}
