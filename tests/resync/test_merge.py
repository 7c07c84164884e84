"""The merge against the same rule written dumb, and its promises over random histories of several nodes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot, UidSet
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel
from resync.merge import difference, merge
from resync.row import Row
from resync.state import MailboxState, placement, replay

MAILBOX = b"m" * 16
HASH = b"h" * 32


class Node:
    """A node that numbers on top of what it shows, whether or not it may."""

    def __init__(self, name: str, world: World) -> None:
        self.origin, self.world, self.seq = f"{name}.x", world, 0
        self.state = MailboxState()
        self.history: list[Entry] = []  # a path from the first entry to the head
        self.shown: dict[int, tuple[Dot, int]] = {}

    def number(self, *changes: MailAdd | MailDel | FlagAdd | FlagDel) -> None:
        self.step(self.entry(changes, [self.history[-1].dot] if self.history else [], self.state.modseq + 1))

    def entry(self, changes: object, predecessors: list[Dot], modseq: int) -> Entry:
        self.seq += 1
        self.world.time += 1
        assert isinstance(changes, tuple)
        return Entry(
            Dot(self.origin, self.seq), tuple(predecessors), self.world.time, modseq, "alice", MAILBOX, 7, changes
        )

    def step(self, entry: Entry) -> None:
        """Show a later state; every promise is checked here."""
        before = MailboxState(self.state.uidnext, self.state.modseq, dict(self.state.context), dict(self.state.rows))
        self.state.apply(entry)
        self.history.append(entry)
        self.check(before)

    def check(self, before: MailboxState) -> None:
        old = {placement(row): row for row in before.rows.values()}
        after = self.state
        for uid, row in after.rows.items():
            was = old.get(placement(row))
            if was is None:
                assert not before.has_seen(row.dot), "an expunged message came back"
            if was is None or was.uid != row.uid:
                assert row.uid >= before.uidnext, "a message appeared below a UIDNEXT that was shown"
            if was is None or was.uid != row.uid or was.visible_flags() != row.visible_flags():
                assert row.modseq > before.modseq, "a change appeared at a MODSEQ that was shown"
            assert self.shown.setdefault(uid, placement(row)) == placement(row), "a UID named two messages"
            self.world.shown.setdefault(uid, set()).add(placement(row))
            assert uid == row.uid < after.uidnext
        assert len({row.guid for row in after.rows.values()}) == len(after.rows)

    def act(self, rng: random.Random) -> None:
        uids = sorted(self.state.rows)
        choice = rng.random()
        if choice < 0.5 or not uids:
            held = {row.guid for row in self.state.rows.values()}
            guid = self.world.pick_guid(held)
            flags = ("\\Seen",) if rng.random() < 0.3 else ()
            self.number(MailAdd(self.state.uidnext, guid, 0, flags, 1, HASH, copied=False))
        elif choice < 0.7:
            uid = rng.choice(uids)
            self.world.expunged.add(self.state.rows[uid].guid)
            self.number(MailDel(UidSet.of([uid])))
        else:
            some = UidSet.of(rng.sample(uids, rng.randint(1, len(uids))))
            self.number(rng.choice((FlagAdd, FlagDel))(some, (rng.choice("abc"),)))

    def meet(self, other: Node) -> None:
        """The one behind steps along; on a fork this node merges."""
        if within(self.state, other.state):
            self.adopt(other)
        elif within(other.state, self.state):
            other.adopt(self)
        else:
            dot = Dot(self.origin, self.seq + 1)
            merged = merge(self.state, other.state, dot)
            assert merged == merge(other.state, self.state, dot), "a merge depends on the order of its sides"
            assert plain(merged) == dumb_merge(self.state, other.state, dot)
            change = difference(merged, (self.state, other.state))
            entry = self.entry((change,), [self.history[-1].dot, other.history[-1].dot], merged.modseq)
            theirs, path = other.state, [*other.history, entry]
            self.step(entry)
            assert replay(path) == self.state == replay(self.history), "the two ways to a merge end apart"
            assert other.state is theirs

    def adopt(self, other: Node) -> None:
        before, self.state, self.history = self.state, replay(other.history), list(other.history)
        self.check(before)


class World:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.time = rng, 0
        self.guids: list[bytes] = []
        self.expunged: set[bytes] = set()
        self.shown: dict[int, set[tuple[Dot, int]]] = {}
        self.nodes = [Node(name, self) for name in "abcde"[: rng.randint(2, 5)]]

    def pick_guid(self, held: set[bytes]) -> bytes:
        """Mostly a new message; now and then a SAVE tried again where it is not known yet."""
        again = [guid for guid in self.guids if guid not in held and guid not in self.expunged]
        if again and self.rng.random() < 0.2:
            return self.rng.choice(again)
        self.guids.append(len(self.guids).to_bytes(16))
        return self.guids[-1]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.6:
                self.rng.choice(self.nodes).act(self.rng)
            else:
                one, other = self.rng.sample(self.nodes, 2)
                one.meet(other)
        master, *others = self.nodes
        for _ in range(2):
            for node in others:
                master.meet(node)
        for node in others:
            assert node.state == master.state, "the nodes differ"
        held = {row.guid for row in master.state.rows.values()}
        assert set(self.guids) - self.expunged <= held, "a message is lost"
        for uid in master.state.rows:
            assert len(self.shown[uid]) == 1, "a UID is in use that named two messages"


def within(one: MailboxState, other: MailboxState) -> bool:
    return all(other.context.get(origin, 0) >= seq for origin, seq in one.context.items())


def plain(state: MailboxState) -> object:
    return state.uidnext, state.modseq, state.context, {placement(row): row for row in state.rows.values()}


def dumb_merge(a: MailboxState, b: MailboxState, dot: Dot) -> object:
    """The rule of design section 3, sentence by sentence."""
    uidnext, modseq = max(a.uidnext, b.uidnext), max(a.modseq, b.modseq) + 1
    context = {o: max(a.context.get(o, 0), b.context.get(o, 0)) for o in [*a.context, *b.context]}
    in_a: Mapping[tuple[Dot, int], Row] = {placement(row): row for row in a.rows.values()}
    in_b = {placement(row): row for row in b.rows.values()}
    by_age = sorted({*in_a, *in_b}, key=lambda key: (key[0].seq, key[0].origin, key[1]))
    kept: dict[bytes, Row] = {}
    displaced: list[bytes] = []
    for key in by_age:
        ours, theirs = in_a.get(key), in_b.get(key)
        if ours is None and a.has_seen(key[0]):
            continue
        if theirs is None and b.has_seen(key[0]):
            continue
        if ours and theirs:
            if a.has_seen(theirs.claim) and not b.has_seen(ours.claim):
                row = ours
            elif b.has_seen(ours.claim) and not a.has_seen(theirs.claim):
                row = theirs
            else:
                row = ours if (ours.uid, ours.claim) > (theirs.uid, theirs.claim) else theirs
            flags = {}
            for flag in [*ours.flags, *theirs.flags]:
                flags[flag] = max(ours.flags.get(flag, (0, "", False)), theirs.flags.get(flag, (0, "", False)))
            changed = ours != theirs
            row = row._replace(flags=flags, modseq=modseq if changed else row.modseq)
        else:
            only = ours or theirs
            assert only is not None
            row = only._replace(modseq=modseq)
        if row.guid in kept:
            first = kept[row.guid]
            flags = {}
            for flag in [*first.flags, *row.flags]:
                flags[flag] = max(first.flags.get(flag, (0, "", False)), row.flags.get(flag, (0, "", False)))
            kept[row.guid] = first._replace(flags=flags, modseq=modseq)
            continue
        kept[row.guid] = row
        if any(not side.has_seen(row.claim) and row.uid < side.uidnext for side in (a, b)):
            displaced.append(row.guid)
    for guid in displaced:
        kept[guid] = kept[guid]._replace(uid=uidnext, claim=dot, modseq=modseq)
        uidnext += 1
    return uidnext, modseq, context, {placement(row): row for row in kept.values()}


@given(st.integers(0, 2**32), st.integers(10, 120))
@settings(max_examples=150, deadline=None)
def test_nodes_that_number_apart_keep_every_promise(seed: int, steps: int) -> None:
    World(random.Random(seed)).run(steps)


def test_the_same_uid_for_two_mails_goes_to_neither() -> None:
    world = World(random.Random(0))
    one, other = world.nodes[:2]
    one.number(MailAdd(1, b"x" * 16, 0, (), 1, HASH, copied=False))
    other.meet(one)
    one.number(MailAdd(2, b"y" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailAdd(2, b"z" * 16, 0, (), 1, HASH, copied=False))
    one.meet(other)
    assert {uid: row.guid[:1] for uid, row in one.state.rows.items()} == {1: b"x", 3: b"z", 4: b"y"}


def test_a_uid_that_the_other_side_saved_and_expunged_is_not_used() -> None:
    world = World(random.Random(0))
    one, other = world.nodes[:2]
    one.number(MailAdd(1, b"y" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailAdd(1, b"z" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailDel(UidSet.of([1])))
    one.meet(other)
    assert {uid: row.guid[:1] for uid, row in one.state.rows.items()} == {2: b"y"}
