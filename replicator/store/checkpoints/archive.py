"""A cluster's checkpoints and manifests in the object store; each node writes its own and may read the others'.

Only order keeps them consistent: checkpoints are written before the manifest that lists them; manifests are deleted
before the checkpoints that only they listed. All methods raise ObjectStoreError if the store fails. A caller that
leaves an iteration early must close it (`contextlib.aclosing`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import trio

from protocol.values import Context, Dot
from replicator.runtime.objects import NAMES_AT_ONCE, ObjectMissingError, ObjectStore
from replicator.store.checkpoints import checkpoint, manifest
from replicator.store.checkpoints.checkpoint import CheckpointReader, Home, checkpoint_name
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.checkpoints.manifest import DATE_MAX_MS, Manifest, ManifestReader
from replicator.store.db.entry_validation import NamedHead
from resync.entry import Merge, TreeMerge

T = TypeVar("T")

log = logging.getLogger(__name__)

HeadsOf = Callable[[Sequence[bytes]], Awaitable[Iterable[NamedHead]]]
"""Ids of chains -> their saved heads."""


class CheckpointContent(NamedTuple):
    """The history of a checkpoint's head, and the changes that take an empty chain there."""

    history: bytes
    changes: list[Merge | TreeMerge]


class Archive:
    """The objects of the node `home`, and those of the other nodes of its cluster, in one object store."""

    def __init__(self, objects: ObjectStore, home: Home) -> None:
        self.home = home
        self._objects = objects

    async def save(self, head: NamedHead, data: Iterable[bytes]) -> None:
        """Save a checkpoint (`write_mailbox`, `write_tree`). One that a manifest lists need not be saved again."""
        await self._objects.put(checkpoint_name(self.home, head), data)

    async def content(self, home: Home, head: NamedHead) -> CheckpointContent:
        """Read a checkpoint. Raises UnreadableError, ObjectMissingError."""
        name = checkpoint_name(home, head)
        reader = CheckpointReader(name, head)
        async with aclosing(self._read(name, reader.receive)) as parts:
            changes = [change async for change in parts]
        reader.finish()
        return CheckpointContent(reader.history, changes)

    async def saved(self) -> AsyncGenerator[str, None]:
        """Yield the names of all checkpoints of this node, in no order."""
        async with aclosing(self._objects.list(checkpoint.checkpoints_of(self.home))) as found:
            async for info in found:
                yield info.name

    async def next_manifest(self, context: Context, now_ms: int) -> Manifest:
        """Return this node's next manifest without its heads, dated later than all existing ones."""
        earlier = [manifest.made_ms(name) or 0 for name in await self.manifests(self.home.sid)]
        made_ms = max([now_ms, *(ms + 1 for ms in earlier)])  # the clock may have been set back
        dots = tuple(Dot(origin, seq) for origin, seq in sorted(context.items()))
        return Manifest(self.home, made_ms, dots)

    async def publish(self, made: Manifest, data: Iterable[bytes]) -> None:
        """Write a manifest (`next_manifest`, `write_manifest`) whose checkpoints are all saved."""
        await self._objects.put(made.name, data)

    async def newest(self, sid: str | None = None, *, until_ms: int = DATE_MAX_MS) -> Manifest | None:
        """Return the newest readable manifest made by `until_ms`, of one node or any. Skipped ones are logged."""
        names = manifest.newest_first(await self.manifests(sid))
        for name in (name for name in names if (manifest.made_ms(name) or 0) <= until_ms):
            try:
                return await self._manifest(name)
            except (UnreadableError, ObjectMissingError) as error:
                log.warning("a manifest cannot be used, so the one before it is, if there is one: %s", error)
        return None

    async def newest_ms(self) -> int | None:
        """Return when this node's newest manifest was made, by its name; None if there is none."""
        return max(filter(None, map(manifest.made_ms, await self.manifests(self.home.sid))), default=None)

    async def heads(self, listed: Manifest) -> AsyncGenerator[NamedHead, None]:
        """Yield the heads that a manifest lists, by mailbox id.

        They are to be trusted only once the last one has come. Raises UnreadableError.
        """
        reader = ManifestReader(listed.name)
        async with aclosing(self._read(listed.name, reader.receive)) as heads:
            async for head in heads:
                yield head
        reader.finish()

    async def manifests(self, sid: str | None = None) -> list[str]:
        """Return the names of all manifests, of all nodes or one, in no order."""
        return [info.name async for info in self._objects.list(manifest.manifests_of(self.home.cluster, sid))]

    async def delete(self, names: list[str]) -> None:
        """Delete checkpoints or manifests, by their names."""
        await self._objects.delete(names)

    async def delete_manifests(self, kept_ms: Container[int | None]) -> None:
        """Delete this node's manifests except those made at the times `kept_ms`."""
        names = await self.manifests(self.home.sid)
        dated = {name: manifest.made_ms(name) for name in names}
        await self.delete([name for name, ms in dated.items() if ms is not None and ms not in kept_ms])

    async def delete_checkpoints(self, heads: Iterable[NamedHead]) -> None:
        """Delete checkpoints of this node."""
        await self.delete([checkpoint_name(self.home, head) for head in heads])

    async def delete_all_but(self, heads_of: HeadsOf) -> None:
        """Delete this node's unknown checkpoints: all but those that `heads_of` returns for their chains."""
        unlooked: dict[str, bytes] = {}
        async with aclosing(self.saved()) as names:
            async for name in names:
                chain_id = checkpoint.chain_of(name)
                if chain_id is not None:
                    unlooked[name] = chain_id
                if len(unlooked) >= NAMES_AT_ONCE:
                    await self._delete_unknown(unlooked, heads_of)
                    unlooked = {}
        await self._delete_unknown(unlooked, heads_of)

    async def _delete_unknown(self, names: Mapping[str, bytes], heads_of: HeadsOf) -> None:
        known = {checkpoint_name(self.home, head) for head in await heads_of(sorted(set(names.values())))}
        await self.delete([name for name in names if name not in known])

    async def _manifest(self, name: str) -> Manifest:
        reader = ManifestReader(name)
        async for _ in self._read(name, reader.receive):
            pass
        return reader.finish()

    async def _read(self, name: str, receive: Callable[[bytes], Iterator[T]]) -> AsyncGenerator[T, None]:
        async with aclosing(self._objects.get(name)) as parts:
            async for data in parts:
                for item in receive(data):
                    yield item
                    await trio.lowlevel.checkpoint()
