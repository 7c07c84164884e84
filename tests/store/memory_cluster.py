"""Nodes with databases in memory that share many mailboxes and trees, and exchange logs in any order."""

import random
from collections.abc import Callable
from contextlib import suppress

from protocol.values import Context, UidSet
from replicator.errors import MailError
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.log.sequencing.sequencer import CopySource
from resync.entry import NOWHERE
from resync.row import Row
from tests.store.memory_node import MemoryNode


class Cluster:
    """Nodes and their mailboxes. Node n masters mailbox n (modulo the number of nodes) until `hand_over` moves it."""

    def __init__(self, size: int) -> None:
        self.nodes = [MemoryNode(f"dc{number}.a") for number in range(size)]
        self.keys = [MailboxKey(f"user{number}", bytes([number]) * 16, 7) for number in range(size + 1)]
        self.masters = {key: self.nodes[number % size] for number, key in enumerate(self.keys)}

    def context(self, node: MemoryNode) -> Context:
        return queries.log_context(node.connection)

    def change(self, key: MailboxKey, rng: random.Random) -> None:
        rng.choice([save, save, save, copy, flag, expunge, folders])(self.masters[key], key, rng)

    def exchange(self, rng: random.Random, count: int) -> None:
        """Send some entries that another node lacks, out of order between origins."""
        source, target = rng.sample(self.nodes, 2)
        logged = source.log(queries.log_start(source.connection, self.context(target)))[:count]
        origins = sorted({item.entry.dot.origin for item in logged}, key=lambda _: rng.random())
        for origin in origins:
            for item in logged:
                if item.entry.dot.origin == origin:
                    target.take(item)

    def hand_over(self, key: MailboxKey, rng: random.Random) -> None:
        """Move a mailbox as MASTER-MOVE does: the new master first catches up with it."""
        old, new = self.masters[key], rng.choice(self.nodes)
        for item in old.log(queries.log_start(old.connection, self.context(new))):
            new.take(item)
        self.masters[key] = new

    def settle(self) -> None:
        for source in self.nodes:
            for target in self.nodes:
                for item in source.log(queries.log_start(source.connection, self.context(target))):
                    target.take(item)


def rows(node: MemoryNode, key: MailboxKey) -> list[Row]:
    return list(queries.mailbox_rows(node.connection, key.mailbox_id))


def save(node: MemoryNode, key: MailboxKey, rng: random.Random) -> None:
    stored = StoredBody.of(b"body %d" % rng.randrange(5))
    guid, flags = node.guid(), rng.sample(["\\Seen", "\\Flagged"], rng.randrange(3))
    node.write(lambda tx: sequencer.save(tx, key, stored, guid=guid, received_ms=1, flags=flags))


def copy(node: MemoryNode, key: MailboxKey, rng: random.Random) -> None:
    held = rows(node, key)
    wanted = [CopySource(row.uid, row.guid, node.guid()) for row in rng.sample(held, min(2, len(held)))]
    node.write(lambda tx: sequencer.copy(tx, key.mailbox_id, wanted, key))


def flag(node: MemoryNode, key: MailboxKey, rng: random.Random) -> None:
    uids = UidSet.of(rng.sample(range(1, 10), 3))
    added, removed = ([name] if rng.random() < 0.6 else [] for name in ("\\Seen", "\\Flagged"))
    node.write(lambda tx: sequencer.store(tx, key, uids, added=added, removed=removed))


def expunge(node: MemoryNode, key: MailboxKey, rng: random.Random) -> None:
    uids = UidSet.of(rng.sample(range(1, 10), 2))
    node.write(lambda tx: sequencer.expunge(tx, key, uids))


def folders(node: MemoryNode, key: MailboxKey, rng: random.Random) -> None:
    """Make a random change to the tree of the mailbox's user. The node may refuse it."""
    name, new_ids = "/".join(rng.choices("ab", k=rng.randint(1, 3))), iter(node.guid, None)
    known = [record.mailbox_id for record in queries.folders(node.connection, key.user).values()]
    folder = rng.choice([*known, node.guid()])
    subscribed = rng.random() < 0.5
    home, value = rng.choice([NOWHERE, folder]), rng.choice([None, rng.randbytes(2)])
    changes: list[Callable[[Transaction], object]] = [
        lambda tx: folder_sequencer.create_folder(tx, key.user, name, node.guid(), spare_ids=new_ids),
        lambda tx: folder_sequencer.rename_folder(tx, key.user, folder, name, spare_ids=new_ids),
        lambda tx: folder_sequencer.delete_folder(tx, key.user, folder),
        lambda tx: folder_sequencer.subscribe(tx, key.user, name, subscribed=subscribed),
        lambda tx: folder_sequencer.annotate(tx, key.user, home, [(f"/private/{rng.choice('ab')}", value)]),
    ]
    with suppress(MailError):
        node.write(rng.choice(changes))
