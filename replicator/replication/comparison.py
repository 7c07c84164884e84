"""Comparing one mailbox between nodes: what a new master does before it numbers (design section 5).

And what it does to know how many disks have an entry that another node has numbered.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import trio

from protocol.commands import Done, Mbox, Mismatch, RefusalCode, Refused, Reply
from protocol.values import Dot
from replicator.errors import MailError
from replicator.replication.durability import Durability
from replicator.replication.healing import Healer
from replicator.replication.link import LinkDownError, PeerLink
from replicator.replication.mastership import Mastership
from replicator.store import chain as chains
from replicator.store.chain import Chain
from replicator.store.reading import MailboxKey
from replicator.store.store import Store


async def compare(store: Store, mastership: Mastership, link: PeerLink, mbox: Mbox) -> Reply:
    """Answer an MBOX, or pass it on to the node that it is for. Raises LinkDownError."""
    if mbox.destination is not None and mbox.destination != mastership.sid:
        onward = mastership.toward(mbox.destination)
        if onward is None or onward is link:
            return Refused(RefusalCode.UNAVAILABLE, f"no way to {mbox.destination}")
        key = MailboxKey(mbox.user, mbox.mailbox_id, mbox.uidvalidity)
        return await onward.request(lambda onward: replace(mbox, number=onward.number(key, mbox.name)))
    mine = await store.read(lambda reader: chains.load(reader, mbox.mailbox_id))
    if mine is None:
        return Done() if mbox.head is None else Mismatch(("head",), None, ())
    if mine.head == mbox.head and mine.digest() == mbox.digest:
        return Done()
    fields = ("head",) if mine.head != mbox.head else ("digest",)
    return Mismatch(fields, mine.head, tuple(Dot(origin, seq) for origin, seq in sorted(mine.context.items())))


async def catch_up(store: Store, mastership: Mastership, healer: Healer, key: MailboxKey) -> None:
    """Ask all nodes of the component for the head of one mailbox; take what they have more, or join it.

    Raises MailError or sqlite3.Error if a branch cannot be joined, such as on a full disk.
    """
    chain = await store.read(lambda reader: chains.load(reader, key.mailbox_id))
    mine = chain or Chain(key.mailbox_id, key.user, key.uidvalidity)
    failures: list[MailError | sqlite3.Error] = []

    async def catch_up_with(sid: str) -> None:
        link = mastership.toward(sid)
        reply = await _ask(link, sid, key, mine) if link else None
        if isinstance(reply, Mismatch) and reply.head is not None and not mine.has_seen(reply.head):
            await store.wait_logged(reply.head)
            while store.is_waiting(reply.head):
                await healer.join_branches(key)
                if store.is_waiting(reply.head):
                    await store.tail.grown()

    async def try_to_catch_up_with(sid: str) -> None:
        try:
            await catch_up_with(sid)
        except (MailError, sqlite3.Error) as error:  # a nursery would hide what it is from those who handle it
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for sid in mastership.table.component:
            if sid != mastership.sid:
                nursery.start_soon(try_to_catch_up_with, sid)
    if failures:
        raise failures[0]


async def ask_who_has(store: Store, mastership: Mastership, durability: Durability, key: MailboxKey) -> None:
    """Let all nodes of the component say at which head they are: what that is rests on their disks."""
    chain = await store.read(lambda reader: chains.load(reader, key.mailbox_id))

    async def ask(sid: str, mine: Chain) -> None:
        link = mastership.toward(sid)
        reply = await _ask(link, sid, key, mine) if link else None
        head = mine.head if isinstance(reply, Done) else reply.head if isinstance(reply, Mismatch) else None
        if head is not None:
            durability.acknowledged(sid, {head.origin: head.seq})

    async with trio.open_nursery() as nursery:
        for sid in mastership.table.component:
            if chain is not None and sid != mastership.sid:
                nursery.start_soon(ask, sid, chain)


async def _ask(link: PeerLink, sid: str, key: MailboxKey, mine: Chain) -> Reply | None:
    def mbox(link: PeerLink) -> Mbox:
        return Mbox(
            link.number(key), key.user, "", key.mailbox_id, key.uidvalidity, mine.uidnext, mine.messages,
            mine.highestmodseq, mine.head, mine.digest(), sid,
        )  # fmt: skip

    try:
        return await link.request(mbox)
    except LinkDownError:
        return None
