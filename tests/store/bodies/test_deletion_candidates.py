"""Bodies are removed when no message needs them any more and never before, in any interleaving of the steps."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.config import UidConflict
from replicator.errors import HistoryError, MailError
from replicator.store.bodies import deletion_candidates
from replicator.store.bodies.body_rows import StoredBody, is_here, lacking_count, write_body
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.transaction import Logged, Transaction
from replicator.store.gc import body_references, expunged, orphaned_bodies
from replicator.store.log import forks
from replicator.store.log.sequencing import sequencer
from replicator.store.log.sequencing.sequencer import CopySource
from resync.entry import MailAdd
from tests.effort import examples
from tests.store import consistency
from tests.store.harness import INBOX, WORK, copying, expunging, guid, saving, source
from tests.store.memory_node import MemoryNode

KEEP_MS = 10_000
BODY, HASH = b"body", sha256(b"body").digest()


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def expire(node: MemoryNode) -> Iterator[None]:
    """Make one round as `replication/bodies/retention` does. Other changes may come at each `yield`."""
    before_ms = node.now_ms - KEEP_MS
    while node.write(lambda tx: deletion_candidates.doom_expired(tx.connection, before_ms, 2)):
        yield
    for look in body_references.LOOKS:
        after: body_references.Key | None = body_references.FIRST
        while after is not None:
            part = look(node.connection, after)
            yield
            found = part.found
            node.write(lambda tx: deletion_candidates.spare(tx.connection, found))  # noqa: B023 - called at once
            after = part.after
            yield
    while remove(node):
        yield


def remove(node: MemoryNode) -> int:
    """Remove candidates, check that nothing needs them, and return their number."""
    before, needed = stored_bodies(node), consistency.named_bodies(node.connection)
    removed = node.write(lambda tx: deletion_candidates.remove(tx.connection, 2, 1 << 20)).bodies
    gone = before - stored_bodies(node)
    assert not gone & needed, "a needed body is gone"
    return removed


def stored_bodies(node: MemoryNode) -> set[bytes]:
    return {content_hash for (content_hash,) in node.connection.execute("SELECT hash FROM content")}


def expire_all(node: MemoryNode) -> None:
    node.now_ms += KEEP_MS + 1
    for _ in expire(node):
        pass


def begin_removal(node: MemoryNode) -> Iterator[None]:
    """Start a round, and stop it when it has candidates."""
    node.now_ms += KEEP_MS + 1
    steps = expire(node)
    while not doomed_bodies(node):
        next(steps)
    return steps


def doomed_bodies(node: MemoryNode) -> set[bytes]:
    return {content_hash for (content_hash,) in node.connection.execute("SELECT hash FROM doomed")}


def test_body_is_removed_with_its_last_message(node: MemoryNode) -> None:
    node.write(saving(BODY, guid(1)))
    node.write(copying(INBOX, [source(1)], WORK))
    node.write(saving(BODY, guid(2)))
    node.write(saving(b"other", guid(3)))
    node.write(expunging(1, 3))
    expire_all(node)
    assert stored_bodies(node) == {HASH}
    assert expunged.totals(node.connection) == (0, 0)
    node.write(expunging(2))
    node.write(expunging(1, key=WORK))
    node.now_ms += KEEP_MS - 2
    list(expire(node))
    assert stored_bodies(node) == {HASH}, "its retention time is not over"
    expire_all(node)
    assert stored_bodies(node) == set()


def test_round_is_due_only_when_mail_has_expired(node: MemoryNode) -> None:
    node.write(saving(BODY, guid(1)))
    node.write(expunging(1))
    assert not deletion_candidates.is_any_expired(node.connection, node.now_ms)
    assert deletion_candidates.is_any_expired(node.connection, node.now_ms + 1)
    node.write(lambda tx: deletion_candidates.doom_expired(tx.connection, node.now_ms + 1, 5))
    assert deletion_candidates.is_any_expired(node.connection, 0), "a round was not finished"
    node.write(lambda tx: deletion_candidates.remove(tx.connection, 5, 5))
    assert not deletion_candidates.is_any_expired(node.connection, 1 << 60)


def test_new_message_spares_its_doomed_body(node: MemoryNode) -> None:
    """The new message comes at every step of the round, also under keys that it has already checked."""
    node.write(saving(BODY, guid(1)))
    node.write(expunging(1))
    for _ in begin_removal(node):
        if HASH in doomed_bodies(node):
            node.write(saving(BODY, guid(2)))
            assert HASH not in doomed_bodies(node)
    assert is_here(node.connection, HASH)


def test_expunged_message_spares_its_doomed_body(node: MemoryNode) -> None:
    """The round may be at any step."""
    node.write(saving(BODY, guid(1)))
    node.write(lambda tx: tx.connection.execute("INSERT INTO doomed VALUES (?)", (HASH,)))
    node.write(expunging(1))
    assert doomed_bodies(node) == set()


def test_waiting_entries_keep_their_bodies(node: MemoryNode) -> None:
    """The entry may arrive before its body is doomed or after, and may be a copy."""
    other = MemoryNode("dc2.a")
    node.write(saving(BODY, guid(1)))
    other.write(saving(BODY, guid(2), WORK))
    other.write(copying(WORK, [CopySource(1, guid(2), guid(3))], INBOX))
    [saved, copied] = other.log()
    node.take(copied)  # ignored: the entry before it in its origin is missing
    node.write(expunging(1))
    for _ in begin_removal(node):
        pass
    assert not is_here(node.connection, HASH), "no message has it"
    node.take(saved)
    node.take(copied)
    assert not node.applied(copied.entry.dot), "on another branch"
    node.write(expunging(1, key=WORK))
    for _ in begin_removal(node):
        pass
    assert is_here(node.connection, HASH)


def test_new_waiting_entry_spares_its_doomed_body(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(saving(BODY, guid(1)))
    other.write(saving(BODY, guid(2)))
    node.write(expunging(1))
    steps = begin_removal(node)
    [saved] = other.log()
    node.take(saved)
    assert not node.applied(saved.entry.dot)
    assert doomed_bodies(node) == set()
    list(steps)
    assert is_here(node.connection, HASH)


def test_no_body_is_removed_while_a_waiting_entry_is_unreadable(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(saving(BODY, guid(1)))
    other.write(saving(b"other", guid(2)))
    node.take(other.log()[0])
    [body] = node.connection.execute("SELECT body FROM log WHERE applied = 0").fetchone()
    node.connection.execute("UPDATE log SET body = x'00' WHERE applied = 0")
    node.write(expunging(1))
    with pytest.raises(DamagedRowError):
        expire_all(node)
    assert is_here(node.connection, HASH)
    node.connection.execute("UPDATE log SET body = ? WHERE applied = 0", (body,))
    expire_all(node)
    assert not is_here(node.connection, HASH), "the earlier candidate is removed now"


def test_bodies_are_removed_in_slices_of_at_least_one(node: MemoryNode) -> None:
    for number in range(5):
        node.write(saving(b"%d" % number * 1000, guid(number)))
    node.write(expunging(*range(1, 6)))
    node.write(lambda tx: deletion_candidates.doom_expired(tx.connection, node.now_ms + 1, 10))
    sizes = []
    while count := node.write(lambda tx: deletion_candidates.remove(tx.connection, 3, 1)).bodies:
        sizes.append(count)
    assert sizes == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("limit", ["SLICE_ENTRIES", "SLICE_BYTES"])
def test_references_are_found_in_all_slices(node: MemoryNode, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(body_references, "SLICE_ROWS", 2)
    monkeypatch.setattr(body_references, limit, 1)
    other = MemoryNode("dc2.a")
    for number in range(1, 8):
        node.write(saving(b"shown %d" % number, guid(number), INBOX if number % 2 else WORK))
        other.write(saving(b"waits %d" % number, guid(100 + number)))
        node.write(saving(b"gone %d" % number, guid(200 + number), WORK))
    for item in other.log():
        node.take(item)
    rows = queries.mailbox_rows(node.connection, WORK.mailbox_id)
    node.write(expunging(*(row.uid for row in rows if row.guid >= guid(200)), key=WORK))
    everything = stored_bodies(node)
    node.write(lambda tx: tx.connection.executemany("INSERT INTO doomed VALUES (?)", [(one,) for one in everything]))
    found = list[set[bytes]]()
    for look in body_references.LOOKS:
        after: body_references.Key | None = body_references.FIRST
        found.append(set())
        while after is not None:
            part = look(node.connection, after)
            assert len(part.found) <= 2
            found[-1] |= part.found
            after = part.after
    for what, hashes in zip((b"shown", b"gone", b"waits"), found, strict=True):
        assert hashes == {sha256(b"%b %d" % (what, number)).digest() for number in range(1, 8)}
    node.write(lambda tx: deletion_candidates.spare(tx.connection, everything))


# ---- orphaned bodies ------------------------------------------------------------------------------------


def keep_orphans(node: MemoryNode) -> None:
    """Keep orphaned bodies as `replication/bodies/retention` does."""
    after: bytes | None = b""
    while after is not None:
        after, found = orphaned_bodies.unnamed(node.connection, after)
        node.write(partial(keep, found=found))


def keep(tx: Transaction, found: list[bytes]) -> None:
    orphaned_bodies.keep(tx.connection, found, tx.wall_ms())


def test_orphaned_body_is_kept_for_the_retention_time(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_bodies, "BODIES_AT_ONCE", 2)
    for number in range(5):
        node.write(saving(b"%d" % number, guid(number)))
    node.write(expunging(2))
    node.now_ms += KEEP_MS
    named_bodies = stored_bodies(node)
    for stored in (StoredBody.of(b"late"), StoredBody.of(b"later")):
        node.write(partial(write_orphan, stored=stored))
    everything = stored_bodies(node)
    keep_orphans(node)
    assert expunged.totals(node.connection) == (1, 1), "only the expunged message is counted"
    node.now_ms += KEEP_MS // 2
    keep_orphans(node)
    list(expire(node))
    assert stored_bodies(node) == everything - {sha256(b"1").digest()}
    node.now_ms += KEEP_MS // 2 + 1
    list(expire(node))
    assert stored_bodies(node) == named_bodies - {sha256(b"1").digest()}


def write_orphan(tx: Transaction, stored: StoredBody) -> None:
    write_body(tx.connection, stored)


def test_orphaned_body_stays_if_its_rows_are_repaired(node: MemoryNode) -> None:
    node.write(saving(BODY, guid(1)))
    rows = node.connection.execute("SELECT * FROM by_uid").fetchall()
    node.connection.execute("DELETE FROM by_uid")
    keep_orphans(node)
    assert expunged.totals(node.connection) == (0, 0), "it was not expunged"
    marks = ",".join("?" * len(rows[0]))
    node.connection.executemany(f"INSERT INTO by_uid VALUES ({marks})", rows)
    expire_all(node)
    assert stored_bodies(node) == {HASH}


# ---- random interleavings ----------------------------------------------------------------------------------------


class World:
    """Two nodes without a master, whose branches fork and are joined. Both remove expired mail."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes = [MemoryNode("dc1.a"), MemoryNode("dc2.a")]
        self.rounds: list[Iterator[None]] = [iter(()), iter(())]
        self.bodies = {sha256(body).digest(): body for body in (b"body 0", b"body 1", b"body 2")}

    def step(self) -> None:
        number = self.rng.randrange(2)
        node, key = self.nodes[number], self.rng.choice((INBOX, WORK))
        match self.rng.randrange(12):
            case 0 | 1:
                number = self.rng.randrange(6)
                node.write(saving(b"body %d" % (number % 3), guid(number), key))
            case 2:
                self.copy(node, key)
            case 3 | 4:
                node.write(expunging(*self.rng.sample(range(1, 8), 3), key=key))
            case 5:
                self.exchange(number, self.rng.randrange(1, 6))
            case 6:
                self.join(node, key)
            case 7:
                self.undelete(node, key)
            case 8:
                keep_orphans(node)
            case _:
                self.go_on_expiring(number)
        for each in self.nodes:
            each.now_ms += 1_000
        self.check()

    def copy(self, node: MemoryNode, key: MailboxKey) -> None:
        rows = list(queries.mailbox_rows(node.connection, INBOX.mailbox_id))
        wanted = [CopySource(row.uid, row.guid, node.guid()) for row in rows[:2]]
        node.write(lambda tx: sequencer.copy(tx, INBOX.mailbox_id, wanted, key))

    def undelete(self, node: MemoryNode, key: MailboxKey) -> None:
        for kept in expunged.kept(node.connection, [key.mailbox_id], 0, None, 2):
            if (body := self.bodies.get(kept.content_hash)) is not None:
                node.write(saving(body, kept.guid, key))

    def exchange(self, number: int, count: int) -> None:
        sender, receiver = self.nodes[number], self.nodes[1 - number]
        for item in sender.log(queries.log_start(sender.connection, queries.log_context(receiver.connection)))[:count]:
            receiver.take(as_sent(item))

    def join(self, node: MemoryNode, key: MailboxKey) -> None:
        for head in forks.branch_heads(node.connection, key.mailbox_id):
            branch = forks.replay_branch(node.connection, head)
            plan = branch and forks.plan_merge(node.connection, key, branch, UidConflict.RENUMBER)
            if plan:
                with suppress(MailError, HistoryError):
                    node.write(partial(forks.carry_out, plan=plan))

    def go_on_expiring(self, number: int) -> None:
        if next(self.rounds[number], self) is self:
            self.rounds[number] = expire(self.nodes[number])

    def check(self) -> None:
        """Check that each shown message has its body, unless it came without one."""
        for node in self.nodes:
            query = "SELECT content_hash FROM by_uid WHERE content_hash NOT IN (SELECT hash FROM lacking)"
            shown = {content_hash for (content_hash,) in node.connection.execute(query)}
            assert shown <= stored_bodies(node), "a message has lost its body"


def as_sent(item: Logged) -> Logged:
    """Mark messages without a body as copies, as a link does."""
    changes = (
        change._replace(copied=change.copied or change.content_hash not in item.bodies)
        if isinstance(change, MailAdd)
        else change
        for change in item.entry.changes
    )
    return Logged(item.position, replace(item.entry, changes=tuple(changes)), item.entry_bytes, item.bodies)


@given(st.integers(0, 150), st.randoms(use_true_random=False))
@settings(max_examples=examples(15, 50), deadline=None)
def test_no_needed_body_is_removed_in_any_interleaving(steps: int, rng: random.Random) -> None:
    world = World(rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_references, "SLICE_ROWS", 2)
        patch.setattr(body_references, "SLICE_ENTRIES", 1)
        for _ in range(steps):
            world.step()
    for node in world.nodes:
        consistency.check(node.connection)
        node.connection.close()


def test_copy_of_a_removed_body_makes_it_missing(node: MemoryNode) -> None:
    """The copy was made at a node that still has the body."""
    other = MemoryNode("dc2.a")
    node.write(saving(BODY, guid(1)))
    node.write(expunging(1))
    (saved, expunge) = node.log()
    other.take(saved)
    expire_all(node)
    assert not is_here(node.connection, HASH)
    other.write(copying(INBOX, [source(1)], WORK))
    other.take(expunge)
    (copy,) = [item for item in other.log() if item.entry.dot.sid == "dc2"]
    node.take(copy)
    assert lacking_count(node.connection) == 1
    node.write(expunging(1, key=WORK))
    expire_all(node)
    assert lacking_count(node.connection) == 0, "no message has it any more"
