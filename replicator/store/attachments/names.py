"""What is called how in the directory.

An attachment lies under its H-name, which follows from its hash alone: `e3/b0/c44298...`. While it is built, and for
good where it could not be shared, it lies under an S-name that nobody else uses: `cd/ab/s<owner>i43981`, a run of a
process and a number. A holder is named like an S-name, without the levels above it.

    <H or S>/holders/<holder>     an empty file for each reference
    <H or S>/content.<S-name>     the bytes, named by the S-name that they were written under
    <H or S>/new.<S-name>         a replacement for damaged bytes, while it is written
    owners/<sid>.<owner>          whose the owners are

No name of content is ever used twice, so what was seen of one attachment never names part of its successor.
All names are lower case: file systems may not tell cases apart.
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
    """As hashlib has them."""

    def update(self, data: bytes, /) -> None:
        """Go on with these bytes."""
        ...

    def digest(self) -> bytes:
        """Of all bytes so far."""
        ...


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A hash algorithm. `prefix`: a letter that begins the leaf of its H-names, other than s and i; "" for one only."""

    prefix: str
    size_bytes: int
    new: Callable[[], Hasher]

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix) or self.prefix in {"s", "i"}:
            raise ValueError(f"prefix {self.prefix!r} of a hash algorithm: one of g-z, but neither s nor i, or none")


SHA256 = Algorithm("", 32, hashlib.sha256)


class Algorithms:
    """Those that H-names may be of; new attachments get the last one. Each is told by the size of its digests.

    Adding one renames no file: the old ones are found by their hashes as before.
    """

    def __init__(self, algorithms: Sequence[Algorithm] = (SHA256,)) -> None:
        self.current = algorithms[-1]
        self._by_size = {algorithm.size_bytes: algorithm for algorithm in algorithms}
        self._by_prefix = {algorithm.prefix: algorithm for algorithm in algorithms}
        if not len(self._by_size) == len(self._by_prefix) == len(algorithms):
            raise ValueError("hash algorithms must differ in their prefixes and in the sizes of their digests")

    def new(self, content_hash: bytes) -> Hasher:
        """What makes such hashes. Raises ValueError for one of no known size."""
        return self._of(content_hash).new()

    def h_name(self, content_hash: bytes) -> str:
        """Where an attachment lies. Raises ValueError for a hash of no known size."""
        digits = content_hash.hex()
        return f"{digits[:2]}/{digits[2:4]}/{self._of(content_hash).prefix}{digits[4:]}"

    def hash_of(self, name: str) -> bytes | None:
        """The hash that an H-name stands for; None: it is none."""
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
            raise ValueError(f"a hash of {len(content_hash)} bytes: there are {sorted(self._by_size)}")
        return algorithm


def new_holder(owner: str, counter: int) -> str:
    """The name of a holder, and of the S-name that it builds under, without its levels."""
    return f"s{owner}i{counter}"


def owner_of(holder: str) -> str | None:
    """The owner of a holder or an S-name; None: it is none."""
    match = _S_NAME.fullmatch(holder)
    return match[1] if match else None


def s_name(holder: str) -> str:
    """Where this holder's attachment is built. Consecutive numbers go to all first levels in turn.

    Raises ValueError if that is no name of a holder.
    """
    match = _S_NAME.fullmatch(holder)
    if match is None:
        raise ValueError(f"{holder!r} names no holder")
    counter = int(match[2])
    return f"{counter & 0xFF:02x}/{counter >> 8 & 0xFF:02x}/{holder}"


def owner_file(sid: str, owner: str) -> str:
    """The file that says whose an owner is."""
    return f"{OWNERS}/{sid}.{owner}"


def parse_owner_file(leaf: str) -> tuple[str, str] | None:
    """SID and owner; None: it is no such file."""
    match = _OWNER.fullmatch(leaf)
    return (match[1], match[2]) if match else None


def parent(name: str) -> str:
    """The directory above; "" is the uppermost one."""
    return name.rpartition("/")[0]


def levels(place: str) -> tuple[str, str]:
    """The two directories above an S-name or an H-name, the upper one first."""
    lower = parent(place)
    return parent(lower), lower


def holders(place: str) -> str:
    """The directory of an attachment's holders."""
    return f"{place}/{HOLDERS}"


def content(holder: str) -> str:
    """The name of content that is written by this holder, in its directory."""
    return f"{CONTENT_PREFIX}{holder}"


def is_ours(leaf: str) -> bool:
    """Whether this is a name that the store gives to a file beside `holders/`."""
    prefix = CONTENT_PREFIX if leaf.startswith(CONTENT_PREFIX) else NEW_PREFIX
    return leaf.startswith(prefix) and owner_of(leaf.removeprefix(prefix)) is not None
