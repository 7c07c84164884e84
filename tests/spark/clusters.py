"""Random clusters of one mailbox each, whose nodes fork, merge and lag behind; some of them are damaged."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from protocol.values import Dot, covers
from resync import row as rows
from resync.differing import Side
from resync.row import Row
from resync.state import MailboxState
from tests.resync.histories import Node, World

NODES = ("a", "b", "c", "d")


@dataclass
class Shown:
    """A mailbox as one node's inventory has it. Its head states a count of rows and a sum of their fingerprints."""

    state: MailboxState
    head: Dot | None
    stated_count: int
    stated_sum: int

    def numbers(self) -> tuple[int, int, int]:
        return self.state.uidnext, self.state.modseq, self.state.risen

    def side(self) -> Side:
        rows = {row.guid: row for row in self.state.rows.values()}
        return Side(self.head, self.state.uidnext, self.state.modseq, self.state.context, rows, self.state.risen)


@dataclass
class Cluster:
    """A mailbox at NODES; a node that lacks it is not in `shown`."""

    mailbox: bytes
    shown: dict[str, Shown] = field(default_factory=dict)
    masters: dict[str, str | None] = field(default_factory=dict)  # node -> the master that the node knows
    is_impossible: bool = False  # no history leads to some node's context and numbers

    def at(self, node: str) -> Shown:
        return self.shown.get(node) or Shown(MailboxState(), None, 0, 0)

    def merge_order(self, nodes: tuple[str, ...]) -> list[str]:
        return sorted(nodes, key=lambda node: (self.masters.get(node) != node, node))

    def relation(self, nodes: tuple[str, ...]) -> str:
        all_shown = [self.at(node) for node in nodes]
        contexts = [one.state.context for one in all_shown]
        for one in all_shown:
            if one.stated_count != len(one.state.rows):
                return "damaged"
            for other in all_shown:
                same_head = one.head is not None and one.head == other.head
                if (same_head or one.state.context == other.state.context) and one != other:
                    return "damaged"
                if covers(one.state.context, other.state.context) and any(
                    is_ < was for is_, was in zip(one.numbers(), other.numbers(), strict=True)
                ):
                    return "damaged"
        if not any(all(covers(one, other) for other in contexts) for one in contexts):
            return "forked"
        return "equal" if all(one == contexts[0] for one in contexts) else "behind"


def random_cluster(rng: random.Random, mailbox: bytes) -> Cluster:
    if rng.random() < 0.1:
        return impossible_cluster(rng, mailbox)
    world = World(rng)
    for _ in range(rng.choice((2, 8, 20, 40))):
        if rng.random() < 0.65:
            rng.choice(world.nodes).act(rng)
        else:
            one, other = rng.sample(world.nodes, 2)
            one.meet(other)
    if rng.random() < 0.15:
        _converge(world.nodes)
    found = Cluster(mailbox)
    for name, node in zip(NODES, world.nodes, strict=False):
        if node.history and rng.random() < 0.95:
            head = node.history[-1].dot
            found.shown[name] = Shown(node.state, head, len(node.state.rows), fingerprint_sum(node.state))
    master = rng.choice(NODES)
    found.masters = {name: rng.choice((master, master, name, None)) for name in found.shown}
    if rng.random() < 0.2 and found.shown:
        _damage(rng, found)
    return found


def random_clusters(count: int) -> list[Cluster]:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    return [random_cluster(random.Random(seed + number), number.to_bytes(16)) for number in range(count)]


def impossible_cluster(rng: random.Random, mailbox: bytes) -> Cluster:
    """Return a cluster of states that no history leads to, but for which the rules of merges define a result too."""
    found = Cluster(mailbox, is_impossible=True)
    common = rng.getrandbits(32)
    for name in rng.sample(NODES, rng.randint(1, 4)):
        context = {f"{origin}.x": rng.randint(1, 6) for origin in rng.sample("abc", rng.randint(1, 3))}
        state = MailboxState(1, rng.randint(0, 9), context, {}, rng.randrange(2))
        for guid in rng.sample(range(6), rng.randint(0, 6)):
            state.put(_unrelated_row(random.Random(common + guid) if rng.random() < 0.7 else rng, guid))
        state.uidnext = max(state.rows, default=0) + rng.randint(1, 9)
        head = Dot(f"{name}.x", rng.randint(1, 9))
        found.shown[name] = Shown(state, head, len(state.rows), fingerprint_sum(state))
    found.masters = {name: rng.choice(NODES) for name in found.shown}
    return found


def _unrelated_row(rng: random.Random, guid: int) -> Row:
    """Return a row whose UID and placement belong to no other GUID."""
    dot = Dot(f"{rng.choice('ab')}.x", guid + 1)
    claim = Dot(f"{rng.choice('abc')}.x", rng.randint(1, 6))
    flags = {flag: (rng.randint(1, 2), rng.choice("ab"), rng.random() < 0.5) for flag in rng.sample("xyz", 2)}
    uid = guid + 1 + 6 * rng.randrange(4)
    return Row(
        uid,
        dot,
        guid,
        guid.to_bytes(16),
        claim,
        rng.randint(1, 9),
        flags,
        0,
        1,
        b"h" * 32,
        (),
        rng.choice((None, 1, 2)),
    )


def _converge(nodes: list[Node]) -> None:
    for _ in range(2):
        for node in nodes[1:]:
            nodes[0].meet(node)


def fingerprint_sum(state: MailboxState) -> int:
    return rows.add(0, *(row.fingerprint() for row in state.rows.values()))


def _damage(rng: random.Random, cluster: Cluster) -> None:
    """Damage the mailbox at one node, in some cases with a head that states the new count and sum."""
    node = rng.choice(sorted(cluster.shown))
    shown = cluster.shown[node]
    before = shown.state
    state = MailboxState(before.uidnext, before.modseq, dict(before.context), dict(before.rows), before.risen)
    cluster.shown[node] = damaged = Shown(state, shown.head, shown.stated_count, shown.stated_sum)
    choice = rng.randrange(5)
    if choice == 0 or not state.rows:
        state.uidnext += 1
        cluster.is_impossible = True
        return
    row = state.rows[rng.choice(sorted(state.rows))]
    if choice == 1:
        damaged.stated_sum += 1
    elif choice == 2:
        state.take(row.guid)
    else:
        state.put(_damaged_row(rng, row))
    if choice > 1 and rng.random() < 0.5:
        damaged.stated_count, damaged.stated_sum = len(state.rows), fingerprint_sum(state)


def _damaged_row(rng: random.Random, row: Row) -> Row:
    return rng.choice((
        row._replace(content_hash=b"?" * 32),
        row._replace(content_hash=b"?" * 32, flags={}),
        row._replace(flags={**row.flags, "bent": (1, "z", True)}),
        row._replace(modseq=row.modseq + 1),
    ))  # fmt: skip
