"""Stories over drawn histories, with forks and merges, against the states that the nodes had; and written examples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot, UidSet
from resync.entry import (
    NOWHERE,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    Raise,
    SubscriptionState,
    TreeMerge,
    tree_id,
)
from resync.story.branches import meetings
from resync.story.deeds import RANGES_MAX, Deed, Renumbered, deeds_of_mailbox, deeds_of_tree
from resync.story.lives import Event, events, folder_events, named
from resync.story.parts import about, about_folders, added_by, adding
from resync.story.places import NOT_THERE, Place, Places, begin_of, steps
from tests.effort import examples
from tests.resync.histories import HASH, Node, World, mail

drawn = given(st.integers(0, 2**32), st.integers(10, 120))
thorough = settings(max_examples=examples(40, 150), deadline=None)


def world_of(seed: int, length: int) -> World:
    world = World(random.Random(seed))
    world.run(length)
    return world


@drawn
@thorough
def test_places_are_those_that_nodes_showed(seed: int, length: int) -> None:
    world = world_of(seed, length)
    for step in steps(world.entries, world.guids):
        shown = world.rows[step.entry.dot]
        assert step.after == {
            guid: Place(shown[guid].uid, shown[guid].visible_flags()) if guid in shown else NOT_THERE
            for guid in world.guids
        }
        assert len(step.before) == max(1, len(step.entry.predecessors))


def lives(
    entries: Iterable[Entry], guids: Iterable[bytes], begin: Mapping[Dot, Places] | None = None
) -> dict[bytes, list[Event]]:
    wanted = [*guids]
    followed = steps(entries, wanted, begin)
    return {guid: events(followed, guid) for guid in wanted}


@drawn
@thorough
def test_part_of_an_entry_tells_the_same(seed: int, length: int) -> None:
    world = world_of(seed, length)
    whole = lives(world.entries, world.guids)
    for guid in world.guids[:5]:
        parts = [about(entry, frozenset([guid])) for entry in world.entries]
        assert lives(parts, [guid])[guid] == whole[guid]


@drawn
@thorough
def test_log_that_begins_later_tells_no_falsehood(seed: int, length: int) -> None:
    """Of what has left the log, as much is told as the rows that the nodes have in the end say, and nothing else."""
    world = world_of(seed, length)
    whole = lives(world.entries, world.guids)
    left = world.rng.randrange(len(world.entries) or 1)
    gone, entries = world.entries[:left], world.entries[left:]
    below = {dot for entry in entries for dot in entry.predecessors} - {entry.dot for entry in entries}
    rows = {row.guid: row for row in world.nodes[0].state.rows.values()}
    last = {guid: row.uid for entry in world.entries for guid, row in world.rows[entry.dot].items()}
    begin: dict[bytes, Place] = {}
    for guid in world.guids if len(below) == 1 and all(entry.predecessors for entry in entries) else ():
        shown = (rows[guid].uid, rows[guid].claim) if guid in rows else None
        kept = None if guid in rows else last.get(guid)
        if (place := begin_of(entries, guid, shown, kept)) is not None:
            begin[guid] = place
    for guid, told in lives(entries, world.guids, dict.fromkeys(below, begin) if begin else {}).items():
        known = {(event.entry, event.kind): event for event in whole[guid]}
        for event in told:
            true = known[event.entry, event.kind]
            assert set(event.was) <= set(true.was)
            assert replace(event, was=()) == replace(true, was=())
        if not any(guid in world.rows[entry.dot] for entry in gone):
            assert [replace(event, was=()) for event in told] == [replace(event, was=()) for event in whole[guid]]


@drawn
@thorough
def test_events_lead_to_what_is_shown(seed: int, length: int) -> None:
    world = world_of(seed, length)
    shown = {row.guid: row for row in world.nodes[0].state.rows.values()}
    for guid, told in lives(world.entries, world.guids).items():
        kinds = [event.kind for event in told]
        assert kinds.count("arrived") == len(world.placed.get(guid, ()))
        assert ("expunged" in kinds) == bool(world.placed.get(guid, set()) & world.expunged)
        for event in told:
            if event.kind in {"renumbered", "merged"}:
                [dot] = (entry.dot for entry in world.entries if named(entry.dot) == event.entry)
                row = world.rows[dot][guid]
                assert (event.kind == "renumbered") == (row.claim == dot)
                assert (event.uid, event.placements) == (row.uid, len(row.placements()))
        uids = [event.uid for event in told if event.kind in {"arrived", "renumbered"}]
        if guid in shown:
            assert shown[guid].uid in uids
        assert [event.time_ms for event in told] == sorted(event.time_ms for event in told)


@drawn
@thorough
def test_meetings_of_entries(seed: int, length: int) -> None:
    world = world_of(seed, length)
    below: dict[Dot, set[Dot]] = {}
    for entry in world.entries:
        below[entry.dot] = {entry.dot}.union(*(below[dot] for dot in entry.predecessors))
    some = [entry.dot for entry in world.rng.sample(world.entries, min(7, len(world.entries)))]
    found = meetings(world.entries, [*some, Dot("z.z", 1)])
    assert [(met.one, met.other) for met in found] == [*combinations(some, 2)]
    for one, other, are_apart, joined_by in found:
        assert are_apart == (one not in below[other] and other not in below[one])
        both = [entry for entry in world.entries if {one, other} <= below[entry.dot]]
        assert joined_by == (both[0] if both else None)


@drawn
@thorough
def test_deeds_count_all_changes(seed: int, length: int) -> None:
    world = world_of(seed, length)
    told = deeds_of_mailbox(world.entries)
    for entry in world.entries:
        before = [set(world.rows[dot]) for dot in entry.predecessors]
        for deed in told[entry.dot]:
            if deed.kind == "merged":
                [merge] = [change for change in entry.changes if isinstance(change, Merge)]
                one, other = before
                assert deed.messages + deed.joined + deed.changed + deed.differing == len(merge.rows)
                if len(world.guids) < 100:
                    anew = [row for row in merge.rows if row.claim == entry.dot]
                    assert deed.joined == sum(
                        (row.guid in one) != (row.guid in other) for row in merge.rows if row not in anew
                    )
                    was = {
                        row.uid: {
                            world.rows[dot][row.guid].uid for dot in entry.predecessors if row.guid in world.rows[dot]
                        }
                        for row in anew
                    }
                    assert all(set(moved.before) == was[moved.after] for moved in deed.renumbered)
            elif deed.kind == "raised":
                assert deed.uidnext == max(one.uidnext for one in entry.changes if isinstance(one, Raise))
            else:
                assert deed.messages == sum(len(_uids(change)) for change in entry.changes)


def _uids(change: Change) -> UidSet:
    match change:
        case MailAdd():
            return UidSet.of([change.uid])
        case MailDel(uids) | FlagAdd(uids, _) | FlagDel(uids, _):
            return uids
        case Raise():
            return UidSet()
    raise AssertionError(change)


# ---- written examples


def nodes(count: int = 2) -> list[Node]:
    world = World(random.Random(0))
    return [Node(name, world) for name in ("dc1", "dc2", "dc3")[:count]]


def deeds_at(node: Node) -> list[tuple[Deed, ...]]:
    return [*deeds_of_mailbox(node.world.entries).values()]


def test_deeds_of_each_change() -> None:
    [node] = nodes(1)
    node.number(mail(1, b"x"), MailAdd(2, b"y" * 16, 0, ("\\Seen",), 1, HASH, copied=True), mail(3, b"z"))
    node.number(FlagAdd(UidSet.of([1, 3]), ("\\Seen", "$Work")), FlagDel(UidSet.of([2]), ("\\Seen",)))
    node.number(MailDel(UidSet.of([1, 2])))
    assert deeds_at(node) == [
        (Deed("arrived", 2, "1,3"), Deed("copied", 1, "2")),
        (Deed("flags_set", 2, "1,3", ("\\Seen", "$Work")), Deed("flags_cleared", 1, "2", ("\\Seen",))),
        (Deed("expunged", 2, "1:2"),),
    ]


def test_many_uids_are_counted_and_not_all_listed() -> None:
    [node] = nodes(1)
    node.number(*(mail(uid, bytes([uid])) for uid in range(1, 256)))
    node.number(MailDel(UidSet.of(range(1, 256, 2))))
    _, [expunged] = deeds_at(node)
    assert (expunged.messages, len(expunged.uids.split(","))) == (128, RANGES_MAX)


def test_merge_tells_what_the_branches_showed_differently() -> None:
    one, other = nodes()
    one.number(mail(1, b"x"), mail(2, b"e"))
    other.meet(one)
    one.number(mail(3, b"y"))
    one.number(FlagAdd(UidSet.of([1]), ("\\Seen",)))
    other.number(mail(3, b"z"), mail(4, b"w"))
    other.number(MailDel(UidSet.of([2])))
    one.meet(other)
    [merged] = deeds_of_mailbox(one.world.entries)[one.history[-1].dot]
    assert set(merged.renumbered) == {Renumbered(5, (3,)), Renumbered(6, (3,))}
    assert (merged.messages, merged.joined, merged.changed, merged.differing) == (2, 1, 1, 0)
    assert (merged.removed, merged.risen) == (1, 0)
    later = deeds_of_mailbox(one.world.entries[-1:])[one.history[-1].dot][0]
    assert {moved.before for moved in later.renumbered} == {()}, "what has left the log is not guessed"
    assert (later.messages, later.joined, later.changed, later.differing) == (2, 0, 0, 2)


def test_uidvalidity_that_a_merge_raises_is_told_once() -> None:
    world = World(random.Random(0))
    one, other = (Node(name, world, raises=True) for name in ("dc1", "dc2"))
    one.number(mail(1, b"x"))
    other.number(mail(1, b"y"))
    one.meet(other)
    other.meet(one)
    one.number(mail(one.state.uidnext, b"z"))
    other.number(FlagAdd(UidSet.of([*other.state.rows][:1]), ("\\Seen",)))
    one.meet(other)
    risen = [deed.risen for told in deeds_of_mailbox(world.entries).values() for deed in told if deed.kind == "merged"]
    assert (risen[0] > 0, risen[1:]) == (True, [0])


def test_life_of_a_mail_that_a_merge_renumbers() -> None:
    one, other = nodes()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.number(mail(2, b"y"))
    other.number(mail(2, b"z"))
    one.number(FlagAdd(UidSet.of([2]), ("\\Flagged",)))
    one.meet(other)
    one.number(FlagDel(UidSet.of([one.state.message(b"y" * 16).uid]), ("\\Flagged",)))  # type: ignore[union-attr]
    one.number(MailDel(UidSet.of([one.state.message(b"y" * 16).uid])))  # type: ignore[union-attr]
    told = lives(one.world.entries, [b"y" * 16])[b"y" * 16]
    assert [(event.kind, event.node, event.was, event.flags) for event in told] == [
        ("arrived", "dc1", (), ()),
        ("flags_set", "dc1", (), ("\\Flagged",)),
        ("renumbered", "dc1", (2,), ("\\Flagged",)),
        ("flags_cleared", "dc1", (), ("\\Flagged",)),
        ("expunged", "dc1", (), ()),
    ]
    assert told[0].uid == 2
    assert told[-1].uid == told[2].uid != 2


def test_uid_of_another_branch_is_another_mail() -> None:
    """Both branches have a UID 2. What happens to it on one of them does not happen to the other's mail."""
    one, other = nodes()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.number(mail(2, b"y"))
    other.number(mail(2, b"z"))
    other.number(MailDel(UidSet.of([2])))
    one.meet(other)
    told = lives(one.world.entries, [b"y" * 16, b"z" * 16])
    assert [event.kind for event in told[b"y" * 16]] == ["arrived", "renumbered"]
    assert [event.kind for event in told[b"z" * 16]] == ["arrived", "expunged"]


@pytest.mark.parametrize(
    ("shown", "last_uid", "place"),
    [
        ((1, Dot("dc1.x", 1)), None, Place(1)),
        ((3, Dot("dc1.x", 3)), None, None),
        (None, 1, Place(1)),
        (None, None, None),
    ],
)
def test_where_a_mail_was_before_the_log_begins(
    shown: tuple[int, Dot] | None, last_uid: int | None, place: Place | None
) -> None:
    [node] = nodes(1)
    node.number(mail(1, b"x"))
    node.number(mail(2, b"y"))
    node.number(FlagAdd(UidSet.of([1]), ("a",)))
    assert begin_of(node.world.entries[1:], b"x" * 16, shown, last_uid) == place


def test_messages_that_a_search_of_the_log_wants() -> None:
    one, other = nodes()
    one.number(mail(1, b"x"), mail(2, b"w"))
    other.number(mail(1, b"y"))
    one.meet(other)
    parts = [adding(entry, lambda _guid, uid: uid == 1) for entry in one.world.entries]
    assert [set(added_by(entry)) for entry in parts] == [{b"x" * 16}, {b"y" * 16}, set()]
    assert added_by(one.world.entries[0])[b"x" * 16] == HASH
    assert {guid[:1] for guid in added_by(one.world.entries[2])} == {b"x", b"y", b"w"}


# ---- trees


TREE = tree_id("alice")
WORK, OLD = b"w" * 16, b"o" * 16


def tree(*changes: tuple[Change, ...]) -> list[Entry]:
    return [
        Entry(Dot("dc1.x", seq), (Dot("dc1.x", seq - 1),) if seq > 1 else (), seq << 16, seq, "alice", TREE, 0, some)
        for seq, some in enumerate(changes, 1)
    ]


def test_deeds_of_a_folder_tree() -> None:
    merged = FolderState(OLD, "alice", "Past", 9, deleted=False, time=1, sid="dc2")
    entries = tree(
        (FolderCreate(WORK, "Work", 7), FolderAnnotate(WORK, (("/private/comment", b"x"),))),
        (FolderRename(WORK, "Plans"),),
        (FolderSubscribe("Plans", True),),  # noqa: FBT003
        (FolderSubscribe("Plans", False), FolderAnnotate(NOWHERE, (("/private/a", None), ("/private/b", b"y")))),  # noqa: FBT003
        (FolderDelete(WORK),),
        (FolderRename(OLD, "Older"), FolderDelete(OLD)),
        (TreeMerge((), (merged,), (SubscriptionState("alice", "Plans", True, 1, "dc2"),)),),  # noqa: FBT003
        (FolderDelete(OLD),),
    )
    assert [*deeds_of_tree(entries, {OLD: "Oldest"}).values()] == [
        (Deed("folder_created", folder="Work"), Deed("annotated", folder="Work", names=("/private/comment",))),
        (Deed("folder_renamed", folder="Plans", was="Work"),),
        (Deed("subscribed", folder="Plans"),),
        (Deed("unsubscribed", folder="Plans"), Deed("annotated", names=("/private/a", "/private/b"))),
        (Deed("folder_deleted", folder="Plans"),),
        (Deed("folder_renamed", folder="Older"), Deed("folder_deleted", folder="Older")),
        (Deed("trees_merged", names=("Past",), changed=2),),
        (Deed("folder_deleted", folder="Past"),),
    ]
    assert deeds_of_tree(entries[-1:], {OLD: "Oldest"})[Dot("dc1.x", 8)][0].folder == "Oldest"


def test_folder_that_branches_have_named_differently() -> None:
    """Each branch tells its own names, in whichever order the entries come."""
    first, mine = tree((FolderCreate(WORK, "Work", 7),), (FolderRename(WORK, "Plans"),))
    theirs = replace(mine, dot=Dot("dc2.x", 1), changes=(FolderRename(WORK, "Past"),))
    again = replace(mine, dot=Dot("dc1.x", 3), predecessors=(mine.dot,), changes=(FolderDelete(WORK),))
    for entries in ([first, mine, theirs, again], [first, theirs, mine, again]):
        told = deeds_of_tree(entries, {})
        assert told[mine.dot] == (Deed("folder_renamed", folder="Plans", was="Work"),)
        assert told[theirs.dot] == (Deed("folder_renamed", folder="Past", was="Work"),)
        assert told[again.dot] == (Deed("folder_deleted", folder="Plans"),)


def test_events_of_a_folder() -> None:
    merged = FolderState(WORK, "alice", "Past", 9, deleted=True, time=1, sid="dc2")
    entries = tree(
        (FolderCreate(WORK, "Work", 7), FolderCreate(OLD, "Old", 8)),
        (FolderRename(WORK, "Plans"), FolderSubscribe("Plans", True)),  # noqa: FBT003
        (FolderDelete(OLD),),
        (FolderDelete(WORK),),
        (TreeMerge((), (merged,), ()),),
    )
    told = folder_events(map(about_folders, entries), {WORK})
    assert told == folder_events(entries, {WORK})
    assert [(event.kind, event.name, event.is_deleted) for event in told] == [
        ("created", "Work", False),
        ("renamed", "Plans", False),
        ("deleted", None, True),
        ("merged", "Past", True),
    ]
    assert told[0].entry == named(entries[0].dot) == "dc1.x 1"
