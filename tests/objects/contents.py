"""Readers of an object store: the names of its objects, and the octets of one."""

from __future__ import annotations

from replicator.runtime.objects import ObjectStore


async def read(store: ObjectStore, name: str) -> bytes:
    return b"".join([part async for part in store.get(name)])


async def names(store: ObjectStore, prefix: str = "") -> set[str]:
    return {info.name async for info in store.list(prefix)}
