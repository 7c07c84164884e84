"""A digest of the parts of the program that a node's core and its doors must have in common.

A door that starts later than the core runs the program as it lies on the disk by then, which may be a newer one. It may
serve if only other parts have changed, such as IMAP or LMTP: values that cross between the two, and rows and bodies in
the database, then mean the same to both.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import replicator

SHARED = (
    "protocol",
    "resync",
    "replicator/config",
    "replicator/errors.py",
    "replicator/mail",
    "replicator/mime",
    "replicator/runtime/sessions.py",
    "replicator/store/attachments",
    "replicator/store/bodies",
    "replicator/store/db",
    "replicator/store/search_texts",
    "replicator/users",
    "replicator/workers",
)
"""Modules, and packages with all that they have. But for `workers`, they import no others than `replicator/runtime`."""


def interface_digest() -> str:
    """Return the digest as the files are now. Raises OSError if one cannot be read."""
    root = Path(replicator.__file__).parents[1]
    found = blake2b(digest_size=16)
    for path in sorted(file for part in SHARED for file in _modules(root / part)):
        found.update(f"{path.relative_to(root)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _modules(path: Path) -> list[Path]:
    return [path] if path.is_file() else [*path.rglob("*.py")]
