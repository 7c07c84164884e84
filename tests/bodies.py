"""Message bodies in tests."""

from __future__ import annotations

from protocol.commands import Parts
from replicator.store.bodies.body_rows import StoredBody


def stored_of(message: bytes | Parts) -> StoredBody:
    """Return a body, or a recipe whose attachments have no holders, ready to be written."""
    return StoredBody.of(message) if isinstance(message, bytes) else StoredBody.of_recipe(message, ())
