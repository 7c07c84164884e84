"""The names in the attachment directory.

An attachment is stored under its H-name, which follows from its hash alone: `e3/b0/c44298...`. While it is built, and
for good if it could not be shared, it is stored under an S-name that no other process uses: `cd/ab/s<owner>i43981`,
made of a run of a process and a number. A holder is named like an S-name, without the levels above.

    <H or S>/holders/<holder>     an empty file for each reference
    <H or S>/content.<S-name>     the content, named by the S-name that it was written under
    <H or S>/new.<S-name>         a replacement for damaged content, while it is written
    owners/<sid>.<owner>          the node that each owner belongs to

No name of content is ever used twice, so a name seen in one attachment never means a part of its successor. All names
are lower case: file systems may not distinguish cases.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

HOLDERS = "holders"
OWNERS = "owners"
CONTENT_PREFIX = "content."
NEW_PREFIX = "new."
OWNER_BYTES = 16
LEVEL = re.compile(r"[0-9a-f]{2}")

_S_NAME = re.compile(r"s([0-9a-f]{32})i(0|[1-9][0-9]{0,19})")
_OWNER = re.compile(r"([a-z0-9][a-z0-9-]{0,31})\.([0-9a-f]{32})")
_PREFIX = re.compile(r"[g-z]?")


class Hasher(Protocol):
    """A hasher, as in hashlib."""

    def update(self, data: bytes, /) -> None:
        """Hash these bytes too."""
        ...

    def digest(self) -> bytes:
        """Return the digest of all bytes so far."""
        ...


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A hash algorithm. `prefix`: the first letter of its H-names' leaves, not s or i; at most one algorithm has ""."""

    prefix: str
    size_bytes: int
    new: Callable[[], Hasher]

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix) or self.prefix in {"s", "i"}:
            raise ValueError(
                f"the prefix {self.prefix!r} of a hash algorithm must be empty or one of g-z, except s and i"
            )


SHA256 = Algorithm("", 32, hashlib.sha256)


class Algorithms:
    """The hash algorithms that H-names may use; new attachments use the last one. The digest size tells them apart.

    Adding one renames no file: old attachments are found by their hashes as before.
    """

    def __init__(self, algorithms: Sequence[Algorithm] = (SHA256,)) -> None:
        self.current = algorithms[-1]
        self._by_size = {algorithm.size_bytes: algorithm for algorithm in algorithms}
        self._by_prefix = {algorithm.prefix: algorithm for algorithm in algorithms}
        if not len(self._by_size) == len(self._by_prefix) == len(algorithms):
            raise ValueError("hash algorithms must differ in their prefixes and in the sizes of their digests")

    def new(self, content_hash: bytes) -> Hasher:
        """Return a hasher of the algorithm of this hash. Raises ValueError for a hash of no known size."""
        return self._of(content_hash).new()

    def h_name(self, content_hash: bytes) -> str:
        """Return the H-name of a hash. Raises ValueError for a hash of no known size."""
        digits = content_hash.hex()
        return f"{digits[:2]}/{digits[2:4]}/{self._of(content_hash).prefix}{digits[4:]}"

    def hash_of(self, name: str) -> bytes | None:
        """Return the hash of an H-name, or None for any other name."""
        first, _, rest = name.partition("/")
        second, _, leaf = rest.partition("/")
        algorithm = self._by_prefix.get(leaf[:1]) or self._by_prefix.get("")
        if algorithm is None or not (LEVEL.fullmatch(first) and LEVEL.fullmatch(second)):
            return None
        digits = leaf.removeprefix(algorithm.prefix)
        is_hash = re.fullmatch(r"[0-9a-f]*", digits) and len(digits) == 2 * algorithm.size_bytes - 4
        return bytes.fromhex(first + second + digits) if is_hash else None

    def _of(self, content_hash: bytes) -> Algorithm:
        algorithm = self._by_size.get(len(content_hash))
        if algorithm is None:
            raise ValueError(
                f"no hash algorithm has digests of {len(content_hash)} bytes; the sizes are {sorted(self._by_size)}"
            )
        return algorithm


def new_holder(owner: str, counter: int) -> str:
    """Return the name of a holder, and of its S-name without the levels."""
    return f"s{owner}i{counter}"


def owner_of(holder: str) -> str | None:
    """Return the owner of a holder or S-name, or None for any other name."""
    match = _S_NAME.fullmatch(holder)
    return match[1] if match else None


def s_name(holder: str) -> str:
    """Return the holder's S-name. Consecutive numbers take all first levels in turn.

    Raises ValueError for a name that is not a holder's.
    """
    match = _S_NAME.fullmatch(holder)
    if match is None:
        raise ValueError(f"{holder!r} is not the name of a holder")
    counter = int(match[2])
    return f"{counter & 0xFF:02x}/{counter >> 8 & 0xFF:02x}/{holder}"


def owner_file(sid: str, owner: str) -> str:
    """Return the name of the file that assigns an owner to a node."""
    return f"{OWNERS}/{sid}.{owner}"


def parse_owner_file(leaf: str) -> tuple[str, str] | None:
    """Return SID and owner, or None if the name is not an owner file's."""
    match = _OWNER.fullmatch(leaf)
    return (match[1], match[2]) if match else None


def parent(name: str) -> str:
    """Return the directory above; "" is the root."""
    return name.rpartition("/")[0]


def levels(place: str) -> tuple[str, str]:
    """Return the two directories above an S-name or an H-name, the upper one first."""
    lower = parent(place)
    return parent(lower), lower


def holders(place: str) -> str:
    """Return the directory of an attachment's holders."""
    return f"{place}/{HOLDERS}"


def content(holder: str) -> str:
    """Return the name, in its directory, of content written by this holder."""
    return f"{CONTENT_PREFIX}{holder}"


def is_ours(leaf: str) -> bool:
    """Return True for a name that the store gives to a file beside `holders/`."""
    prefix = CONTENT_PREFIX if leaf.startswith(CONTENT_PREFIX) else NEW_PREFIX
    return leaf.startswith(prefix) and owner_of(leaf.removeprefix(prefix)) is not None
