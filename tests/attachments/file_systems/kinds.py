"""Each file system that the tests run on, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.files import Files
from tests.attachments.file_systems.memory import MemoryFiles
from tests.attachments.file_systems.model import ModelFiles
from tests.attachments.file_systems.shim import ShimFiles

KINDS: Mapping[str, Callable[[Path], Files]] = {
    "disk": DiskFiles,
    "shim": ShimFiles,
    "memory": lambda _: MemoryFiles(),
    "memory-strict": lambda _: MemoryFiles(replaces_empty=False),
    "model": lambda _: ModelFiles(),
    "model-strict": lambda _: ModelFiles(replaces_empty=False),
}
