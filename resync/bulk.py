"""Rows of a mailbox or a folder tree as SYNC compares and transfers them (design section 7).

The rows of a mailbox are its messages, by GUID; those of a tree are its folders, by mailbox id, and its subscriptions
and annotations, by a hash of what names them; those of a node are its mailboxes and trees, by their ids. The hashes of
a mailbox's or tree's rows are those of which digests are made; the hashes of a node's rows are the digests themselves.
Malformed data from the wire raises ValueError; checking the meaning of its numbers is left to the callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgpack

from resync import entry as entries
from resync import row as rows
from resync.entry import ID_BYTES, AnnotationState, FolderState, SubscriptionState, TreeRow
from resync.ranges import Answer, Fingerprint, Listing, Split
from resync.row import FINGERPRINT_BYTES, Row, to_bytes

T = TypeVar("T")


class ChainName(NamedTuple):
    """A row of a node: a mailbox or, if its UIDVALIDITY is 0, a tree.

    Its hash is the digest, which is not part of the row.
    """

    user: str
    mailbox_id: bytes
    uidvalidity: int


Item: TypeAlias = Row | TreeRow | ChainName


def key_of(item: Item) -> bytes:
    """Return the 16 bytes that name the row in its mailbox or tree."""
    match item:
        case Row():
            return item.guid
        case FolderState() | ChainName():
            return item.mailbox_id
        case SubscriptionState():
            return blake2b(f"subscription:{item.name}".encode(), digest_size=ID_BYTES).digest()
        case AnnotationState():
            named = b"annotation:%b:%b" % (item.mailbox_id, item.name.encode())
            return blake2b(named, digest_size=ID_BYTES).digest()


def hash_of(item: Item) -> int:
    """Return a 128-bit hash over every field."""
    match item:
        case Row():
            return item.fingerprint()
        case FolderState():
            return rows.fingerprint((*item[:4], int(item.deleted), *item[5:]))
        case SubscriptionState():
            return rows.fingerprint((*item[:2], int(item.subscribed), *item[3:]))
        case AnnotationState():
            return rows.fingerprint(item)
        case ChainName():
            raise AssertionError("a node's rows have digests for hashes")


def pack_items(items: Iterable[Item]) -> bytes:
    """Pack rows as MessagePack."""
    return _pack([item.packed() if isinstance(item, Row) else tuple(item) for item in items])


def unpack_items(packed: bytes) -> list[Item]:
    """Unpack the rows that `pack_items` packed. Raises ValueError."""
    return _unpack(packed, _item)


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Pack keys of rows as MessagePack."""
    return _pack(keys)


def unpack_keys(packed: bytes) -> list[bytes]:
    """Unpack the keys that `pack_keys` packed. Raises ValueError."""
    return _unpack(packed, _key)


def pack_answers(answers: Sequence[Answer]) -> bytes:
    """Pack the answers about ranges as MessagePack."""
    return _pack([_packed(answer) for answer in answers])


def unpack_answers(packed: bytes) -> list[Answer]:
    """Unpack the answers that `pack_answers` packed. Raises ValueError."""
    return _unpack(packed, _answer)


def _packed(answer: Answer) -> tuple[bool, list[tuple[int | bytes, bytes]]]:
    if isinstance(answer, Split):
        return True, [(part.size, to_bytes(part.total)) for part in answer.parts]
    return False, [(key, to_bytes(value)) for key, value in answer.items]


def _pack(values: Sequence[object]) -> bytes:
    return cast("bytes", msgpack.packb(values))


def _unpack(packed: bytes, meaning: Callable[[Any], T]) -> list[T]:
    try:
        return [meaning(value) for value in cast("tuple[Any, ...]", msgpack.unpackb(packed, use_list=False))]
    except (msgpack.UnpackException, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{len(packed)} bytes are not data of a SYNC: {error!r}") from error


def _item(values: tuple[Any, ...]) -> Item:
    match len(values):
        case 10 | 11 | 12:
            return entries.row_from(values)
        case 3:
            return entries.checked(ChainName(*values), str, bytes, int)
        case 7:
            return entries.checked(FolderState(*values), bytes, str, str, int, bool, int, str)
        case 6:
            return entries.annotation_from(values)
        case _:
            return entries.checked(SubscriptionState(*values), str, str, bool, int, str)


def _key(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise TypeError(f"a key must have {ID_BYTES} bytes")
    return value


def _answer(values: tuple[Any, ...]) -> Answer:
    is_split, pairs = values
    if is_split is True:
        return Split(tuple(Fingerprint(_size(size), _total(total)) for size, total in pairs))
    return Listing(tuple((_key(key), _total(total)) for key, total in pairs))


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a size must be a number")
    return value


def _total(value: object) -> int:
    if not isinstance(value, bytes) or len(value) != FINGERPRINT_BYTES:
        raise TypeError(f"a hash must have {FINGERPRINT_BYTES} bytes")
    return int.from_bytes(value)
