"""Stores in tests, and what lies in their directories."""

from __future__ import annotations

import hashlib
import itertools

from replicator.store.attachments import names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import Files, MissingError
from replicator.store.attachments.store import Attachments

TEXT = b"an attachment that several mails have"
HASH = hashlib.sha256(TEXT).digest()
PLACE = names.Algorithms().h_name(HASH)

_owners = itertools.count(1)


def new_owner() -> str:
    return f"{next(_owners):032x}"


def opened(files: Files, sid: str = "dc1") -> Attachments:
    return Attachments(files, sid, new_owner(), sleep=lambda _: None)


def stored(store: Attachments, text: bytes = TEXT) -> Holding:
    with store.build() as construction:
        for start in range(0, len(text), 10):
            construction.write(text[start : start + 10])
        return construction.finish()


def everything(files: Files, directory: str = "") -> set[str]:
    """All names of attachments and below, without the levels above them and the owners."""
    found: set[str] = set()
    for leaf in files.names(directory):
        name = f"{directory}/{leaf}".strip("/")
        if name == names.OWNERS:
            continue
        if name.count("/") > 1:
            found.add(name)
        try:
            found |= everything(files, name)
        except (MissingError, NotADirectoryError):
            continue
    return found


def is_all(store: Attachments, holding: Holding, text: bytes = TEXT) -> bool:
    return store.read(holding, 0, len(text) + 1) == text and store.size(holding) == len(text)
