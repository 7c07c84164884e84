"""Nodes with databases in memory that number independently, exchange logs in any order, and join branches."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from protocol.values import Dot
from replicator.config import UidConflict
from replicator.errors import MailError
from replicator.mail.view import Message
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import forks
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.log.sequencing.sequencer import NewUid
from resync.entry import NOWHERE, Entry, anchor, tree_id
from resync.state import MailboxState
from tests.resync.replaying import replay
from tests.store import consistency
from tests.store.harness import ALICE, INBOX, expunging, flagging
from tests.store.memory_node import MemoryNode

TREE = MailboxKey(ALICE, tree_id(ALICE), 0)
BODY = StoredBody.of(b"body")


def with_histories(connection: sqlite3.Connection, entry: Entry) -> Entry:
    """Return the entry with the histories of its predecessors, as the node with this database knows them."""
    chain = chains.load(connection, entry.mailbox_id)

    def history(dot: Dot) -> bytes:
        if chain is not None and dot == chain.head:
            return chain.history
        known = queries.entry_at(connection, dot)
        return known.history if known else anchor(dot)

    return replace(entry, histories=tuple(map(history, entry.predecessors)))


class CheckedNode:
    """A node whose commits to one mailbox are checked against the promises of design section 3."""

    def __init__(self, name: str, uid: UidConflict) -> None:
        self.node, self.uid = MemoryNode(f"{name}.a"), uid
        self.guids_by_uid: dict[int, bytes] = {}
        self.rows: dict[int, Message] = {}
        self.uidnext, self.modseq = 1, 0

    def check_commits(self) -> None:
        for commit in self.node.commits:
            for change in commit.changes:
                assert change.modseq > self.modseq, "a MODSEQ was shown twice"
                for uid in change.expunged:
                    self.rows.pop(uid, None)
                for message in change.changed:
                    self.check_message(message)
                assert change.uidnext >= self.uidnext
                self.uidnext, self.modseq = change.uidnext, change.modseq
        self.node.commits.clear()
        held = [row.guid for row in self.rows.values()]
        assert len(set(held)) == len(held), "the mailbox shows a GUID twice"

    def check_message(self, message: Message) -> None:
        before = self.rows.get(message.uid)
        if message.uid not in self.guids_by_uid:
            assert message.uid >= self.uidnext, "a message appeared below a UIDNEXT that was shown"
        assert self.guids_by_uid.setdefault(message.uid, message.guid) == message.guid, "a UID named two messages"
        if before is None or before.flags != message.flags:
            assert message.modseq > self.modseq, "a change appeared at a MODSEQ that was shown"
        self.rows[message.uid] = message

    def join(self, key: MailboxKey, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Merge the other branches of a mailbox or tree. `meanwhile` runs between planning and carrying out."""
        for head in forks.branch_heads(self.node.connection, key.mailbox_id):
            branch = forks.replay_branch(self.node.connection, head)
            if branch is None:
                continue
            plan = forks.plan_merge(self.node.connection, key, branch, self.uid)
            meanwhile()
            if plan is not None:
                self.node.write(partial(forks.carry_out, plan=plan))
        self.check_commits()


class World:
    """Nodes with one mailbox and one tree. There is no master: each node numbers changes on top of its own head."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng = rng
        policies = rng.choice([[UidConflict.RENUMBER], [UidConflict.UIDVALIDITY], list(UidConflict)])
        self.all = [CheckedNode(f"dc{number}", rng.choice(policies)) for number in range(size)]
        self.saved: list[bytes] = []
        self.expunged: set[bytes] = set()

    def step(self) -> None:
        one = self.rng.choice(self.all)
        one.node.now_ms += self.rng.randrange(2000)
        acts = [self.save, self.save, self.expunge, self.flag, self.raise_numbers, self.renumber, self.folders]
        act = self.rng.choice([*acts, self.exchange, self.join])
        act(one)
        one.check_commits()

    def save(self, one: CheckedNode) -> None:
        again = self.saved and self.rng.random() < 0.2
        message = self.rng.choice(self.saved) if again else one.node.guid()
        if message in self.expunged:
            return
        self.saved.append(message)
        flags = self.rng.sample(["\\Seen", "\\Flagged"], self.rng.randrange(3))
        uid = one.uidnext + self.rng.randint(-2, 5) if self.rng.random() < 0.3 else None
        one.node.write(lambda tx: sequencer.save(tx, INBOX, BODY, guid=message, received_ms=1, flags=flags, uid=uid))

    def renumber(self, one: CheckedNode) -> None:
        if one.rows:
            uids = self.rng.sample(sorted(one.rows), self.rng.randint(1, min(3, len(one.rows))))
            wanted = [NewUid(uid, one.rows[uid].guid, one.uidnext + self.rng.randint(-1, 4)) for uid in uids]
            one.node.write(lambda tx: sequencer.renumber(tx, INBOX, wanted))

    def raise_numbers(self, one: CheckedNode) -> None:
        uidnext, modseq = (number + self.rng.randint(-1, 3) for number in (one.uidnext, one.modseq))
        one.node.write(lambda tx: sequencer.raise_numbers(tx, INBOX, uidnext, modseq))

    def expunge(self, one: CheckedNode) -> None:
        if one.rows:
            uid = self.rng.choice(sorted(one.rows))
            self.expunged.add(one.rows[uid].guid)
            one.node.write(expunging(uid))

    def flag(self, one: CheckedNode) -> None:
        if one.rows:
            uids = self.rng.sample(sorted(one.rows), self.rng.randint(1, len(one.rows)))
            added, removed = ([name] if self.rng.random() < 0.6 else [] for name in ("\\Seen", "\\Flagged"))
            one.node.write(flagging(*uids, added=added, removed=removed))

    def folders(self, one: CheckedNode) -> None:
        name, new_ids = "/".join(self.rng.choices("ab", k=self.rng.randint(1, 3))), iter(one.node.guid, None)
        known = [record.mailbox_id for record in queries.folders(one.node.connection, ALICE).values()]
        folder, subscribed = self.rng.choice([*known, one.node.guid()]), self.rng.random() < 0.5
        home, value = self.rng.choice([NOWHERE, folder]), self.rng.choice([None, self.rng.randbytes(2)])
        changes: list[Callable[[Transaction], object]] = [
            lambda tx: folder_sequencer.create_folder(tx, ALICE, name, one.node.guid(), spare_ids=new_ids),
            lambda tx: folder_sequencer.rename_folder(tx, ALICE, folder, name, spare_ids=new_ids),
            lambda tx: folder_sequencer.delete_folder(tx, ALICE, folder),
            lambda tx: folder_sequencer.subscribe(tx, ALICE, name, subscribed=subscribed),
            lambda tx: folder_sequencer.annotate(tx, ALICE, home, [(f"/private/{self.rng.choice('ab')}", value)]),
        ]
        with suppress(MailError):
            one.node.write(self.rng.choice(changes))

    def exchange(self, target: CheckedNode) -> None:
        """Give the target some entries that it lacks, of some origins of another node's log.

        So an entry may arrive long before its predecessor, and a merge before one of the branches that it joins.
        """
        source = self.rng.choice([one for one in self.all if one is not target]).node
        lacking = source.log(queries.log_start(source.connection, queries.log_context(target.node.connection)))
        some = lacking[: self.rng.randrange(1, 20)]
        origins = sorted({item.entry.dot.origin for item in some})
        for origin in self.rng.sample(origins, self.rng.randint(min(1, len(origins)), len(origins))):
            for item in some:
                if item.entry.dot.origin == origin:
                    target.node.take(item)

    def join(self, one: CheckedNode) -> None:
        one.join(
            self.rng.choice([INBOX, TREE]), partial(self.rng.choice([lambda _: None, self.save, self.folders]), one)
        )

    def settle(self) -> None:
        master, *_ = self.all
        for target in [master, *self.all, master, *self.all]:
            for source in self.all:
                known = queries.log_context(target.node.connection)
                for item in source.node.log(queries.log_start(source.node.connection, known)):
                    target.node.take(item)
            target.check_commits()
            if target is master:
                master.join(INBOX)
                master.join(TREE)

    def check(self) -> None:
        assert len({tuple(sorted(one.node.digests().items())) for one in self.all}) == 1, "the nodes differ"
        for one in self.all:
            assert queries.log_counts(one.node.connection)[1] == 0, "an entry still waits"
            assert set(self.saved) - self.expunged <= {row.guid for row in one.rows.values()}, "a mail is lost"
            shown = {
                placement for other in self.all for uid, placement in other.guids_by_uid.items() if uid in one.rows
            }
            assert len(shown) == len(one.rows), "a UID in use named another message at some node"
            self.check_replay(one.node)
            consistency.check(one.node.connection)

    def check_replay(self, node: MemoryNode) -> None:
        """Check that a replay of the log along a random path to the head gives what the database shows."""
        chain, rows = queries.rows(node.connection, INBOX.mailbox_id)
        if chain is None or chain.head is None:
            return
        path: list[Entry] = []
        at: Dot | None = chain.head
        while at is not None:
            entry = queries.entry_at(node.connection, at)
            assert entry is not None
            path.append(entry)
            at = self.rng.choice(entry.predecessors) if entry.predecessors else None
        shown = {row.uid: row for row in rows}
        live = MailboxState(chain.uidnext, chain.highestmodseq, chain.context, shown, chain.risen)
        assert replay(reversed(path)) == live
