"""Texts go when nobody has them any more, and never before, whatever comes between the steps of that."""

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
from replicator.store.db.message_rows import DamagedRowError
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged, Transaction
from replicator.store.gc import body_references, expunged, orphaned_bodies
from replicator.store.log import forks, sequencer
from replicator.store.log.sequencer import CopySource
from resync.entry import MailAdd
from tests.effort import examples
from tests.store import consistency
from tests.store.harness import INBOX, WORK, copying, expunging, guid, saving, source
from tests.store.memory_node import MemoryNode

KEEP_MS = 10_000
TEXT, HASH = b"text", sha256(b"text").digest()


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def expire(node: MemoryNode) -> Iterator[None]:
    """One round as `replication/bodies/retention` does it; what may come between two steps comes at a `yield`."""
    before_ms = node.now_ms - KEEP_MS
    while node.write(lambda tx: deletion_candidates.doom_expired(tx.connection, before_ms, 2)):
        yield
    for look in body_references.LOOKS:
        after: body_references.Key | None = body_references.FIRST
        while after is not None:
            part = look(node.connection, after)
            yield
            found = part.found
            node.write(lambda tx: deletion_candidates.spare(tx.connection, found))  # noqa: B023 - at once
            after = part.after
            yield
    while remove(node):
        yield


def remove(node: MemoryNode) -> int:
    """What goes is named by nothing."""
    before, needed = bodies(node), consistency.named_bodies(node.connection)
    removed = node.write(lambda tx: deletion_candidates.remove(tx.connection, 2, 1 << 20)).bodies
    gone = before - bodies(node)
    assert not gone & needed, "a text that is needed is gone"
    return removed


def bodies(node: MemoryNode) -> set[bytes]:
    return {content_hash for (content_hash,) in node.connection.execute("SELECT hash FROM content")}


def expire_all(node: MemoryNode) -> None:
    node.now_ms += KEEP_MS + 1
    for _ in expire(node):
        pass


def begin(node: MemoryNode) -> Iterator[None]:
    """A round that has come as far as to remove what it has doomed."""
    node.now_ms += KEEP_MS + 1
    steps = expire(node)
    while not doomed_bodies(node):
        next(steps)
    return steps


def doomed_bodies(node: MemoryNode) -> set[bytes]:
    return {content_hash for (content_hash,) in node.connection.execute("SELECT hash FROM doomed")}


def test_a_text_goes_with_the_last_that_has_it(node: MemoryNode) -> None:
    node.write(saving(TEXT, guid(1)))
    node.write(copying(INBOX, [source(1)], WORK))
    node.write(saving(TEXT, guid(2)))
    node.write(saving(b"other", guid(3)))
    node.write(expunging(1, 3))
    expire_all(node)
    assert bodies(node) == {HASH}
    assert expunged.totals(node.connection) == (0, 0)
    node.write(expunging(2))
    node.write(expunging(1, key=WORK))
    node.now_ms += KEEP_MS - 2
    list(expire(node))
    assert bodies(node) == {HASH}, "it is kept"
    expire_all(node)
    assert bodies(node) == set()


def test_there_is_something_to_do_only_when_time_has_come(node: MemoryNode) -> None:
    node.write(saving(TEXT, guid(1)))
    node.write(expunging(1))
    assert not deletion_candidates.is_any_expired(node.connection, node.now_ms)
    assert deletion_candidates.is_any_expired(node.connection, node.now_ms + 1)
    node.write(lambda tx: deletion_candidates.doom_expired(tx.connection, node.now_ms + 1, 5))
    assert deletion_candidates.is_any_expired(node.connection, 0), "a round was not finished"
    node.write(lambda tx: deletion_candidates.remove(tx.connection, 5, 5))
    assert not deletion_candidates.is_any_expired(node.connection, 1 << 60)


def test_what_comes_while_its_text_is_doomed_spares_it(node: MemoryNode) -> None:
    """Under every key that was looked through already."""
    node.write(saving(TEXT, guid(1)))
    node.write(expunging(1))
    for _ in begin(node):
        if HASH in doomed_bodies(node):
            node.write(saving(b"text", guid(2)))
            assert HASH not in doomed_bodies(node)
    assert is_here(node.connection, HASH)


def test_what_comes_to_be_kept_spares_its_text(node: MemoryNode) -> None:
    """Whatever it was before, and wherever a look is."""
    node.write(saving(TEXT, guid(1)))
    node.write(lambda tx: tx.connection.execute("INSERT INTO doomed VALUES (?)", (HASH,)))
    node.write(expunging(1))
    assert doomed_bodies(node) == set()


def test_what_waits_needs_its_text(node: MemoryNode) -> None:
    """Of an entry that came before, and of one that comes while its text is doomed; and of a copy, too."""
    other = MemoryNode("dc2.a")
    node.write(saving(TEXT, guid(1)))
    other.write(saving(TEXT, guid(2), WORK))
    other.write(copying(WORK, [CopySource(1, guid(2), guid(3))], INBOX))
    [saved, copied] = other.log()
    node.take(copied)  # lacks what is before it
    node.write(expunging(1))
    for _ in begin(node):
        pass
    assert not is_here(node.connection, HASH), "nobody has it"
    node.take(saved)
    node.take(copied)
    assert not node.applied(copied.entry.dot), "on another branch"
    node.write(expunging(1, key=WORK))
    for _ in begin(node):
        pass
    assert is_here(node.connection, HASH)


def test_an_entry_that_comes_to_wait_spares_what_it_names(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(saving(TEXT, guid(1)))
    other.write(saving(TEXT, guid(2)))
    node.write(expunging(1))
    steps = begin(node)
    [saved] = other.log()
    node.take(saved)
    assert not node.applied(saved.entry.dot)
    assert doomed_bodies(node) == set()
    list(steps)
    assert is_here(node.connection, HASH)


def test_where_it_cannot_be_told_what_an_entry_names_nothing_goes(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(saving(TEXT, guid(1)))
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
    assert not is_here(node.connection, HASH), "what was doomed before goes now"


def test_texts_go_in_slices_and_one_of_any_size_at_least(node: MemoryNode) -> None:
    for number in range(5):
        node.write(saving(b"%d" % number * 1000, guid(number)))
    node.write(expunging(*range(1, 6)))
    node.write(lambda tx: deletion_candidates.doom_expired(tx.connection, node.now_ms + 1, 10))
    sizes = []
    while count := node.write(lambda tx: deletion_candidates.remove(tx.connection, 3, 1)).bodies:
        sizes.append(count)
    assert sizes == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("limit", ["SLICE_ENTRIES", "SLICE_BYTES"])
def test_all_slices_are_looked_through(node: MemoryNode, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
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
    everything = bodies(node)
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


# ---- texts that nothing names ------------------------------------------------------------------------------------


def keep_unnamed(node: MemoryNode) -> None:
    """As `replication/bodies/retention` does it."""
    after: bytes | None = b""
    while after is not None:
        after, found = orphaned_bodies.unnamed(node.connection, after)
        node.write(partial(keep, found=found))


def keep(tx: Transaction, found: list[bytes]) -> None:
    orphaned_bodies.keep(tx.connection, found, tx.wall_ms())


def test_a_text_that_nothing_names_is_kept_for_a_while(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_bodies, "BODIES_AT_ONCE", 2)
    for number in range(5):
        node.write(saving(b"%d" % number, guid(number)))
    node.write(expunging(2))
    node.now_ms += KEEP_MS
    named_by_something = bodies(node)
    for stored in (StoredBody.of(b"late"), StoredBody.of(b"later")):
        node.write(partial(late, stored=stored))
    everything = bodies(node)
    keep_unnamed(node)
    assert expunged.totals(node.connection) == (1, 1), "only what was expunged"
    node.now_ms += KEEP_MS // 2
    keep_unnamed(node)
    list(expire(node))
    assert bodies(node) == everything - {sha256(b"1").digest()}
    node.now_ms += KEEP_MS // 2 + 1
    list(expire(node))
    assert bodies(node) == named_by_something - {sha256(b"1").digest()}


def late(tx: Transaction, stored: StoredBody) -> None:
    write_body(tx.connection, stored)


def test_a_text_whose_rows_are_mended_while_it_is_kept_stays(node: MemoryNode) -> None:
    node.write(saving(TEXT, guid(1)))
    rows = node.connection.execute("SELECT * FROM by_uid").fetchall()
    node.connection.execute("DELETE FROM by_uid")
    keep_unnamed(node)
    assert expunged.totals(node.connection) == (0, 0), "it was not expunged"
    marks = ",".join("?" * len(rows[0]))
    node.connection.executemany(f"INSERT INTO by_uid VALUES ({marks})", rows)
    expire_all(node)
    assert bodies(node) == {HASH}


# ---- whatever interleaves ----------------------------------------------------------------------------------------


class World:
    """Two nodes without a master: each numbers what it likes, so branches fork and are joined. Both expire."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes = [MemoryNode("dc1.a"), MemoryNode("dc2.a")]
        self.rounds: list[Iterator[None]] = [iter(()), iter(())]
        self.texts = {sha256(text).digest(): text for text in (b"text 0", b"text 1", b"text 2")}

    def step(self) -> None:
        number = self.rng.randrange(2)
        node, key = self.nodes[number], self.rng.choice((INBOX, WORK))
        match self.rng.randrange(12):
            case 0 | 1:
                number = self.rng.randrange(6)
                node.write(saving(b"text %d" % (number % 3), guid(number), key))
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
                keep_unnamed(node)
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
            if (text := self.texts.get(kept.content_hash)) is not None:
                node.write(saving(text, kept.guid, key))

    def exchange(self, number: int, count: int) -> None:
        sender, receiver = self.nodes[number], self.nodes[1 - number]
        for item in sender.log(queries.log_start(sender.connection, queries.log_context(receiver.connection)))[:count]:
            receiver.take(as_sent(item))

    def join(self, node: MemoryNode, key: MailboxKey) -> None:
        for head in forks.branch_heads(node.connection, key.mailbox_id):
            branch = forks.replay_branch(node.connection, head)
            plan = branch and forks.plan_merge(node.connection, key, head, branch, UidConflict.RENUMBER)
            if plan:
                with suppress(MailError, HistoryError):
                    node.write(partial(forks.carry_out, plan=plan))

    def go_on_expiring(self, number: int) -> None:
        if next(self.rounds[number], self) is self:
            self.rounds[number] = expire(self.nodes[number])

    def check(self) -> None:
        """What is shown without its text has come without it."""
        for node in self.nodes:
            query = "SELECT content_hash FROM by_uid WHERE content_hash NOT IN (SELECT hash FROM lacking)"
            shown = {content_hash for (content_hash,) in node.connection.execute(query)}
            assert shown <= bodies(node), "a message has lost its text"


def as_sent(item: Logged) -> Logged:
    """A message without a text travels as a copy."""
    changes = (
        change._replace(copied=change.copied or change.content_hash not in item.bodies)
        if isinstance(change, MailAdd)
        else change
        for change in item.entry.changes
    )
    return Logged(item.position, replace(item.entry, changes=tuple(changes)), item.entry_bytes, item.bodies)


@given(st.integers(0, 150), st.randoms(use_true_random=False))
@settings(max_examples=examples(25, 50), deadline=None)
def test_no_text_that_is_needed_goes_whatever_interleaves(steps: int, rng: random.Random) -> None:
    world = World(rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_references, "SLICE_ROWS", 2)
        patch.setattr(body_references, "SLICE_ENTRIES", 1)
        for _ in range(steps):
            world.step()
    for node in world.nodes:
        consistency.check(node.connection)
        node.connection.close()


def test_a_copy_that_names_a_forgotten_text_wants_it_back(node: MemoryNode) -> None:
    """It was made where the text still is."""
    other = MemoryNode("dc2.a")
    node.write(saving(TEXT, guid(1)))
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
    assert lacking_count(node.connection) == 0, "nobody has it any more"
