"""Search texts read by whoever searches, beside the writer, which may be in another process."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import zstandard

from replicator.errors import MailError
from replicator.mail.mailstore import SearchTextSlice
from replicator.store.search_texts.form import (
    CACHE_KIB,
    HASH_BYTES,
    TEXT_MAX_BYTES,
    Identity,
    SearchFileDamagedError,
    form_of,
    identity_of,
    translated,
)

SLICE_BYTES = 1 << 20
"""Search texts in memory at once, plus one more."""


class SearchTextReader:
    """The search texts of whichever file is there. It blocks, and one thread at a time may use it.

    The writer may delete the file at any time, and another one may take its place. The reader opens a file when it is
    first asked, and closes it when it finds it deleted or failing. It changes no file, and creates no database.
    """

    def __init__(self, path: Path, version: int) -> None:
        self._path = path
        self._form = form_of(version)
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None  # of the open file

    def texts(self, hashes: Collection[bytes]) -> SearchTextSlice:
        """Return the search texts of the first of these bodies: of so many that they take `SLICE_BYTES` or a bit more.

        Without a file, or with one of another version, there are none. Raises SearchFileDamagedError,
        DatabaseFailedError.
        """
        try:
            with translated(self._path):
                connection = self._opened()
                if connection is not None:
                    return self._texts(connection, hashes)
        except MailError as error:
            is_deleted = self._present() != self._identity
            self.close()
            if not (is_deleted and isinstance(error, SearchFileDamagedError)):
                raise
        return SearchTextSlice({}, len(hashes))

    def close_if_deleted(self) -> None:
        """Close the file if it has been deleted: until then, it takes room on the disk."""
        if self._connection is not None and self._present() != self._identity:
            self.close()

    def close(self) -> None:
        """Close the file, if it is open."""
        closed, self._connection, self._identity = self._connection, None, None
        if closed is not None:
            closed.close()

    def _opened(self) -> sqlite3.Connection | None:
        """Return the connection to the file that is there; None if there is none of this version."""
        self.close_if_deleted()
        if self._connection is None:
            self._identity = self._present()
            if self._identity is None:
                return None
            self._connection = opened = _open(self._path)
            with closing(opened.cursor()) as cursor:
                cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                (form,) = cursor.execute("PRAGMA user_version").fetchone()  # which also opens the files beside it
            if form != self._form:
                self.close()
        return self._connection

    def _texts(self, connection: sqlite3.Connection, hashes: Collection[bytes]) -> SearchTextSlice:
        # A CROSS JOIN goes through the values in their order.
        values = ", ".join(f"({number}, ?)" for number in range(len(hashes)))
        query = (
            f"WITH wanted (number, hash) AS (VALUES {values}) SELECT w.number, w.hash, t.packed"
            " FROM wanted w CROSS JOIN search_text t ON t.hash = w.hash"
        )
        found, left = dict[bytes, bytes](), SLICE_BYTES
        unpack = partial(zstandard.ZstdDecompressor().decompress, max_output_size=HASH_BYTES + TEXT_MAX_BYTES)
        with closing(connection.cursor()) as rows:  # one that an error keeps in memory would keep the file open
            rows.execute(query, [*hashes])
            for number, content_hash, packed in rows:
                if packed == b"":
                    continue
                unpacked = unpack(packed) if isinstance(packed, bytes) else b""
                if unpacked[:HASH_BYTES] != content_hash:
                    raise SearchFileDamagedError(f"{self._path}: a row has the text of another body")
                found[content_hash] = unpacked[HASH_BYTES:]
                left -= len(unpacked)
                if left <= 0:
                    return SearchTextSlice(found, number + 1)
        return SearchTextSlice(found, len(hashes))

    def _present(self) -> Identity | None:
        """Return the identity of the file that is there; None if there is none, or it cannot be looked at."""
        with suppress(OSError):
            return identity_of(self._path)
        return None


def _open(path: Path) -> sqlite3.Connection:
    """Open a connection that changes nothing that the writer relies on.

    A read-only one writes no checkpoint. When it is closed, it leaves the files beside it in place, which by then may
    belong to another file of the same name. For the same reason it only reads the index of the write-ahead log
    (`readonly_shm`).
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&readonly_shm=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
