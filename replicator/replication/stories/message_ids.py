"""Message-IDs of this node's mail: from outlines, or else from the bodies themselves."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from replicator.mail.mailstore import MessageIdReader
from replicator.store.bodies.body_reader import skeleton_of
from replicator.store.bodies.body_rows import read_body
from replicator.store.bodies.outline_rows import outlines
from replicator.store.db.queries import Connection
from replicator.store.store import Reader

BODIES_MAX = 500
"""Bodies without an outline that are read for one story: they have just come, or are unusual."""


class MessageIds:
    """The Message-IDs of bodies, by content hash."""

    def __init__(self, reader: Reader, how: MessageIdReader) -> None:
        self._reader = reader
        self._how = how
        self._known: dict[bytes, str | None] = {}
        self._unread: set[bytes] = set()
        self._bodies_left = BODIES_MAX

    @property
    def unread(self) -> int:
        """Number of bodies of which no header was read: they are not here, or too many have no outline."""
        return len(self._unread)

    async def of(self, hashes: Iterable[bytes]) -> dict[bytes, str]:
        """Return the Message-IDs that these bodies have. Raises DatabaseFailedError."""
        wanted = list(dict.fromkeys(hashes))
        new = [one for one in wanted if one not in self._known]
        found, bodies = await self._reader.read(
            partial(_message_ids, hashes=new, how=self._how, most=self._bodies_left)
        )
        self._bodies_left -= bodies
        self._known |= found
        self._unread |= {*new} - found.keys()
        return {one: name for one in wanted if (name := self._known.get(one)) is not None}


def _message_ids(
    connection: Connection, hashes: list[bytes], how: MessageIdReader, most: int
) -> tuple[dict[bytes, str | None], int]:
    """Return the Message-IDs, None for a message that has none, and how many bodies were read for that."""
    made = outlines(connection, hashes, how.version)
    found = {content_hash: how.of_outline(outline) for content_hash, outline in made.items()}
    bodies = [content_hash for content_hash in hashes if content_hash not in made][:most]
    for content_hash in bodies:
        skeleton = skeleton_of(read_body(connection, content_hash))
        if skeleton is not None:
            found[content_hash] = how.of_skeleton(skeleton)
    return found, len(bodies)
