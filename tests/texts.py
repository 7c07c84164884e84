"""Message texts in tests."""

from __future__ import annotations

from protocol.commands import Parts
from replicator.store.bodies.body_rows import StoredBody


def plain(message: bytes | Parts) -> bytes:
    """A text that is not in parts."""
    assert isinstance(message, bytes)
    return message


def stored_of(message: bytes | Parts) -> StoredBody:
    """Ready to be written; nobody holds its parts."""
    return StoredBody.of(message) if isinstance(message, bytes) else StoredBody.of_recipe(message, ())
