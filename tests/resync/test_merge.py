"""The merge against the same rule written dumb, and its promises over random histories of several nodes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, UidSet
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel
from resync.merge import GAP_MAX, Anew, difference, merge
from resync.row import Row
from resync.state import MERGE_HEADROOM, RISEN_MAX, MailboxState, placement, replay

MAILBOX = b"m" * 16
HASH = b"h" * 32


class Node:
    """A node that numbers on top of what it shows, whether or not it may."""

    def __init__(self, name: str, world: World, *, raises: bool = False) -> None:
        self.origin, self.world, self.seq = f"{name}.x", world, 0
        self.anew = Anew(lambda dot: world.times[dot]) if raises else None
        self.state = MailboxState()
        self.history: list[Entry] = []  # a path from the first entry to the head
        self.shown: dict[int, tuple[Dot, int]] = {}

    def number(self, *changes: MailAdd | MailDel | FlagAdd | FlagDel) -> None:
        self.step(self.entry(changes, [self.history[-1].dot] if self.history else [], self.state.modseq + 1))

    def entry(self, changes: object, predecessors: list[Dot], modseq: int) -> Entry:
        self.seq += 1
        self.world.time += self.world.rng.randrange(2)  # stamps of two nodes may have one time
        self.world.times[Dot(self.origin, self.seq)] = self.world.time
        assert isinstance(changes, tuple)
        return Entry(
            Dot(self.origin, self.seq), tuple(predecessors), self.world.time, modseq, "alice", MAILBOX, 7, changes
        )

    def step(self, entry: Entry) -> None:
        """Show a later state; every promise is checked here."""
        before = MailboxState(
            self.state.uidnext, self.state.modseq, dict(self.state.context), dict(self.state.rows), self.state.risen
        )
        self.state.apply(entry)
        self.history.append(entry)
        self.check(before)

    def check(self, before: MailboxState) -> None:
        assert self.state.risen >= before.risen, "UIDVALIDITY fell"
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
            merged = merge(self.state, other.state, dot, self.anew)
            assert merged == merge(other.state, self.state, dot, self.anew), "a merge depends on the order of its sides"
            assert plain(merged) == dumb_merge(self.state, other.state, dot, self.anew)
            changes = difference(merged, (self.state, other.state))
            entry = self.entry(changes, [self.history[-1].dot, other.history[-1].dot], merged.modseq)
            theirs, path = other.state, [*other.history, entry]
            self.step(entry)
            assert replay(path) == self.state == replay(self.history), "the two ways to a merge end apart"
            assert other.state is theirs

    def adopt(self, other: Node) -> None:
        before, self.state, self.history = self.state, replay(other.history), list(other.history)
        self.check(before)


class World:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.time = rng, 1
        self.times: dict[Dot, int] = {}
        self.guids: list[bytes] = []
        self.expunged: set[bytes] = set()  # by a client, after the last one has saved them
        self.shown: dict[int, set[tuple[Dot, int]]] = {}
        raises = rng.choice([(False,), (True,), (False, True)])
        self.nodes = [Node(name, self, raises=rng.choice(raises)) for name in "abcde"[: rng.randint(2, 5)]]

    def pick_guid(self, held: set[bytes]) -> bytes:
        """Mostly a new message; now and then a SAVE tried again where it is not known yet, or an undelete."""
        again = [guid for guid in self.guids if guid not in held]
        if again and self.rng.random() < 0.3:
            guid = self.rng.choice(again)
            self.expunged.discard(guid)
            return guid
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
    rows = {placement(row): row for row in state.rows.values()}
    return state.uidnext, state.modseq, state.risen, state.context, rows


def latest(one: Row, other: Row) -> dict[str, tuple[int, str, bool]]:
    return {
        flag: max(one.flags.get(flag, (0, "", False)), other.flags.get(flag, (0, "", False)))
        for flag in [*one.flags, *other.flags]
    }


def dumb_merge(a: MailboxState, b: MailboxState, dot: Dot, anew: Anew | None) -> object:
    """The rule of design section 3, sentence by sentence."""
    uidnext, modseq, risen = max(a.uidnext, b.uidnext), max(a.modseq, b.modseq) + 1, max(a.risen, b.risen)
    context = {o: max(a.context.get(o, 0), b.context.get(o, 0)) for o in [*a.context, *b.context]}
    in_a: Mapping[tuple[Dot, int], Row] = {placement(row): row for row in a.rows.values()}
    in_b = {placement(row): row for row in b.rows.values()}
    by_age = sorted({*in_a, *in_b}, key=lambda key: (key[0].seq, key[0].origin, key[1]))
    kept: dict[bytes, Row] = {}
    displaced: list[bytes] = []
    named_a, named_b = {row.guid: key for key, row in in_a.items()}, {row.guid: key for key, row in in_b.items()}
    doubles: set[bytes] = set()
    for key in by_age:
        ours, theirs = in_a.get(key), in_b.get(key)
        if ours and theirs:
            if a.has_seen(theirs.claim) and not b.has_seen(ours.claim):
                row = ours
            elif b.has_seen(ours.claim) and not a.has_seen(theirs.claim):
                row = theirs
            else:
                row = ours if (ours.uid, ours.claim) > (theirs.uid, theirs.claim) else theirs
            changed = ours != theirs
            row = row._replace(flags=latest(ours, theirs), modseq=modseq if changed else row.modseq)
        else:
            only = ours or theirs
            assert only is not None
            row = only._replace(modseq=modseq)
            key_in_a, key_in_b = named_a.get(only.guid), named_b.get(only.guid)
            if (a if ours is None else b).has_seen(key[0]) or row.guid in doubles:
                continue
            if key_in_a and key_in_b and not b.has_seen(key_in_a[0]) and not a.has_seen(key_in_b[0]):
                row = row._replace(flags=latest(in_a[key_in_a], in_b[key_in_b]))
                doubles.add(row.guid)
        assert row.guid not in kept
        kept[row.guid] = row
        if row.guid in doubles or any(not side.has_seen(row.claim) and row.uid < side.uidnext for side in (a, b)):
            displaced.append(row.guid)
    if displaced and anew:
        in_order = sorted(kept, key=lambda guid: (anew.time_of(kept[guid].dot), kept[guid].dot.sid))
        turn = gap = 0
        for guid in in_order:
            turn += 1
            if kept[guid].uid < turn:
                gap += turn - kept[guid].uid
            turn = max(turn, kept[guid].uid)
        gap = max(1, min(gap, GAP_MAX))
        if risen + gap <= RISEN_MAX:
            risen, displaced = risen + gap, in_order
    for number, guid in enumerate(displaced):
        kept[guid] = kept[guid]._replace(uid=uidnext, claim=dot, modseq=modseq)
        if guid in doubles:
            kept[guid] = kept[guid]._replace(dot=dot, change=number)
        uidnext += 1
    return uidnext, modseq, risen, context, {placement(row): row for row in kept.values()}


@given(st.integers(0, 2**32), st.integers(10, 120))
@settings(max_examples=150, deadline=None)
def test_nodes_that_number_apart_keep_every_promise(seed: int, steps: int) -> None:
    World(random.Random(seed)).run(steps)


def test_the_same_uid_for_two_mails_goes_to_neither() -> None:
    world = World(random.Random(0))
    one, other = (Node(name, world) for name in "ab")
    one.number(MailAdd(1, b"x" * 16, 0, (), 1, HASH, copied=False))
    other.meet(one)
    one.number(MailAdd(2, b"y" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailAdd(2, b"z" * 16, 0, (), 1, HASH, copied=False))
    one.meet(other)
    assert {uid: row.guid[:1] for uid, row in one.state.rows.items()} == {1: b"x", 3: b"z", 4: b"y"}


def test_a_uid_that_the_other_side_saved_and_expunged_is_not_used() -> None:
    world = World(random.Random(0))
    one, other = (Node(name, world) for name in "ab")
    one.number(MailAdd(1, b"y" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailAdd(1, b"z" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailDel(UidSet.of([1])))
    one.meet(other)
    assert {uid: row.guid[:1] for uid, row in one.state.rows.items()} == {2: b"y"}


def test_who_has_expunged_one_of_two_placements_removes_nothing_of_what_they_have_become() -> None:
    """A mail is sent twice; one part expunges the one, while another part makes both one."""
    world = World(random.Random(0))
    first, again, third = (Node(name, world) for name in "abc")
    first.number(mail(1, b"x"))
    third.meet(first)
    again.number(mail(1, b"x"))
    first.number(MailDel(UidSet.of([1])))
    again.meet(third)
    assert [(row.dot, row.change) for row in again.state.rows.values()] == [(Dot("b.x", 2), 0)]
    again.meet(first)
    assert shown(again) == {2: b"x"}
    first.meet(again)
    first.number(MailDel(UidSet.of([2])))
    third.meet(first)
    assert shown(third) == {}


# ---- conflict.uid = "uidvalidity" --------------------------------------------------------------------------------


def mail(uid: int, name: bytes) -> MailAdd:
    return MailAdd(uid, name * 16, 0, (), 1, HASH, copied=False)


def two_that_raise() -> tuple[Node, Node]:
    world = World(random.Random(0))
    one, other = (Node(name, world, raises=True) for name in "ab")
    return one, other


def shown(node: Node) -> dict[int, bytes]:
    return {uid: row.guid[:1] for uid, row in sorted(node.state.rows.items())}


def test_where_a_uid_cannot_stay_all_are_given_anew_in_log_order_and_uidvalidity_rises_by_the_gap() -> None:
    one, other = two_that_raise()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.world.time = 10
    one.number(mail(2, b"y"))
    one.world.time = 5
    other.number(mail(2, b"z"))
    one.meet(other)
    other.meet(one)
    assert shown(one) == shown(other) == {3: b"x", 4: b"z", 5: b"y"}
    assert one.state.risen == other.state.risen == 1


def test_uidvalidity_rises_too_where_one_of_the_two_was_expunged_before() -> None:
    one, other = two_that_raise()
    one.number(mail(1, b"y"))
    other.number(mail(1, b"z"))
    other.number(MailDel(UidSet.of([1])))
    one.meet(other)
    assert (shown(one), one.state.risen) == ({2: b"y"}, 1)


def test_nothing_is_given_anew_where_no_uid_conflicts() -> None:
    one, other = two_that_raise()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.number(mail(2, b"y"))
    other.number(FlagAdd(UidSet.of([1]), ("a",)))
    modseq = one.state.modseq
    one.meet(other)
    assert (shown(one), one.state.risen) == ({1: b"x", 2: b"y"}, 0)
    assert one.state.modseq > modseq


def test_the_gap_of_one_conflict_is_bounded() -> None:
    one, other = two_that_raise()
    for number in range(100):
        one.number(mail(number + 1, bytes([number])))
        other.number(mail(number + 1, bytes([100 + number])))
    assert merge(one.state, other.state, Dot("a.x", 101), one.anew).risen == GAP_MAX


def test_where_uidvalidity_can_rise_no_more_single_uids_are_given_anew() -> None:
    one, other = two_that_raise()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.number(mail(2, b"y"))
    other.number(mail(2, b"z"))
    for node in (one, other):
        node.state.risen = RISEN_MAX
    merged = merge(one.state, other.state, Dot("a.x", 9), one.anew)
    assert (sorted(merged.rows), merged.risen) == ([1, 3, 4], RISEN_MAX)
    for node in (one, other):
        node.state.risen, node.state.uidnext = 0, UID_MAX - MERGE_HEADROOM - 2
    merged = merge(one.state, other.state, Dot("a.x", 9), one.anew)
    assert (len(merged.rows), merged.risen, min(merged.rows)) == (3, 0, 1)


def test_what_has_left_the_log_comes_first_in_the_order_that_it_had() -> None:
    """Here b's entries came into the log before a's, and the log of neither has them."""
    one, other = two_that_raise()
    other.number(mail(1, b"x"))
    one.meet(other)
    one.number(mail(2, b"y"))
    other.meet(one)
    common = set(one.state.context)
    seen = {Dot(origin, seq) for origin in common for seq in range(1, one.state.context[origin] + 1)}
    one.number(mail(3, b"p"))
    other.number(mail(3, b"q"))
    anew = Anew(lambda dot: None if dot in seen else one.world.times[dot])
    merged = merge(one.state, other.state, Dot("a.x", 9), anew)
    assert [merged.rows[uid].guid[:1] for uid in sorted(merged.rows)][:2] == [b"x", b"y"]
    assert (min(merged.rows), len(merged.rows)) == (4, 4)
