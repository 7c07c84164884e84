"""Nodes with databases in memory that number apart, exchange logs in any order, and join what they find."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from protocol.values import Dot
from replicator.config import UidConflict
from replicator.errors import MailError
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import forks, sequencer
from replicator.view import Message
from resync.entry import Entry, tree_id
from resync.state import MailboxState
from tests.resync.replaying import replay
from tests.store import consistency
from tests.store.harness import ALICE, INBOX, expunging, flagging
from tests.store.memory_node import MemoryNode

TREE = MailboxKey(ALICE, tree_id(ALICE), 0)
TEXT = StoredBody.of(b"text")


class Watched:
    """A node, and the promises of design section 3, checked at every commit of one mailbox."""

    def __init__(self, name: str, uid: UidConflict) -> None:
        self.node, self.uid = MemoryNode(f"{name}.a"), uid
        self.named: dict[int, bytes] = {}
        self.rows: dict[int, Message] = {}
        self.uidnext, self.modseq = 1, 0

    def look(self) -> None:
        for commit in self.node.commits:
            for change in commit.changes:
                assert change.modseq > self.modseq, "a MODSEQ was shown twice"
                for uid in change.expunged:
                    self.rows.pop(uid, None)
                for message in change.changed:
                    self.look_at(message)
                assert change.uidnext >= self.uidnext
                self.uidnext, self.modseq = change.uidnext, change.modseq
        self.node.commits.clear()
        held = [row.guid for row in self.rows.values()]
        assert len(set(held)) == len(held), "a GUID is there twice"

    def look_at(self, message: Message) -> None:
        before = self.rows.get(message.uid)
        if message.uid not in self.named:
            assert message.uid >= self.uidnext, "a message appeared below a UIDNEXT that was shown"
        assert self.named.setdefault(message.uid, message.guid) == message.guid, "a UID named two messages"
        if before is None or before.flags != message.flags:
            assert message.modseq > self.modseq, "a change appeared at a MODSEQ that was shown"
        self.rows[message.uid] = message

    def join(self, key: MailboxKey, meanwhile: Callable[[], object] = lambda: None) -> None:
        """What happens `meanwhile` comes between the plan and its turn."""
        for head in forks.branch_heads(self.node.connection, key.mailbox_id):
            branch = forks.replay_branch(self.node.connection, head)
            if branch is None:
                continue
            plan = forks.plan_merge(self.node.connection, key, head, branch, self.uid)
            meanwhile()
            if plan is not None:
                self.node.write(partial(forks.carry_out, plan=plan))
        self.look()


class World:
    """One mailbox and one tree. Nobody is master: every node numbers what it likes on what it shows."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng = rng
        policies = rng.choice([[UidConflict.RENUMBER], [UidConflict.UIDVALIDITY], list(UidConflict)])
        self.all = [Watched(f"dc{number}", rng.choice(policies)) for number in range(size)]
        self.saved: list[bytes] = []
        self.expunged: set[bytes] = set()

    def step(self) -> None:
        one = self.rng.choice(self.all)
        one.node.now_ms += self.rng.randrange(2000)
        act = self.rng.choice([self.save, self.save, self.expunge, self.flag, self.folders, self.exchange, self.join])
        act(one)
        one.look()

    def save(self, one: Watched) -> None:
        again = self.saved and self.rng.random() < 0.2
        message = self.rng.choice(self.saved) if again else one.node.guid()
        if message in self.expunged:
            return
        self.saved.append(message)
        flags = self.rng.sample(["\\Seen", "\\Flagged"], self.rng.randrange(3))
        one.node.write(lambda tx: sequencer.save(tx, INBOX, TEXT, guid=message, received_ms=1, flags=flags))

    def expunge(self, one: Watched) -> None:
        if one.rows:
            uid = self.rng.choice(sorted(one.rows))
            self.expunged.add(one.rows[uid].guid)
            one.node.write(expunging(uid))

    def flag(self, one: Watched) -> None:
        if one.rows:
            uids = self.rng.sample(sorted(one.rows), self.rng.randint(1, len(one.rows)))
            added, removed = ([name] if self.rng.random() < 0.6 else [] for name in ("\\Seen", "\\Flagged"))
            one.node.write(flagging(*uids, added=added, removed=removed))

    def folders(self, one: Watched) -> None:
        name, new_ids = "/".join(self.rng.choices("ab", k=self.rng.randint(1, 3))), iter(one.node.guid, None)
        known = [record.mailbox_id for record in queries.folders(one.node.connection, ALICE).values()]
        folder, subscribed = self.rng.choice([*known, one.node.guid()]), self.rng.random() < 0.5
        changes: list[Callable[[Transaction], object]] = [
            lambda tx: sequencer.create_folder(tx, ALICE, name, one.node.guid(), spare_ids=new_ids),
            lambda tx: sequencer.rename_folder(tx, ALICE, folder, name, spare_ids=new_ids),
            lambda tx: sequencer.delete_folder(tx, ALICE, folder),
            lambda tx: sequencer.subscribe(tx, ALICE, name, subscribed=subscribed),
        ]
        with suppress(MailError):
            one.node.write(self.rng.choice(changes))

    def exchange(self, target: Watched) -> None:
        """What the target lacks of another's log: of some origins, and not all of it.

        So an entry may come long before its predecessor, and a merge before one of the branches that it joins.
        """
        source = self.rng.choice([one for one in self.all if one is not target]).node
        lacking = source.log(queries.log_start(source.connection, queries.log_context(target.node.connection)))
        some = lacking[: self.rng.randrange(1, 20)]
        origins = sorted({item.entry.dot.origin for item in some})
        for origin in self.rng.sample(origins, self.rng.randint(min(1, len(origins)), len(origins))):
            for item in some:
                if item.entry.dot.origin == origin:
                    target.node.take(item)

    def join(self, one: Watched) -> None:
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
            target.look()
            if target is master:
                master.join(INBOX)
                master.join(TREE)

    def check(self) -> None:
        assert len({tuple(sorted(one.node.digests().items())) for one in self.all}) == 1, "the nodes differ"
        for one in self.all:
            assert queries.log_counts(one.node.connection)[1] == 0, "nothing waits"
            assert set(self.saved) - self.expunged <= {row.guid for row in one.rows.values()}, "a mail is lost"
            shown = {placement for other in self.all for uid, placement in other.named.items() if uid in one.rows}
            assert len(shown) == len(one.rows), "a UID is in use that named two messages somewhere"
            self.check_replay(one.node)
            consistency.check(one.node.connection)

    def check_replay(self, node: MemoryNode) -> None:
        """The log, replayed along any path to the head, gives what the database shows."""
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
