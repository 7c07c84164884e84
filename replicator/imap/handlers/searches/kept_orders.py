"""Orders of messages in memory: those of SORT and THREAD, for the next such command on the same messages, or nearly so.

An order holds for the same UIDs of the same view: a UID names one message, no entry changes a message's body, size or
date, and the view of a mailbox in which one is put right ends (`retire` in `store/db/memory/view_cache.py`).
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import NamedTuple
from weakref import ref

from replicator.imap.header_cache import Arrangement, CachedRow, OrderedBy, digest
from replicator.imap.ordering.order import Order
from replicator.imap.rendering.header_columns import size_bytes_of
from replicator.imap.session import Session

_LATEST = b""
"""Key, in place of a digest of messages, of the row with the digest of the messages whose order was kept last."""


class KeptOrder(NamedTuple):
    """Messages, ascending by UID, with their order."""

    uids: array[int]
    order: Order


async def kept_order(session: Session, uids: array[int], by: OrderedBy) -> Order | None:
    """Return the order of these messages of the selected mailbox, if it is in memory."""
    kept = _kept(session, await _digest(session, uids), by)
    return None if kept is None else kept.order


def latest_order(session: Session, by: OrderedBy) -> KeptOrder | None:
    """Return the order of messages of the selected mailbox that was kept last, if it is in memory."""
    row = session.services.headers.get(_LATEST, _arrangement(session, by))
    if row is None:
        return None
    [messages] = row.values
    assert isinstance(messages, bytes)
    return _kept(session, messages, by)


async def keep_order(session: Session, uids: array[int], by: OrderedBy, order: Order) -> None:
    """Keep the order of these messages of the selected mailbox in memory."""
    messages, arrangement = await _digest(session, uids), _arrangement(session, by)
    for name, values in (
        (messages, (uids.tobytes(), order.places.tobytes(), *order.forms)),
        (_LATEST, (messages,)),
    ):
        session.services.headers.put(name, arrangement, CachedRow(values, size_bytes_of(values)))


def _kept(session: Session, messages: bytes, by: OrderedBy) -> KeptOrder | None:
    row = session.services.headers.get(messages, _arrangement(session, by))
    if row is None:
        return None
    uids, places, *forms = (value for value in row.values if isinstance(value, bytes))
    return KeptOrder(array("I", uids), Order(array("I", places), forms))


def _arrangement(session: Session, by: OrderedBy) -> Arrangement:
    return Arrangement(ref(session.selection.view), by)


async def _digest(session: Session, uids: array[int]) -> bytes:
    return await session.services.parsing.apart_if_many(len(uids), partial(digest, (uids.tobytes(),)))
