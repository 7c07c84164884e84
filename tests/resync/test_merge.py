"""The merge against the same rule written dumb, and its promises over random histories of several nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, UidSet
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel
from resync.merge import GAP_MAX, Anew, difference, merge
from resync.row import FlagStates, Placement, Row
from resync.state import MERGE_HEADROOM, RISEN_MAX, MailboxState
from tests.resync.replaying import replay

MAILBOX = b"m" * 16
HASH = b"h" * 32


class Node:
    """A node that numbers on top of what it shows, whether or not it may."""

    def __init__(self, name: str, world: World, *, raises: bool = False) -> None:
        self.origin, self.world, self.seq = f"{name}.x", world, 0
        self.anew = Anew(lambda dot: world.times[dot]) if raises else None
        self.state = MailboxState()
        self.history: list[Entry] = []  # a path from the first entry to the head
        self.shown: dict[int, bytes] = {}

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
        old = {row.guid: row for row in before.rows.values()}
        after = self.state
        for uid, row in after.rows.items():
            was = old.get(row.guid)
            if was is None:
                seen = all(before.has_seen(dot) for dot, _ in row.placements())
                assert not seen, "an expunged message came back"
            if was is not None and was.uid == row.uid:
                assert {*row.placements()} <= {*was.placements()}, "a UID gained a placement"
            if was is None or was.uid != row.uid:
                assert row.uid >= before.uidnext, "a message appeared below a UIDNEXT that was shown"
            if was is None or was.uid != row.uid or was.visible_flags() != row.visible_flags():
                assert row.modseq > before.modseq, "a change appeared at a MODSEQ that was shown"
            assert self.shown.setdefault(uid, row.guid) == row.guid, "a UID named two messages"
            self.world.shown.setdefault(uid, set()).add(row.guid)
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
            self.world.placed.setdefault(guid, set()).add((self.history[-1].dot, 0))
            self.world.note(guid, flags, self.history[-1], value=True)
        elif choice < 0.7:
            uid = rng.choice(uids)
            self.world.expunged |= set(self.state.rows[uid].placements())
            self.number(MailDel(UidSet.of([uid])))
        else:
            some = UidSet.of(rng.sample(uids, rng.randint(1, len(uids))))
            kind, flags = rng.choice((FlagAdd, FlagDel)), (rng.choice("abc"),)
            guids = [self.state.rows[uid].guid for uid in some]
            self.number(kind(some, flags))
            for guid in guids:
                self.world.note(guid, flags, self.history[-1], value=kind is FlagAdd)

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
        self.placed: dict[bytes, set[Placement]] = {}  # GUID -> where it was saved
        self.expunged: set[Placement] = set()  # by clients that saw a message that stood for them
        self.flagged: dict[bytes, dict[str, tuple[int, str, bool]]] = {}  # GUID -> flags as last stamped
        self.shown: dict[int, set[bytes]] = {}
        raises = rng.choice([(False,), (True,), (False, True)])
        self.nodes = [Node(name, self, raises=rng.choice(raises)) for name in "abcde"[: rng.randint(2, 5)]]

    def pick_guid(self, held: set[bytes]) -> bytes:
        """Mostly a new message; now and then a SAVE tried again where it is not known yet, or an undelete."""
        again = [guid for guid in self.guids if guid not in held]
        if again and self.rng.random() < 0.3:
            return self.rng.choice(again)
        self.guids.append(len(self.guids).to_bytes(16))
        return self.guids[-1]

    def note(self, guid: bytes, flags: Iterable[str], entry: Entry, *, value: bool) -> None:
        states = self.flagged.setdefault(guid, {})
        for flag in flags:
            states[flag] = max(states.get(flag, (0, "", False)), (*entry.stamp, value))

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
        assert held == {guid for guid, placed in self.placed.items() if placed - self.expunged}, "lost, or back"
        for row in master.state.rows.values():
            if not self.placed[row.guid] & self.expunged:
                assert times(row.flags) == times(self.flagged[row.guid]), "a flag is not as it was last stamped"
        for uid in master.state.rows:
            assert len(self.shown[uid]) == 1, "a UID is in use that named two messages"


def times(flags: FlagStates) -> dict[str, int]:
    return {flag: time for flag, (time, _, _) in flags.items()}


def within(one: MailboxState, other: MailboxState) -> bool:
    return all(other.context.get(origin, 0) >= seq for origin, seq in one.context.items())


def plain(state: MailboxState) -> object:
    rows = {row.guid: row for row in state.rows.values()}
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
    in_a: Mapping[bytes, Row] = {row.guid: row for row in a.rows.values()}
    in_b = {row.guid: row for row in b.rows.values()}
    kept: dict[bytes, Row] = {}
    displaced: list[bytes] = []
    for guid in {**in_a, **in_b}:
        ours, theirs = in_a.get(guid), in_b.get(guid)
        if ours == theirs:
            assert ours is not None
            kept[guid] = ours
            continue
        of_ours, of_theirs = (row.placements() if row else () for row in (ours, theirs))
        left = []
        for one in {*of_ours, *of_theirs}:
            is_gone = (one not in of_ours and a.has_seen(one[0])) or (one not in of_theirs and b.has_seen(one[0]))
            if not is_gone:
                left.append(one)
        left.sort(key=lambda one: (one[0].seq, one[0].origin, one[1]))
        ours = ours if ours and {*left} & {*of_ours} else None
        theirs = theirs if theirs and {*left} & {*of_theirs} else None
        if ours and theirs:
            if not {*of_ours} & {*of_theirs}:
                row = ours if left[0] in of_ours else theirs
            elif a.has_seen(theirs.claim) and not b.has_seen(ours.claim):
                row = ours
            elif b.has_seen(ours.claim) and not a.has_seen(theirs.claim):
                row = theirs
            else:
                row = ours if (ours.uid, ours.claim) > (theirs.uid, theirs.claim) else theirs
            row = row._replace(flags=latest(ours, theirs))
        elif ours or theirs:
            row = ours or theirs  # type: ignore[assignment]
        else:
            continue
        kept[guid] = row._replace(dot=left[0][0], change=left[0][1], also=tuple(left[1:]), modseq=modseq)
    by_age = sorted(kept, key=lambda guid: (kept[guid].dot.seq, kept[guid].dot.origin, kept[guid].change))
    for guid in by_age:
        row = kept[guid]
        for side, there in ((a, in_a), (b, in_b)):
            shows_it = guid in there and (there[guid].uid, there[guid].claim) == (row.uid, row.claim)
            shows_it = shows_it and {*row.placements()} <= {*there[guid].placements()}
            if not shows_it and row.uid < side.uidnext and guid not in displaced:
                displaced.append(guid)
    if displaced and anew:
        in_order = sorted(by_age, key=lambda guid: (anew.time_of(kept[guid].dot), kept[guid].dot.sid))
        turn = gap = 0
        for guid in in_order:
            turn += 1
            if kept[guid].uid < turn:
                gap += turn - kept[guid].uid
            turn = max(turn, kept[guid].uid)
        gap = max(1, min(gap, GAP_MAX))
        if risen + gap <= RISEN_MAX:
            risen, displaced = risen + gap, in_order
    for guid in displaced:
        kept[guid] = kept[guid]._replace(uid=uidnext, claim=dot, modseq=modseq)
        uidnext += 1
    return uidnext, modseq, risen, context, {row.guid: row for row in kept.values()}


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


def twice() -> tuple[Node, Node, Node]:
    """Return three nodes: two have numbered one mail apart, and the third has that of the first."""
    world = World(random.Random(0))
    first, again, third = (Node(name, world) for name in "abc")
    first.number(mail(1, b"x"))
    third.meet(first)
    again.number(mail(1, b"x"))
    return first, again, third


def test_who_has_expunged_one_of_two_placements_leaves_the_other_one() -> None:
    """A mail is sent twice; one part expunges the one, while another part makes both one."""
    first, again, third = twice()
    first.number(MailDel(UidSet.of([1])))
    again.meet(third)
    assert [row.placements() for row in again.state.rows.values()] == [((Dot("a.x", 1), 0), (Dot("b.x", 1), 0))]
    again.meet(first)
    assert shown(again) == {2: b"x"}
    first.meet(again)
    first.number(MailDel(UidSet.of([2])))
    third.meet(first)
    assert shown(third) == {}


def test_what_is_expunged_after_one_of_two_merges_of_the_same_fork_stays_gone() -> None:
    first, again, third = twice()
    fourth = Node("d", first.world)
    fourth.meet(again)
    again.meet(third)
    first.meet(fourth)
    first.number(MailDel(UidSet.of([2])))
    first.meet(again)
    assert shown(first) == {}


def test_a_flag_set_on_one_placement_while_two_others_are_joined_stays() -> None:
    first, again, third = twice()
    third.number(FlagAdd(UidSet.of([1]), ("a",)))
    again.meet(first)
    again.meet(third)
    assert [row.visible_flags() for row in again.state.rows.values()] == [{"a"}]


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
