"""Random histories of a mailbox at several nodes that number apart, with all promises checked at each step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from protocol.values import Dot, UidSet
from resync.clock import COUNTER_BITS
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel, Raise
from resync.merge import GAP_MAX, Anew, difference, merge
from resync.row import FlagStates, Placement, Row
from resync.state import RISEN_MAX, MailboxState
from tests.resync.replaying import replay

MAILBOX = b"m" * 16
HASH = b"h" * 32


class Node:
    """A node that numbers on top of what it shows, whether or not it is the master."""

    def __init__(self, name: str, world: World, *, raises: bool = False) -> None:
        self.origin, self.world, self.seq = f"{name}.x", world, 0
        self.anew = Anew(lambda dot: world.times[dot]) if raises else None
        self.state = MailboxState()
        self.history: list[Entry] = []  # a path from the first entry to the head
        self.shown: dict[int, bytes] = {}

    def number(self, *changes: MailAdd | MailDel | FlagAdd | FlagDel | Raise) -> None:
        skipped = self.world.rng.choice((0, 0, 7)) if any(isinstance(one, Raise) for one in changes) else 0
        self.step(self.entry(changes, [self.history[-1].dot] if self.history else [], self.state.modseq + 1 + skipped))

    def entry(self, changes: object, predecessors: list[Dot], modseq: int) -> Entry:
        self.seq += 1
        self.world.time += self.world.rng.randrange(2)  # stamps of two nodes may have one time
        self.world.times[Dot(self.origin, self.seq)] = self.world.time
        assert isinstance(changes, tuple)
        entry = Entry(
            Dot(self.origin, self.seq), tuple(predecessors), self.world.time << COUNTER_BITS, modseq, "alice", MAILBOX,
            7, changes, dated=self.world.rng.random() < 0.8,
        )  # fmt: skip
        self.world.entries.append(entry)
        return entry

    def step(self, entry: Entry) -> None:
        """Step to a later state, and check every promise."""
        before = MailboxState(
            self.state.uidnext, self.state.modseq, dict(self.state.context), dict(self.state.rows), self.state.risen
        )
        self.state.apply(entry)
        self.world.rows[entry.dot] = {row.guid: row for row in self.state.rows.values()}
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
                assert row.saved_ms == was.saved_ms, "a UID got another save date"
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
            raised = [Raise(self.state.uidnext + rng.randrange(4))] if rng.random() < 0.2 else []
            uid = raised[0].uidnext if raised else self.state.uidnext
            self.number(*raised, MailAdd(uid, guid, 0, flags, 1, HASH, copied=False))
            self.world.placed.setdefault(guid, set()).add((self.history[-1].dot, len(raised)))
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
        """Let the node that is behind adopt the other's state; on a fork this node merges."""
        if is_covered(self.state, other.state):
            self.adopt(other)
        elif is_covered(other.state, self.state):
            other.adopt(self)
        else:
            dot = Dot(self.origin, self.seq + 1)
            merged = merge(self.state, other.state, dot, self.anew)
            assert merged == merge(other.state, self.state, dot, self.anew), "a merge depends on the order of its sides"
            assert comparable(merged) == reference_merge(self.state, other.state, dot, self.anew)
            changes = difference(merged, (self.state, other.state))
            entry = self.entry(changes, [self.history[-1].dot, other.history[-1].dot], merged.modseq)
            theirs, path = other.state, [*other.history, entry]
            self.step(entry)
            assert replay(path) == self.state == replay(self.history), (
                "the two paths to a merge lead to different states"
            )
            assert other.state is theirs

    def adopt(self, other: Node) -> None:
        before, self.state, self.history = self.state, replay(other.history), list(other.history)
        self.check(before)


class World:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.time = rng, 1  # ms
        self.times: dict[Dot, int] = {}
        self.guids: list[bytes] = []
        self.placed: dict[bytes, set[Placement]] = {}  # GUID -> where it was saved
        self.expunged: set[Placement] = set()  # by clients that saw a message of these placements
        self.flagged: dict[bytes, dict[str, tuple[int, str, bool]]] = {}  # GUID -> flags as last stamped
        self.shown: dict[int, set[bytes]] = {}
        self.entries: list[Entry] = []  # of all nodes, in the order in which they were numbered
        self.rows: dict[Dot, dict[bytes, Row]] = {}  # what a mailbox shows after each entry, by GUID
        raises = rng.choice([(False,), (True,), (False, True)])
        self.nodes = [Node(name, self, raises=rng.choice(raises)) for name in "abcde"[: rng.randint(2, 5)]]

    def pick_guid(self, held: set[bytes]) -> bytes:
        """Return mostly a new GUID, and now and then one for a repeated SAVE or an undelete."""
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
        assert held == {guid for guid, placed in self.placed.items() if placed - self.expunged}, (
            "a message is lost, or came back"
        )
        for row in master.state.rows.values():
            if not self.placed[row.guid] & self.expunged:
                assert times(row.flags) == times(self.flagged[row.guid]), "a flag is not as it was last stamped"
        for uid in master.state.rows:
            assert len(self.shown[uid]) == 1, "a UID is in use that named two messages"


def times(flags: FlagStates) -> dict[str, int]:
    return {flag: time for flag, (time, _, _) in flags.items()}


def is_covered(one: MailboxState, other: MailboxState) -> bool:
    return all(other.context.get(origin, 0) >= seq for origin, seq in one.context.items())


def comparable(state: MailboxState) -> object:
    rows = {row.guid: row for row in state.rows.values()}
    return state.uidnext, state.modseq, state.risen, state.context, rows


def latest(one: Row, other: Row) -> dict[str, tuple[int, str, bool]]:
    return {
        flag: max(one.flags.get(flag, (0, "", False)), other.flags.get(flag, (0, "", False)))
        for flag in [*one.flags, *other.flags]
    }


def reference_merge(a: MailboxState, b: MailboxState, dot: Dot, anew: Anew | None) -> object:
    """Merge by the rule of design section 3, written sentence by sentence."""
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


def mail(uid: int, name: bytes) -> MailAdd:
    return MailAdd(uid, name * 16, 0, (), 1, HASH, copied=False)
