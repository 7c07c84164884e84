"""Opening attachment stores in tests, filling them, and listing their directories."""

from __future__ import annotations

import hashlib
import itertools

from replicator.store.attachments import names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import Files, MissingError
from replicator.store.attachments.store import Attachments

CONTENT = b"an attachment that several mails have"
HASH = hashlib.sha256(CONTENT).digest()
PLACE = names.Algorithms().h_name(HASH)

_owners = itertools.count(1)


def new_owner() -> str:
    return f"{next(_owners):032x}"


def open_attachments(files: Files, sid: str = "dc1") -> Attachments:
    return Attachments(files, sid, new_owner(), sleep=lambda _: None)


def store_content(store: Attachments, content: bytes = CONTENT) -> Holding:
    """Store the content in several writes."""
    with store.build() as construction:
        for start in range(0, len(content), 10):
            construction.write(content[start : start + 10])
        return construction.finish()


def all_names(files: Files, directory: str = "") -> set[str]:
    """Return all names of attachments and below, without the levels above them and the owners."""
    found: set[str] = set()
    for leaf in files.names(directory):
        name = f"{directory}/{leaf}".strip("/")
        if name == names.OWNERS:
            continue
        if name.count("/") > 1:
            found.add(name)
        try:
            found |= all_names(files, name)
        except (MissingError, NotADirectoryError):
            continue
    return found


def has_content(store: Attachments, holding: Holding, content: bytes = CONTENT) -> bool:
    return store.read(holding, 0, len(content) + 1) == content and store.size(holding) == len(content)
