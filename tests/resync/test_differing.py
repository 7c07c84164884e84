"""Kinds of differences over random histories: a message's kinds say what a merge would do to it."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot, UidSet
from resync.bulk import Item, key_of
from resync.differing import DifferenceKind, Side, differing, kinds
from resync.entry import NOWHERE, AnnotationState, FlagAdd, FolderState, MailAdd, MailDel, SubscriptionState
from resync.merge import merge
from resync.row import Row, shares_placement
from resync.state import MailboxState
from tests.effort import examples
from tests.resync.histories import Node, World, mail

EXPUNGED = {DifferenceKind.EXPUNGED_HERE, DifferenceKind.EXPUNGED_THERE}
GUID = b"g" * 16


def by_guid(state: MailboxState) -> dict[bytes, Row]:
    return {row.guid: row for row in state.rows.values()}


def side_of(node: Node, rows: dict[bytes, Row] | None = None) -> Side:
    state = node.state
    head = node.history[-1].dot if node.history else None
    shown = by_guid(state) if rows is None else rows
    return Side(head, state.uidnext, state.modseq, state.context, shown, state.risen)


def only_what_differs(one: Node, other: Node) -> tuple[Side, Side]:
    """Return both sides without equal rows, as SYNC finds them."""
    ours, theirs = by_guid(one.state), by_guid(other.state)
    return (
        side_of(one, {guid: row for guid, row in ours.items() if theirs.get(guid) != row}),
        side_of(other, {guid: row for guid, row in theirs.items() if ours.get(guid) != row}),
    )


def mirrored(kind: DifferenceKind) -> DifferenceKind:
    here, there = "_here", "_there"
    if kind.endswith(here):
        return DifferenceKind(kind.removesuffix(here) + there)
    return DifferenceKind(kind.removesuffix(there) + here) if kind.endswith(there) else kind


def check_against_merge(one: Node, other: Node) -> None:
    ours, theirs = only_what_differs(one, other)
    found = kinds(ours, theirs)
    assert found == kinds(side_of(one), side_of(other)), "equal rows change the kinds"
    assert {key: {mirrored(kind) for kind in some} for key, some in kinds(theirs, ours).items()} == found
    merged = by_guid(merge(one.state, other.state, Dot("m.x", 1)))
    here, there = by_guid(one.state), by_guid(other.state)
    for guid in here.keys() | there.keys():
        mine, their, after = here.get(guid), there.get(guid), merged.get(guid)
        some = found.get(guid, frozenset())
        assert bool(some) == (mine != their)
        if not some:
            assert after == mine
            continue
        assert (after is None) == (some <= EXPUNGED), "a merge removes exactly the expunged messages"
        shown = {row.uid for row in (mine, their) if row is not None}
        assert (DifferenceKind.UID in some) == (after is not None and shown != {after.uid})
        if mine is None:
            assert (DifferenceKind.MISSING_HERE in some) == (after is not None)
        if their is None:
            assert (DifferenceKind.MISSING_THERE in some) == (after is not None)
        if mine is not None and their is not None and shares_placement(mine, their):
            assert (DifferenceKind.FLAGS in some) == (mine.flags != their.flags)
            assert some <= {DifferenceKind.FLAGS, DifferenceKind.UID, DifferenceKind.MODSEQ}
        assert DifferenceKind.DAMAGE not in some
        assert (DifferenceKind.MODSEQ in some) == (same_to_clients(mine, their) and DifferenceKind.UID not in some)
    counted = differing(ours, theirs).by_kind
    if one.state == other.state:
        assert not counted
    elif found:
        assert counted.total() == sum(map(len, found.values()))
    else:
        assert counted == {DifferenceKind.CONTEXT: 1}


def same_to_clients(mine: Row | None, their: Row | None) -> bool:
    """Return whether both are rows of one placement that look the same to clients."""
    if mine is None or their is None:
        return False
    return shares_placement(mine, their) and (mine.uid, mine.flags) == (their.uid, their.flags)


@given(st.integers(0, 2**32), st.integers(0, 60))
@settings(max_examples=examples(75, 150), deadline=None)
def test_kinds_say_what_a_merge_does_to_each_message(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(steps):
        if rng.random() < 0.7:
            rng.choice(world.nodes).act(rng)
        else:
            one, other = rng.sample(world.nodes, 2)
            one.meet(other)
        one, other = rng.sample(world.nodes, 2)
        check_against_merge(one, other)


def two_nodes() -> tuple[Node, Node]:
    """Make two nodes that show x, y and z under UIDs 1 to 3."""
    world = World(random.Random(0))
    one, other = (Node(name, world) for name in "ab")
    for uid, name in enumerate((b"x", b"y", b"z"), start=1):
        one.number(mail(uid, name))
    other.meet(one)
    return one, other


def counted(one: Node, other: Node) -> dict[DifferenceKind, int]:
    return dict(differing(*only_what_differs(one, other)).by_kind)


def test_changes_of_each_side_are_distinguished() -> None:
    one, other = two_nodes()
    assert counted(one, other) == {}
    one.number(MailDel(UidSet.of([1])))
    other.number(FlagAdd(UidSet.of([2]), ("a",)))
    other.number(MailDel(UidSet.of([3])))
    other.number(mail(4, b"w"))
    assert counted(one, other) == {
        DifferenceKind.EXPUNGED_HERE: 1,
        DifferenceKind.FLAGS: 1,
        DifferenceKind.EXPUNGED_THERE: 1,
        DifferenceKind.MISSING_HERE: 1,
    }


def test_one_uid_of_two_messages_is_a_conflict_of_both() -> None:
    one, other = two_nodes()
    one.number(mail(4, b"v"))
    other.number(mail(4, b"w"))
    assert counted(one, other) == {
        DifferenceKind.MISSING_HERE: 1,
        DifferenceKind.MISSING_THERE: 1,
        DifferenceKind.UID: 2,
    }


def test_message_saved_on_both_sides_is_missing_at_both() -> None:
    one, other = two_nodes()
    for node in (one, other):
        node.number(mail(4, b"v"))
    assert counted(one, other) == {
        DifferenceKind.MISSING_HERE: 1,
        DifferenceKind.MISSING_THERE: 1,
        DifferenceKind.UID: 1,
    }


def test_same_mail_with_another_history_differs_in_context() -> None:
    one, other = two_nodes()
    one.number(MailAdd(4, GUID, 0, (), 1, b"h" * 32, copied=False))
    one.number(MailDel(UidSet.of([4])))
    assert counted(one, other) == {DifferenceKind.CONTEXT: 1}


def test_different_rows_or_numbers_of_one_history_are_damage() -> None:
    one, other = two_nodes()
    whole = side_of(one)
    rows = dict(by_guid(other.state))
    del rows[b"x" * 16]
    rows[b"y" * 16] = rows[b"y" * 16]._replace(flags={"a": (9, "b", True)})
    assert differing(whole, side_of(other, rows)).by_kind == {DifferenceKind.DAMAGE: 2}
    other.state.uidnext += 1
    assert differing(whole, side_of(other)).by_kind == {DifferenceKind.DAMAGE: 1}


def test_different_bodies_of_one_placement_are_always_damage() -> None:
    one, other = two_nodes()
    other.number(mail(4, b"w"))
    rows = dict(by_guid(other.state))
    rows[b"y" * 16] = rows[b"y" * 16]._replace(content_hash=b"?" * 32)
    assert differing(side_of(one), side_of(other, rows)).by_kind == {
        DifferenceKind.DAMAGE: 1,
        DifferenceKind.MISSING_HERE: 1,
    }


def test_different_contexts_of_one_head_are_damage() -> None:
    one, _ = two_nodes()
    bent = Side(Dot("a.x", 3), 4, 3, {"a.x": 3, "c.x": 1}, {})
    assert differing(side_of(one, {}), bent).by_kind == {DifferenceKind.DAMAGE: 1}


# ---- trees -------------------------------------------------------------------------------------------------------


def folder(name: str, *, number: int = 1, uidvalidity: int = 1024, deleted: bool = False, time: int = 1) -> FolderState:
    return FolderState(bytes([number]) * 16, "alice", name, uidvalidity, deleted, time, "dc1")


def tree(origin: str, *items: Item) -> Side:
    return Side(Dot(origin, 1), 1, 1, {origin: 1}, {key_of(item): item for item in items})


def test_kinds_of_folders() -> None:
    plain = folder("Work")
    pairs: list[tuple[list[FolderState], list[FolderState], dict[DifferenceKind, int]]] = [
        ([plain], [], {DifferenceKind.MISSING_THERE: 1}),
        ([], [plain], {DifferenceKind.MISSING_HERE: 1}),
        ([folder("Work", deleted=True, time=2)], [plain], {DifferenceKind.EXPUNGED_HERE: 1}),
        ([plain], [folder("Work", deleted=True, time=2)], {DifferenceKind.EXPUNGED_THERE: 1}),
        ([plain], [folder("Play", time=2)], {DifferenceKind.RENAMED: 1}),
        ([plain], [folder("Work", time=2)], {DifferenceKind.RENAMED: 1}),
        ([plain], [folder("Work", uidvalidity=2048)], {DifferenceKind.UID: 1}),
        ([plain], [folder("Play", uidvalidity=2048, time=2)], {DifferenceKind.UID: 1, DifferenceKind.RENAMED: 1}),
        ([plain, folder("News", number=2)], [plain], {DifferenceKind.MISSING_THERE: 1}),
        ([plain], [plain], {DifferenceKind.CONTEXT: 1}),
    ]
    for ours, theirs, expected in pairs:
        assert differing(tree("dc1.x", *ours), tree("dc2.x", *theirs)).by_kind == expected


def test_kinds_of_subscriptions() -> None:
    one, other = (SubscriptionState("alice", "News", subscribed, 1, "dc1") for subscribed in (True, False))
    assert differing(tree("dc1.x", one), tree("dc2.x", other)).by_kind == {DifferenceKind.SUBSCRIPTION: 1}
    assert differing(tree("dc1.x"), tree("dc2.x", other)).by_kind == {DifferenceKind.MISSING_HERE: 1}
    assert differing(tree("dc1.x", one), tree("dc2.x")).by_kind == {DifferenceKind.MISSING_THERE: 1}


def test_kinds_of_annotations() -> None:
    one, other = (AnnotationState("alice", NOWHERE, "/private/comment", value, 1, "dc1") for value in (b"x", None))
    assert differing(tree("dc1.x", one), tree("dc2.x", other)).by_kind == {DifferenceKind.ANNOTATION: 1}
    assert differing(tree("dc1.x"), tree("dc2.x", other)).by_kind == {DifferenceKind.MISSING_HERE: 1}
    assert differing(tree("dc1.x", one), tree("dc2.x")).by_kind == {DifferenceKind.MISSING_THERE: 1}
