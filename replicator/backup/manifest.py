"""The manifest of a backup: which files it has, with sizes and hashes, and whose they are. It is written last.

JSON lines: a head, a line for each file, and last the SHA-256 of all lines before it.

    manifest.jsonl
    node.db                       the database, as of one moment
    attachments/ab/abcd...        the content of each attachment, by its SHA-256
    files/passwd_file             the files that the configuration names, by their keys
    files/master_passwd_file
    files/aliases
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from replicator.backup.errors import BackupError
from replicator.config import Config, UserSource

FORMAT = 1
MANIFEST = "manifest.jsonl"
DATABASE = "node.db"
KEPT = ("passwd_file", "master_passwd_file", "aliases")

WHOLE_MAX = 2**63 - 1  # of sizes and versions
STARTED_MS_MAX = 1 << 47  # in the year 6429; dates end in 9999
SHOWN_MAX_CHARS = 80

_HASH = re.compile("[0-9a-f]{64}")
_NAME = re.compile(rf"{re.escape(DATABASE)}|files/(?:{'|'.join(KEPT)})|attachments/([0-9a-f]{{2}})/\1[0-9a-f]{{62}}")


class SavedFile(NamedTuple):
    """A file of a backup. `sha256`: hex digits."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup. `lacking`: hashes of attachments that the node itself did not have whole."""

    node: str
    cluster: str
    schema: int
    started_ms: int
    lacking: tuple[str, ...]
    files: tuple[SavedFile, ...]

    def packed(self) -> bytes:
        """Return the text of the file."""
        head = {
            "format": FORMAT, "node": self.node, "cluster": self.cluster, "schema": self.schema,
            "started_ms": self.started_ms, "lacking": self.lacking, "files": len(self.files),
        }  # fmt: skip
        lines = [json.dumps(line) for line in (head, *(file._asdict() for file in self.files))]
        text = "".join(f"{line}\n" for line in lines).encode()
        return text + f"{hashlib.sha256(text).hexdigest()}\n".encode()

    def check_owner(self, sid: str, cluster: str) -> None:
        """Check that this node may take the backup for its own. Raises BackupError."""
        if (self.node, self.cluster) != (sid, cluster):
            raise BackupError(
                f"this is a backup of node {self.node} in cluster {self.cluster}, but the configuration is that of"
                f" {sid} in {cluster}. All that a node has ever numbered bears its id (its origins), so this can be"
                f" restored as {self.node} only; {sid} gets all mail from the other nodes of its cluster if it starts"
                " with an empty `node.data`"
            )


def unpacked(data: bytes, place: str) -> Manifest:
    """Return the manifest that was read at the place. Raises BackupError."""
    where = f"{place}/{MANIFEST}"
    *lines, own_hash, end = data.split(b"\n") if data.count(b"\n") > 1 else (b"", b"", b"?")
    if end or hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest().encode() != own_hash:
        raise BackupError(f"{where}: damaged: its own SHA-256 differs")
    try:
        head, *listed = map(json.loads, lines)
        if (version := _whole(head["format"])) != FORMAT:
            raise BackupError(f"{where}: format {version}, but this version reads {FORMAT}")
        files = tuple(SavedFile(_text(one["name"]), _whole(one["size_bytes"]), _hash(one["sha256"])) for one in listed)
        found = Manifest(
            _text(head["node"]), _text(head["cluster"]), _whole(head["schema"]),
            _whole(head["started_ms"], STARTED_MS_MAX), tuple(map(_hash, head["lacking"])), files,
        )  # fmt: skip
        count = _whole(head["files"])
    except RecursionError as error:
        raise BackupError(f"{where}: damaged: it is nested too deeply") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{where}: damaged: {error!r}") from error
    if wrong := [file.name for file in files if not _is_right(file)]:
        raise BackupError(f"{where}: no backup has such a file as {wrong[0][:SHOWN_MAX_CHARS]!r}")
    names = {file.name for file in files}
    if len(names) < len(files):
        raise BackupError(f"{where}: it lists a file twice")
    if count != len(files):
        raise BackupError(f"{where}: it lists {len(files)} files, but has {count} by its head")
    if DATABASE not in names:
        raise BackupError(f"{where}: it lists no {DATABASE}")
    return found


def _whole(value: object, most: int = WHOLE_MAX) -> int:
    """Return the value if it is a whole number up to `most`. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a number that is not a whole one from 0 to {most}")
    return value


def _text(value: object) -> str:
    """Return the value if it is a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("a name that is not a text")  # noqa: TRY004 - of the file, not of a caller
    return value


def _hash(value: object) -> str:
    """Return the value if it is a SHA-256. Raises ValueError."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError("a SHA-256 that is not one")
    return value


def _is_right(file: SavedFile) -> bool:
    """Return True for a name that a backup can have. That of an attachment is its hash."""
    found = _NAME.fullmatch(file.name)
    return found is not None and (found[1] is None or file.name.endswith(f"/{file.sha256}"))


def attachment_name(content_hash: bytes) -> str:
    """Return the name that an attachment has in a backup."""
    digits = content_hash.hex()
    return f"attachments/{digits[:2]}/{digits}"


def kept_files(config: Config) -> dict[str, Path]:
    """Return the files that the configuration names and a backup keeps, by their names in it.

    Users that come from the cluster are in the database.
    """
    is_own = config.users.source is UserSource.FILE
    found = {
        "passwd_file": config.users.passwd_file if is_own else None,
        "master_passwd_file": config.users.master_passwd_file,
        "aliases": config.lmtp.aliases,
    }
    return {f"files/{key}": path for key, path in found.items() if path is not None}
