"""Orders of messages in memory: those of SORT and THREAD, for the next such command on the same messages.

An order holds for the same UIDs of the same view: a UID names one message, no entry changes a message's body, size or
date, and the view of a mailbox in which one is put right ends (`retire` in `store/db/view_cache.py`).
"""

from __future__ import annotations

from array import array
from functools import partial
from weakref import ref

from replicator.imap.header_cache import Arrangement, CachedRow, OrderedBy, digest
from replicator.imap.ordering.order import Order
from replicator.imap.rendering.header_columns import size_bytes_of
from replicator.imap.session import Session


async def kept_order(session: Session, uids: array[int], by: OrderedBy) -> Order | None:
    """Return the order of these messages of the selected mailbox, if it is in memory."""
    row = session.services.headers.get(await _digest(session, uids), _arrangement(session, by))
    if row is None:
        return None
    places, *forms = row.values
    assert isinstance(places, bytes)
    return Order(array("I", places), [form for form in forms if isinstance(form, bytes)])


async def keep_order(session: Session, uids: array[int], by: OrderedBy, order: Order) -> None:
    """Keep the order of these messages of the selected mailbox in memory."""
    values = (order.places.tobytes(), *order.forms)
    row = CachedRow(values, size_bytes_of(values))
    session.services.headers.put(await _digest(session, uids), _arrangement(session, by), row)


def _arrangement(session: Session, by: OrderedBy) -> Arrangement:
    return Arrangement(ref(session.selection.view), by)


async def _digest(session: Session, uids: array[int]) -> bytes:
    return await session.services.parsing.apart_if_many(len(uids), partial(digest, (uids.tobytes(),)))
