"""Nodes that write checkpoints and remove log entries show the same as without."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.commands import Settled
from protocol.values import Dot, covers
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.catalog import Round
from replicator.store.checkpoints.checkpoint import CheckpointReader, state_of
from replicator.store.db import chain as chains
from replicator.store.db import queries, schema
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows import settled_rows
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.writer import _last_time
from replicator.store.log import entry_removal, forks
from replicator.store.log.replay import Base, base_for, past_at
from replicator.store.repair.head_evidence import log_lacks
from replicator.store.repair.mailbox_check import LogComparison, chain_ids, exhausted
from replicator.store.repair.table_check import FIRST, stray_pointers, stray_rows, strays_of_trees, unseen_chains
from resync.clock import COUNTER_BITS
from resync.state import MailboxState
from tests.effort import examples
from tests.store import consistency
from tests.store.branching import CheckedNode, World
from tests.store.harness import INBOX, WORK, guid, saving
from tests.store.memory_node import MemoryNode


class MemoryCheckpoints:
    """A node's checkpoints and manifests, with a dictionary as the object store."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self.objects: dict[NamedHead, bytes] = {}
        self.manifests: dict[int, list[NamedHead]] = {}

    def base_of(self, chain_id: bytes, head: Dot | None = None) -> Base | None:
        saved = base_for(self.node.connection, chain_id, head)
        return None if saved is None else Base(saved, *read(saved, self.objects[saved]))

    def round(self) -> None:
        """Make a round up to its manifest, which is then pending."""
        connection = self.node.connection
        rounds = catalog.rounds(connection)
        number, settled = (rounds[-1].number if rounds else 0) + 1, queries.log_settled(connection)
        for chain_id in catalog.unsaved(connection, b""):
            made = catalog.checkpoint_of(connection, chain_id, 1)
            assert made is not None
            self.objects[made.head] = b"".join(made.data)
            self.node.write(partial(catalog.note_saved, head=made.head, number=number))
        seen, _ = catalog.contexts(connection, b"")
        covered = queries.log_context(connection)
        covered |= {origin: max(seq, covered.get(origin, 0)) for origin, seq in seen.items()}
        heads = list(catalog.heads_in(connection, number))
        begun = Round(number, None, False, settled, covered, queries.log_end(connection), len(heads))  # noqa: FBT003
        self.node.write(partial(catalog.begin_manifest, begun=begun))
        self.node.write(partial(catalog.note_manifest, number=number, made_ms=number))
        self.manifests = {one.number: self.manifests.get(one.number, heads) for one in catalog.rounds(connection)}
        self.clean()

    def pending(self) -> Round | None:
        return next((one for one in catalog.rounds(self.node.connection) if not one.in_force), None)

    def put_in_force(self, pending: Round, max_entries: int) -> None:
        self.node.write(partial(catalog.put_in_force, number=pending.number))
        while self.node.write(partial(entry_removal.collect, upto=pending.context, max_entries=max_entries)).entries:
            pass
        self.manifests = {pending.number: self.manifests[pending.number]}
        self.clean()

    def clean(self) -> None:
        heads = list[NamedHead]()
        after: bytes | None = b""
        while after is not None:
            some, after = catalog.superfluous(self.node.connection, after)
            heads += some
        for head in heads:
            del self.objects[head]
        self.node.write(partial(catalog.forget_heads, heads=heads))
        listed = {head for heads in self.manifests.values() for head in heads}
        assert listed <= self.objects.keys(), "a manifest lists a deleted checkpoint"
        for number, heads in self.manifests.items():
            assert list(catalog.heads_in(self.node.connection, number)) == heads

    def damages(self) -> list[str]:
        """Return all that a check finds, with chains that it cannot prove."""
        connection = self.node.connection
        found = [] if log_lacks(connection) == 0 else ["lacking"]
        for chain_id in chain_ids(connection):
            chain = next(chain for chain in queries.chains_of(connection, None) if chain.id == chain_id)
            compared = exhausted(LogComparison(connection, chain_id, base=self.base_of(chain_id, chain.head)))
            found += ["unproven"] if compared.unproven else [damage.what for damage in compared.damages]
        found += [damage.what for damage in strays_of_trees(connection)]
        found += [damage.what for damage in stray_rows(connection, FIRST).found]
        found += [damage.what for damage in stray_pointers(connection, FIRST).found]
        return found + [chain_id.hex() for chain_id in unseen_chains(connection, 0).found]


def read(head: NamedHead, data: bytes) -> tuple[bytes, MailboxState]:
    """Return the history and the state."""
    reader = CheckpointReader("test", head)
    state = state_of(head, list(reader.receive(data)))
    reader.finish()
    return reader.history, state  # type: ignore[return-value] # also of trees, whose state is only passed on


class TruncatingNode(CheckedNode):
    checkpoints: MemoryCheckpoints

    def join(self, key: MailboxKey, meanwhile: Callable[[], object] = lambda: None) -> None:
        for head in forks.branch_heads(self.node.connection, key.mailbox_id):
            branch = forks.replay_branch(self.node.connection, head, self.checkpoints.base_of(key.mailbox_id, head))
            if branch is None:
                continue
            plan = forks.plan_merge(self.node.connection, key, branch, self.uid)
            meanwhile()
            if plan is not None:
                self.node.write(partial(forks.carry_out, plan=plan))
        self.check_commits()


class TruncatingWorld(World):
    """A `World` whose nodes also write checkpoints, and remove entries that all have settled."""

    def __init__(self, rng: random.Random, size: int) -> None:
        super().__init__(rng, size)
        self.removed_entries = 0
        for one in self.all:
            one.__class__ = TruncatingNode
            self.truncating(one).checkpoints = MemoryCheckpoints(one.node)

    def truncating(self, one: CheckedNode) -> TruncatingNode:
        assert isinstance(one, TruncatingNode)
        return one

    def step(self) -> None:
        super().step()
        if self.rng.random() < 0.15:
            one = self.truncating(self.rng.choice(self.all))
            self.truncate_log(one)
            one.check_commits()

    def truncate_log(self, one: TruncatingNode) -> None:
        pending = one.checkpoints.pending()
        if pending is None or self.rng.random() < 0.2:
            one.checkpoints.round()
        elif all(covers(queries.log_settled(other.node.connection), pending.covered) for other in self.all):
            before = queries.log_counts(one.node.connection)
            one.checkpoints.put_in_force(pending, self.rng.randrange(1, 50))
            after = queries.log_counts(one.node.connection)
            assert after[1] == before[1], "a waiting entry was removed"
            self.removed_entries += before[0] - after[0]

    def check_replay(self, node: MemoryNode) -> None:
        """Check that a checkpoint and the log after it give what the database shows."""
        (checkpoints,) = (self.truncating(one).checkpoints for one in self.all if one.node is node)
        for chain in queries.chains_of(node.connection, None):
            assert chain.head is not None
            base = checkpoints.base_of(chain.id, chain.head)
            past = past_at(node.connection, chain.head, base, detours=True)
            assert past is not None
            if isinstance(past.state, MailboxState):
                shown = {row.uid: row for row in queries.mailbox_rows(node.connection, chain.id)}
                live = MailboxState(chain.uidnext, chain.highestmodseq, chain.context, shown, chain.risen)
                assert past.state == live
            else:
                assert past.state == queries.tree_state(node.connection, chain.user, chain)


@given(st.integers(2, 4), st.integers(20, 150), st.randoms(use_true_random=False))
@settings(max_examples=examples(8, 60), deadline=None)
def test_nodes_that_remove_settled_entries_converge(size: int, steps: int, rng: random.Random) -> None:
    world = TruncatingWorld(rng, size)
    for _ in range(steps):
        world.step()
    for one in world.all:
        assert world.truncating(one).checkpoints.damages() == []
    world.settle()
    world.check()
    for one in world.all:
        checkpoints = world.truncating(one).checkpoints
        checkpoints.round()
        assert checkpoints.damages() == []
    for one in world.all:
        pending = world.truncating(one).checkpoints.pending()
        assert pending is not None
        world.truncating(one).checkpoints.put_in_force(pending, 7)
        assert queries.log_counts(one.node.connection) == (0, 0), "entries are left in the end"
        assert world.truncating(one).checkpoints.damages() == []
        consistency.check(one.node.connection)
        one.node.connection.close()


@pytest.mark.parametrize("seed", range(examples(2, 8)))
def test_many_entries_are_removed_in_long_histories(seed: int) -> None:
    world = TruncatingWorld(random.Random(seed), 2)
    for number in range(600):
        world.step()
        if number % 100 == 99:
            world.settle()
    assert world.removed_entries > 100
    for one in world.all:
        assert world.truncating(one).checkpoints.damages() == []
        one.node.connection.close()


def test_waiting_entries_and_later_ones_of_their_origin_stay() -> None:
    node, *others = (MemoryNode(f"dc{number}.a") for number in (1, 2, 3))
    for number, other in enumerate(others):
        other.write(saving(b"text", guid(number)))
        other.write(saving(b"text", guid(number + 10), WORK))
    for other in others:  # both start the same mailboxes, so the second one's entries wait
        for item in other.log():
            node.take(item)
    gone = node.write(partial(entry_removal.collect, upto={"dc2.a": 2, "dc3.a": 2}))
    assert gone.entries == 2
    assert queries.log_collected(node.connection) == {"dc2.a": 2}
    assert queries.log_counts(node.connection) == (2, 2)
    node.connection.close()


def test_number_of_entries_removed_at_once_is_limited() -> None:
    node = MemoryNode("dc1.a")
    for number in range(10):
        node.write(saving(b"text", guid(number)))
    upto = queries.log_settled(node.connection)
    some = (node.write(partial(entry_removal.collect, upto=upto, max_entries=4)).entries for _ in range(4))
    assert list(some) == [4, 4, 2, 0]
    assert queries.log_end(node.connection) == 10, "positions are not reused"


def test_stamps_rise_above_those_of_removed_entries(tmp_path: Path) -> None:
    path, node = tmp_path / "node.db", MemoryNode("dc1.a", now_ms=5_000_000)
    node.write(saving(b"text", guid(1)))
    node.write(partial(entry_removal.collect, upto={"dc1.a": 1}))
    writer = schema.open_writer(path)
    node.connection.backup(writer)
    assert _last_time(writer) >> COUNTER_BITS == 5_000_000
    writer.close()


def test_branch_from_before_the_checkpoint_is_not_replayed() -> None:
    """The log cannot tell which entries are only on a branch that begins before the checkpoint."""
    node, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    node.write(saving(b"text", guid(1)))
    other.take(node.log()[0])
    other.write(saving(b"text", guid(2)))
    node.write(saving(b"text", guid(3)))
    checkpoints = MemoryCheckpoints(node)
    checkpoints.round()
    pending = checkpoints.pending()
    assert pending is not None
    checkpoints.put_in_force(pending, 10)
    node.take(other.log()[-1])
    (head,) = forks.branch_heads(node.connection, INBOX.mailbox_id)
    base = checkpoints.base_of(INBOX.mailbox_id, head)
    assert base is not None
    assert not forks.check_apart(node.connection, INBOX.mailbox_id, head, {"dc1.a": 1, "dc2.a": 1}, base)
    assert forks.replay_branch(node.connection, head, base) is None


def test_other_nodes_do_not_raise_a_nodes_own_counter() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1), INBOX))
    before = queries.log_context(node.connection)
    node.write(lambda tx: tx.begin_log_after({"dc1.a": 1000, "dc2.a": 7}))
    assert queries.log_context(node.connection) == before | {"dc2.a": 7}
    assert queries.log_collected(node.connection) == {"dc2.a": 7}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("user", b"alice"),
        ("fingerprint", 7),
        ("fingerprint", b"\xff" * 17),
        ("context", msgpack.packb({b"dc1.a": 2})),
        ("context", msgpack.packb({"dc1.a": "x"})),
    ],
)
def test_invalid_chain_row_is_damage(column: str, value: object) -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1), INBOX))
    node.connection.execute(f"UPDATE chain SET {column} = ? WHERE id = ?", (value, INBOX.mailbox_id))
    with pytest.raises(DamagedRowError):
        chains.load(node.connection, INBOX.mailbox_id)
    node.connection.close()


def test_entry_with_an_invalid_time_is_not_removed() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))
    node.connection.execute("UPDATE log SET time = 'x'")
    with pytest.raises(DamagedRowError, match="an entry of the log"):
        node.write(partial(entry_removal.collect, upto={"dc1.a": 1}))
    assert node.connection.execute("SELECT COUNT(*) FROM log").fetchone() == (1,)


@pytest.mark.parametrize("garbage", [b"\xc1", b"x", b"\x91\x01", "text"])
def test_unreadable_settled_statement_is_skipped(garbage: object) -> None:
    node = MemoryNode("dc1.a")
    statements = [Settled(sid, 5, (Dot(f"{sid}.a", 3),)) for sid in ("dc2", "dc3")]
    settled_rows.save(node.connection, statements)
    assert settled_rows.load(node.connection) == statements
    node.connection.execute("UPDATE settled SET context = ? WHERE sid = 'dc2'", (garbage,))
    assert settled_rows.load(node.connection) == statements[1:]
