"""Checkpoints of a real database, and the entries of the log after them."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from protocol.values import Dot
from replicator.store.checkpoints.checkpoint import CheckpointReader, state_of, write_mailbox, write_tree
from replicator.store.db import queries
from replicator.store.db.entry_validation import NamedHead, head_of
from replicator.store.store import Store
from resync.entry import Entry
from resync.folder_tree import TreeState
from resync.state import MailboxState
from tests.resync.replaying import replay, replay_tree
from tests.store.harness import (
    INBOX,
    WORK,
    creating,
    deleting,
    expunging,
    flagging,
    open_store,
    renaming,
    save,
    subscribing,
)


async def change_at_random(store: Store, rng: random.Random) -> None:
    await store.write(creating("Work", WORK.mailbox_id))
    await store.write(creating("Old", b"old-----" * 2))
    saved: dict[bytes, list[int]] = {INBOX.mailbox_id: [], WORK.mailbox_id: []}
    for number in range(1, 60):
        key = rng.choice([INBOX, WORK])
        uids = saved[key.mailbox_id]
        choice = rng.random()
        if choice < 0.5 or not uids:
            uids.append(await save(store, number, key, rng.choice([(), ("\\Seen",), ("$A", "b")])))
        elif choice < 0.8:
            some = rng.sample(uids, min(len(uids), 3))
            await store.write(flagging(*some, added=["\\Flagged"], removed=["\\Seen"], key=key))
        else:
            await store.write(expunging(uids.pop(rng.randrange(len(uids))), key=key))
    await store.write(renaming(WORK.mailbox_id, "Work 2"))
    await store.write(deleting(b"old-----" * 2))
    await store.write(subscribing("Work 2"))


def checkpoints(connection: sqlite3.Connection) -> dict[NamedHead, bytes]:
    """Return the checkpoints of all mailboxes and trees that the database shows."""
    made: dict[NamedHead, bytes] = {}
    for chain in list(queries.chains_of(connection, None)):
        assert chain.head is not None
        entry = queries.entry_at(connection, chain.head)
        assert entry is not None
        head = head_of(entry)
        if head.is_tree:
            pieces = write_tree(head, chain.history, queries.tree_state(connection, chain.user, chain))
        else:
            pieces = write_mailbox(head, chain.history, chain, queries.mailbox_rows(connection, chain.id))
        made[head] = b"".join(pieces)
    return made


def read(head: NamedHead, data: bytes) -> MailboxState | TreeState:
    reader = CheckpointReader("mail/a", head)
    state = state_of(head, list(reader.receive(data)))
    reader.finish()
    return state


def log(connection: sqlite3.Connection, chain_id: bytes) -> list[Entry]:
    rows = connection.execute("SELECT origin, seq, body FROM log WHERE chain = ? ORDER BY position", (chain_id,))
    return [Entry.unpack(Dot(origin, seq), body) for origin, seq, body in rows]


@pytest.mark.parametrize("seed", range(5))
async def test_checkpoint_and_later_entries_give_the_state_of_the_log(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with open_store(tmp_path) as store:
        await change_at_random(store, rng)
        made = await store.read(checkpoints)
        assert len(made) == 3
        for number in range(100, 110):
            await save(store, number, rng.choice([INBOX, WORK]))
        await store.write(renaming(WORK.mailbox_id, "Work 3"))
        for head, data in made.items():
            entries = await store.read(lambda reader, head=head: log(reader, head.mailbox_id))  # type: ignore[misc]
            state = read(head, data)
            at = [entry.dot for entry in entries].index(head.dot) + 1
            assert state == (replay_tree(entries[:at]) if head.is_tree else replay(entries[:at]))
            for entry in entries[at:]:
                state.apply(entry)
            assert state == (replay_tree(entries) if head.is_tree else replay(entries))
