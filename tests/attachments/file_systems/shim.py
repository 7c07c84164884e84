"""A real directory that behaves like the worst file system that the store supports.

Names ignore case. A directory never replaces another one, not even an empty one, and the refused rename fails with any
of the error codes that file systems use for this.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

from replicator.store.attachments.disk import DiskFiles

REFUSALS = (errno.EEXIST, errno.ENOTEMPTY, errno.EACCES, errno.EPERM)


class ShimFiles(DiskFiles):
    def __init__(self, root: Path, seed: int = 0) -> None:
        super().__init__(root)
        self._dice = random.Random(seed)
        self._lock = threading.Lock()

    def _path(self, name: str) -> str:
        return super()._path(name.lower())

    def _rename(self, old: str, new: str) -> None:
        if Path(new).is_dir():
            with self._lock:
                code = self._dice.choice(REFUSALS)
            raise OSError(code, os.strerror(code))
        super()._rename(old, new)
