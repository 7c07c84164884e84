"""The attachment store of a node, for a process that is not the node."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from replicator.backup.errors import BackupError
from replicator.backup.manifest import SavedFile, attachment_name
from replicator.backup.places import Take
from replicator.config import Config
from replicator.store.attachments import names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.store import Attachments


def attachments_of(config: Config) -> Attachments:
    """Return the node's attachment store. Whoever writes to it does so under new names of this process alone."""
    directory = config.content.attachments or config.node.data / "attachments"
    return Attachments(DiskFiles(directory), config.node.id, secrets.token_hex(names.OWNER_BYTES))


class Attacher:
    """Restores attachments. `saved`: its files, by their names; `read` passes on one of them, checked."""

    def __init__(
        self, store: Attachments, saved: Mapping[str, SavedFile], read: Callable[[SavedFile, Take], None]
    ) -> None:
        self._store, self._saved, self._read = store, saved, read
        self.lacking = 0

    def attach(self, content_hash: bytes, count: int) -> list[Holding] | None:
        """Return so many new references to the attachment; None: neither the backup nor the directory has it.

        Raises BackupError if the backup's content is damaged, MissingError, OSError.
        """
        saved = self._saved.get(attachment_name(content_hash))
        first = self._store.link(content_hash) if saved is None else self._built(saved)
        if first is None:
            self.lacking += 1
            return None
        others = [self._store.link(content_hash) for _ in range(count - 1)]
        if first.kept or None in others:
            raise BackupError(f"the attachment {content_hash.hex()} was removed again meanwhile; run this again")
        return [first, *filter(None, others)]

    def _built(self, saved: SavedFile) -> Holding:
        """Store what the backup has. Content that is there already is compared, and replaced if it is damaged."""
        with self._store.build() as construction:
            self._read(saved, construction.write)
            return construction.finish()
