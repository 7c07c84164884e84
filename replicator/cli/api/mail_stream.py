"""Reading the mail that a node sends, one after the other: `GET /api/v1/users/USER/folders/NAME/mail`.

No mail is held in memory. The digest of each is compared with the node's, so what arrives is what was stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

import msgpack

from protocol.units import MIB

VALUE_BYTES_MAX = 4 * MIB
"""Octets of the largest value: a piece of a body, or the flags of a mail."""

_HEAD = [int, list, int, int, bytes]  # the types of what a mail begins with


class MailUnreadableError(Exception):
    """The node cannot read the body of this mail, or the rest of it. The text says why."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail of a folder. `pieces` are to be taken before the next mail, and raise MailUnreadableError."""

    uid: int
    flags: frozenset[str]
    received_ms: int
    size_bytes: int
    pieces: Iterator[bytes] = field(repr=False)


def mails(chunks: Iterable[bytes], broken: Callable[[str], Exception]) -> Iterator[Mail]:
    """Yield the mail of an answer, which arrives in chunks.

    Raises what `broken` returns, here or where pieces are taken, if this is no such answer, or a part of one.
    """
    values = _values(chunks, broken)
    head = next(values)
    while head is not None:
        if not isinstance(head, list) or [*map(type, head)] != _HEAD or not all(isinstance(it, str) for it in head[1]):
            raise broken("it is not mail")
        uid, flags, received_ms, size_bytes, sha256 = cast("tuple[int, list[str], int, int, bytes]", tuple(head))
        mail = _Pieces(values, sha256)
        yield Mail(uid, frozenset(flags), received_ms, size_bytes, mail.pieces)
        for _ in mail.rest():
            pass
        head = mail.after


class _Pieces:
    """The pieces of one mail. `after` is the value that follows them, once they are taken."""

    def __init__(self, values: Iterator[object], sha256: bytes) -> None:
        self.after: object = None
        self.pieces = self._pieces()
        self._values = values
        self._sha256 = sha256
        self._failure: str | None = None
        self._is_over = False

    def rest(self) -> Iterator[bytes]:
        """Yield the pieces that nobody has taken."""
        while not self._is_over:
            value = next(self._values)
            if isinstance(value, bytes):
                yield value
            elif isinstance(value, str):
                self._failure = value
            else:
                self.after, self._is_over = value, True

    def _pieces(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for piece in self.rest():
            digest.update(piece)
            yield piece
        if self._failure is not None:
            raise MailUnreadableError(self._failure)
        if digest.digest() != self._sha256:
            raise MailUnreadableError("other octets arrive than were stored; `replicator scrub` looks for damage")


def _values(chunks: Iterable[bytes], broken: Callable[[str], Exception]) -> Iterator[object]:
    """Yield the values of an answer, the last of which is None."""
    unpacker = msgpack.Unpacker(max_buffer_size=VALUE_BYTES_MAX, unicode_errors="surrogatepass")
    try:
        for chunk in chunks:
            unpacker.feed(chunk)
            for value in unpacker:
                yield value
                if value is None:
                    return
    except (msgpack.UnpackException, ValueError) as error:
        raise broken(f"it is not MessagePack: {error!r}") from error
    raise broken("it ends in the middle")
