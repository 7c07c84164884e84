"""Comparing the heads of one mailbox between nodes, by MBOX: asking and answering (design section 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from protocol.commands import Done, Mbox, Mismatch, RefusalCode, Refused, Reply
from protocol.values import Dot, context_dots
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.writes.durability import Durability
from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store

NOT_LOGGED = "log"
"""A field of MISMATCH: the state was installed, and its entries and bodies are not on that node's disk yet."""


async def compare(
    store: Store, mastership: Mastership, link: PeerLink, mbox: Mbox, lacks: Callable[[MailboxKey], None]
) -> Reply:
    """Answer an MBOX, or pass it on to its destination. Raises LinkDownError.

    `lacks` is called with a mailbox that this node masters, or that another node says it does, if that node shows a
    head of it that is unknown here, or shows the head that this node shows with another digest.
    """
    key = MailboxKey.of(mbox)
    if mbox.destination is not None and mbox.destination != mastership.sid:
        onward = mastership.toward(mbox.destination)
        if onward is None or onward is link:
            return Refused(RefusalCode.UNAVAILABLE, f"no route to {mbox.destination}")
        return await onward.request(lambda onward: replace(mbox, number=onward.number(key, mbox.name)))
    mine = await store.read(lambda reader: chains.load(reader, mbox.mailbox_id))
    is_same = mine is not None and mine.head == mbox.head and mine.digest() == mbox.digest
    is_ours = mastership.is_ours(key)
    is_other = mine is None or mine.head == mbox.head or (mbox.head is not None and not mine.has_seen(mbox.head))
    if is_other and not is_same and mbox.head is not None and (is_ours or mbox.to_master):
        lacks(key)
    if mbox.to_master and not is_ours:
        return Refused(
            RefusalCode.NOT_MASTER, f"{mastership.sid} does not know that it masters this; ask the root again"
        )
    if mine is None:
        return Done() if mbox.head is None else Mismatch(("head",), None, ())
    is_logged = mine.head is None or store.context.get(mine.head.origin, 0) >= mine.head.seq
    if is_same:
        return Done() if is_logged else Mismatch((NOT_LOGGED,), mine.head, context_dots(mine.context))
    fields = ("head" if mine.head != mbox.head else "digest", *(() if is_logged else (NOT_LOGGED,)))
    return Mismatch(fields, mine.head, context_dots(mine.context))


async def ask_who_has(store: Store, mastership: Mastership, durability: Durability, key: MailboxKey) -> None:
    """Ask all nodes of the component for their heads of a mailbox; count these entries as on those nodes' disks."""
    chain = await store.read(lambda reader: chains.load(reader, key.mailbox_id))

    async def ask_one(sid: str, mine: Chain) -> None:
        link = mastership.toward(sid)
        reply = await _ask(link, sid, key, mine)
        head = mine.head if isinstance(reply, Done) else reply.head if isinstance(reply, Mismatch) else None
        is_logged = not (isinstance(reply, Mismatch) and NOT_LOGGED in reply.fields)
        if head is not None and is_logged and _can_be_there(store, head):
            durability.acknowledged(sid, {head.origin: head.seq})

    async with trio.open_nursery() as nursery:
        for sid in mastership.table.component:
            if chain is not None and sid != mastership.sid:
                nursery.start_soon(ask_one, sid, chain)


async def ask(link: PeerLink | None, sid: str, key: MailboxKey, mine: Chain, *, bodies: bool = False) -> Reply | None:
    """Send a node the state of a mailbox as it is here, and return its answer; None if it cannot be reached.

    Done means that the node shows the same. With `bodies` the node first corrects which bodies its messages have (see
    `BodyConflicts`).
    """
    reply = await _ask(link, sid, key, mine, bodies=bodies)
    is_same = isinstance(reply, Mismatch) and reply.fields == (NOT_LOGGED,)
    return Done() if is_same else reply


async def tell_master(mastership: Mastership, master: str, key: MailboxKey, mine: Chain) -> None:
    """Tell a mailbox's master which head is shown here. If it denies being the master, forget that it is."""
    reply = await _ask(mastership.toward(master), master, key, mine, to_master=True)
    if isinstance(reply, Refused) and reply.code == RefusalCode.NOT_MASTER:
        mastership.doubt(key)


async def is_beyond_logs(store: Store, link: PeerLink | None, sid: str, key: MailboxKey, mine: Chain) -> bool:
    """Return True if no log makes a mailbox equal to its state at a node.

    That node shows another head and does not have its entry in its log, or shows this node's head differently. Or this
    node counts the entry of that head as received, and neither shows its effect nor waits to: a faulty node has once
    told it that there was nothing else to take over.
    """
    reply = await _ask(link, sid, key, mine)
    if not isinstance(reply, Mismatch) or reply.fields == (NOT_LOGGED,):
        return False
    return NOT_LOGGED in reply.fields or reply.head == mine.head or _is_missed(store, mine, reply.head)


def _is_missed(store: Store, mine: Chain, head: Dot | None) -> bool:
    """Return True if an entry that this node counts as received has neither been carried out here nor waits."""
    if head is None or mine.has_seen(head) or store.context.get(head.origin, 0) < head.seq:
        return False
    return not store.has_waiting(mine.id)


def _can_be_there(store: Store, head: Dot) -> bool:
    """Return False if the head is an entry of this node that it has not numbered yet: no other node can have it."""
    return head.origin != store.origin or head.seq <= store.context.get(store.origin, 0)


async def _ask(
    link: PeerLink | None, sid: str, key: MailboxKey, mine: Chain, *, bodies: bool = False, to_master: bool = False
) -> Reply | None:
    def mbox(link: PeerLink) -> Mbox:
        return Mbox(
            link.number(key), key.user, "", key.mailbox_id, key.uidvalidity, mine.uidnext, mine.messages,
            mine.highestmodseq, mine.head, mine.digest(), sid, bodies, to_master,
        )  # fmt: skip

    if link is None:
        return None
    try:
        return await link.request(mbox)
    except LinkDownError:
        return None
