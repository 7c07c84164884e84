"""A manifest: a list of a node's checkpoints that belong together, with the log context that they cover.

See design section 6. The first frame has the node, the time and the context of the log; each further frame lists heads
in the order of their mailbox ids. A manifest is written after all its checkpoints, so a whole manifest stands for a
whole node: the checkpoints that it lists, and all entries after its context, are everything that the node had. One
object is enough for any node: 16 million mailboxes are some 1 GB, written and read in frames of 1000.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple, cast

import msgpack

from protocol.values import Dot
from replicator.store.checkpoints.checkpoint import Home, context_from, date, head_from, ms_of, unpack_fields
from replicator.store.checkpoints.container import ContainerKind, Unsealer, seal
from replicator.store.db.entry_validation import NamedHead

HEADS_AT_ONCE = 1000  # in a frame: some 100 KiB
HEADS_MAX = 1 << 24  # of a node: mailboxes and trees of a million users and more
DATE_MAX_MS = 1 << 46  # the year 4199, so that years keep four digits

_NAME = re.compile(r"/([0-9]{8}T[0-9]{6}\.[0-9]{3}Z)\.manifest\Z")


class Manifest(NamedTuple):
    """A manifest without its heads. `context`: the log's context; all entries within it are in the checkpoints."""

    home: Home
    made_ms: int
    context: tuple[Dot, ...]

    @property
    def name(self) -> str:
        """The object's name: `CLUSTER/manifests/SID/DATE.manifest`."""
        return f"{manifests_of(self.home.cluster, self.home.sid)}/{date(self.made_ms)}.manifest"


def manifests_of(cluster: str, sid: str | None = None) -> str:
    """Return the prefix of the names of all manifests, of all nodes or one."""
    return f"{cluster}/manifests" if sid is None else f"{cluster}/manifests/{sid}"


def newest_first(names: Iterable[str]) -> list[str]:
    """Return the names that are of manifests, the last made first, whichever nodes made them."""
    dated = [(ms, name) for name in names if (ms := made_ms(name)) is not None]
    return [name for _, name in sorted(dated, reverse=True)]


def made_ms(name: str) -> int | None:
    """Return the time at which a manifest was made, by its name; None for a name that is none."""
    match = _NAME.search(name)
    try:
        return ms_of(match[1]) if match else None
    except ValueError:
        return None


def write_manifest(manifest: Manifest, heads: Iterable[NamedHead]) -> Iterator[bytes]:
    """Yield the object in pieces. `heads`, in the order of mailbox ids, are consumed along with the pieces."""
    first = cast("bytes", msgpack.packb((manifest.home, manifest.made_ms, manifest.context)))
    remaining = iter(heads)
    frames = iter(lambda: tuple(islice(remaining, HEADS_AT_ONCE)), ())
    return seal(ContainerKind.MANIFEST, chain([first], (cast("bytes", msgpack.packb(some)) for some in frames)))


class ManifestReader:
    """The reader of one object: `receive` its bytes in order, then `finish`. Raises UnreadableError. Keeps no heads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sealed = Unsealer(name, ContainerKind.MANIFEST)
        self._manifest: Manifest | None = None
        self._last_id = b""
        self._count = 0

    def receive(self, data: bytes) -> Iterator[NamedHead]:
        """Yield the heads, in the order of their mailbox ids; exhaust it before the next call."""
        for frame in self._sealed.receive(data):
            try:
                if self._manifest is None:
                    self._manifest = _manifest_from(frame, self._name)
                else:
                    yield from self._heads(frame)
            except ValueError as error:
                raise self._sealed.refusal(str(error)) from None

    def finish(self) -> Manifest:
        """End the object, and return the manifest. The heads yielded are now proved to be what it lists."""
        self._sealed.finish()
        if self._manifest is None:
            raise self._sealed.refusal("it is empty")
        return self._manifest

    def _heads(self, frame: bytes) -> tuple[NamedHead, ...]:
        heads = tuple(map(head_from, unpack_fields(frame)))
        for head in heads:
            if head.mailbox_id <= self._last_id:
                raise ValueError("its heads are not in order")
            self._last_id = head.mailbox_id
        self._count += len(heads)
        if self._count > HEADS_MAX:
            raise ValueError(f"it has more than {HEADS_MAX} heads")
        return heads


def _manifest_from(frame: bytes, name: str) -> Manifest:
    """Return the manifest in the first frame. Raises ValueError if it is none, or has another name."""
    home, made_ms, context = unpack_fields(frame, 3)
    match home, made_ms:
        case (str(cluster), str(sid)), int(ms) if 0 <= ms < DATE_MAX_MS:
            manifest = Manifest(Home(cluster, sid), ms, context_from(context))
        case _:
            raise ValueError("it does not say which node wrote it, and when")
    if manifest.name != name:
        raise ValueError(f"it names itself {manifest.name[:200]!r}, contrary to its name")
    return manifest
