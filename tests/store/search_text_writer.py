"""A process that writes search texts, deletes their file and begins it anew until it is killed; and what it writes."""

from __future__ import annotations

import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from replicator.runtime.environment import open_database
from replicator.store.search_texts.writer import SearchTextWriter, remove_file

VERSION = 1
HASHES = [sha256(b"%d" % number).digest() for number in range(50)]


def text_of(content_hash: bytes) -> bytes:
    return content_hash * 40


def write_for_ever(path: Path) -> None:
    while True:
        with closing(SearchTextWriter(path, VERSION, open_database)) as writer:
            for start in range(0, len(HASHES), 10):
                writer.write({one: text_of(one) for one in HASHES[start : start + 10]})
            writer.remove(HASHES[:5])
        remove_file(path)


if __name__ == "__main__":
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    write_for_ever(Path(sys.argv[1]))
