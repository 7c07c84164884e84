"""The values of calls between the core and a door, as MessagePack.

A set, and a dataclass that is listed below, arrive with their type. A named tuple arrives as a plain tuple: the
receiver makes it again, as `message_of` does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, cast

import msgpack

from protocol.values import Dot, UidSet
from replicator.mail.mailstore import CopiedMessages, Folder, FolderStatus, Quota, SavedMessage, StoreResult
from replicator.mail.view import Message
from replicator.runtime.sessions import SessionStatus

Columns: TypeAlias = Sequence[Any]
"""The values of a named tuple, as they arrive."""

_KINDS: tuple[type, ...] = (Folder, FolderStatus, SavedMessage, StoreResult, UidSet, Quota, SessionStatus)
_SET, _COPIED = len(_KINDS), len(_KINDS) + 1
_NUMBERS = {kind: (number, [one.name for one in fields(kind)]) for number, kind in enumerate(_KINDS)}


def packed(value: object) -> bytes:
    """Return a value as MessagePack. Raises TypeError for one that no call has."""
    return cast("bytes", msgpack.packb(value, default=_extended, unicode_errors="surrogatepass"))


class UnpackError(Exception):
    """Octets that are no packed value, or one that is too large."""


class Unpacker:
    """Takes packed values apart as they arrive, each of at most `max_bytes` octets."""

    def __init__(self, max_bytes: int) -> None:
        self._unpacker = msgpack.Unpacker(
            use_list=False,
            ext_hook=_restored,
            unicode_errors="surrogatepass",
            max_buffer_size=max_bytes,
            strict_map_key=False,
        )

    def values(self, data: bytes | bytearray) -> Iterator[Columns]:
        """Yield the values, all of them arrays, that are whole with these octets. Raises UnpackError."""
        try:
            self._unpacker.feed(data)
            yield from self._unpacker
        except (msgpack.UnpackException, ValueError) as error:
            raise UnpackError(f"a frame cannot be unpacked: {error!r}") from error


def message_of(columns: Columns) -> Message:
    """Return a message whose columns have arrived."""
    message = Message._make(columns)
    return message._replace(dot=Dot(*message.dot), also=tuple((Dot(*of), at) for of, at in message.also))


def dot_of(columns: Columns | None) -> Dot | None:
    """Return the name of an entry that has arrived."""
    return None if columns is None else Dot(*columns)


def _extended(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return msgpack.ExtType(_SET, packed(sorted(value)))
    if isinstance(value, CopiedMessages):  # as arrays: a COPY may have a hundred thousand pairs
        columns = [array("I", column).tobytes() for column in zip(*value.uids, strict=True)]
        return msgpack.ExtType(_COPIED, packed((value.uidvalidity, columns, value.shown)))
    number, names = _NUMBERS[type(value)]
    return msgpack.ExtType(number, packed([getattr(value, name) for name in names]))


def _restored(number: int, data: bytes) -> object:
    values = msgpack.unpackb(
        data, use_list=False, ext_hook=_restored, unicode_errors="surrogatepass", strict_map_key=False
    )
    if number == _SET:
        return frozenset(values)
    if number == _COPIED:
        uidvalidity, columns, shown = values
        return CopiedMessages(uidvalidity, tuple(zip(*(array("I", column) for column in columns), strict=True)), shown)
    return _KINDS[number](*values)
