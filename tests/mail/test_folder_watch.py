"""Watched folders: whoever follows the events has the right folders, however far it lags, and memory stays bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import trio

from replicator.errors import DatabaseFailedError
from replicator.mail import folder_watch
from replicator.mail.folder_watch import FolderChanges, FolderSubscription, FolderView, Touched
from replicator.mail.watched_folders import (
    ACCOUNT,
    AnnotationEvent,
    Event,
    FolderTree,
    TreeUpdate,
    WatchedFolder,
    parents,
    value_digest,
)
from resync.entry import NOWHERE

INBOX = "INBOX"
NAMES = [INBOX, "INBOX/a", "a", "a/b", "a/b/c", "a/c", "a0", "b", "b/b", "b/b/c", "b/c"]

TRIES = 3000


def random_tree(dice: random.Random) -> dict[str, WatchedFolder]:
    """Return some folders, with mailboxes that are few enough to be met again under another name."""
    names = [INBOX, *(name for name in NAMES[1:] if dice.random() < 0.5)]
    ids = dice.sample(range(14), len(names))
    if dice.random() < 0.5:
        ids = sorted(ids)
    return {
        name: WatchedFolder(bytes([one]) * 16, dice.randint(1, 2), dice.randint(0, 1), uidnext=2)
        for name, one in zip(names, ids, strict=True)
    }


def moved_tree(dice: random.Random, folders: dict[str, WatchedFolder]) -> dict[str, WatchedFolder]:
    """Return the folders after a few renames, with all below or without, and a change."""
    folders = {**folders}
    for _ in range(dice.randint(1, 2)):
        old, new = dice.choice(NAMES), dice.choice(NAMES)
        keeps = old == INBOX or dice.random() < 0.2
        for name in [name for name in folders if name == old or (name.startswith(old + "/") and not keeps)]:
            target = new + name.removeprefix(old)
            if target not in folders:
                folders[target] = folders.pop(name)
    if dice.random() < 0.5:
        other = random_tree(dice)
        name = dice.choice([*other])
        if other[name].mailbox_id not in {folder.mailbox_id for folder in folders.values()}:
            folders[name] = other[name]
    folders.setdefault(INBOX, WatchedFolder(dice.randbytes(16), 1))
    return folders


Annotated = dict[bytes, dict[str, bytes]]


def random_annotations(dice: random.Random) -> Annotated:
    """Return annotations of the account and of mailboxes, which need not have folders. Some values are the same."""
    some = dice.sample([NOWHERE, *(bytes([one]) * 16 for one in range(14))], 8)
    return {
        key: {entry: value_digest(dice.choice([b"x", b"y"])) for entry in dice.sample(["a", "b", "c"], 2)}
        for key in some
    }


def step(
    before: FolderTree,
    folders: dict[str, WatchedFolder],
    subscriptions: frozenset[str],
    annotations: Annotated | None = None,
) -> TreeUpdate:
    """Return the step to these folders; with `annotations`, also to these."""
    found = {**dict.fromkeys(before.folders), **folders}
    annotated: Annotated = {}
    if annotations is not None:
        annotated = {key: {} for key in before.annotations} | annotations
    return before.updated(found, {name: name in subscriptions for name in NAMES}, annotated)


@dataclass
class Believer:
    """Beliefs of a client that hears of all events, by RFC 5465 section 5 taken literally."""

    folders: dict[str, tuple[int, int, int, int] | None] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)
    annotations: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def hear(self, events: Sequence[Event]) -> None:
        moved: set[str] = set()
        for event in events:
            if isinstance(event, AnnotationEvent):
                self._annotate(event)
                continue
            if event.implied_by in moved:
                moved.add(event.name)
                continue
            if event.old_name is not None:
                moved.add(event.name)
                self._move(event.old_name, event.name)
            elif event.exists:
                self.folders.setdefault(event.name, None)
            else:
                self.folders.pop(event.name, None)
                self.annotations.pop(event.name, None)
            (self.subscribed.add if event.subscribed else self.subscribed.discard)(event.name)

    def _annotate(self, event: AnnotationEvent) -> None:
        assert event.name in self.folders or event.name == ACCOUNT, "METADATA of a folder of which no LIST has told"
        known = self.annotations.setdefault(event.name, {})
        assert known.get(event.entry) != event.digest, "METADATA of an annotation that has not changed"
        if event.digest is None:
            del known[event.entry]
        else:
            known[event.entry] = event.digest

    def _move(self, old: str, new: str) -> None:
        below = [] if old == INBOX else [name for name in self.folders if name.startswith(old + "/")]
        for name in [old, *below]:
            self.folders[new + name.removeprefix(old)] = self.folders.pop(name)
            self.annotations[new + name.removeprefix(old)] = self.annotations.pop(name, {})
        if old == INBOX:  # RFC 5464 section 4.1: both have its annotations
            self.folders[INBOX], self.annotations[INBOX] = None, {**self.annotations[new]}

    def count(self, names: Sequence[str], tree: FolderTree) -> None:
        for name in names:
            assert name in self.folders, "a STATUS of a folder of which no LIST has told"
            self.folders[name] = counters(tree.folders[name])

    def is_right(self, tree: FolderTree) -> None:
        assert self.folders == {name: counters(folder) for name, folder in tree.folders.items()}
        assert self.subscribed == tree.subscriptions
        believed = {name: annotations for name, annotations in self.annotations.items() if annotations}
        assert believed == {name: found for name in (ACCOUNT, *tree.folders) if (found := tree.annotations_at(name))}


def counters(folder: WatchedFolder) -> tuple[int, int, int, int]:
    return folder.uidvalidity, folder.messages, folder.uidnext, folder.unseen


def test_events_lead_from_each_tree_to_the_next() -> None:
    dice = random.Random(1)
    renames = annotated = 0
    for _ in range(TRIES):
        folders, subscriptions, annotations = (
            random_tree(dice),
            frozenset(dice.sample(NAMES, 3)),
            random_annotations(dice),
        )
        tree = step(FolderTree(), folders, subscriptions, annotations).tree
        believer = Believer(
            {name: counters(folder) for name, folder in tree.folders.items()},
            {*subscriptions},
            {name: {**tree.annotations_at(name)} for name in (ACCOUNT, *tree.folders)},
        )
        for _ in range(3):
            folders = moved_tree(dice, folders) if dice.random() < 0.8 else random_tree(dice)
            subscriptions = frozenset(dice.sample(NAMES, 3))
            update = step(tree, folders, subscriptions, random_annotations(dice) if dice.random() < 0.5 else None)
            tree = update.tree
            renames += sum(not isinstance(event, AnnotationEvent) and bool(event.old_name) for event in update.events)
            annotated += sum(isinstance(event, AnnotationEvent) for event in update.events)
            believer.hear(update.events)
            believer.count((*update.arrivals, *update.flags), tree)
            believer.is_right(tree)
            assert tree.names == {folder.mailbox_id: name for name, folder in folders.items()}
            assert tree.children.keys() == {p for name in folders for p in parents(name)}
    assert renames > TRIES
    assert annotated > TRIES


def test_a_renamed_folder_takes_those_below_along() -> None:
    before = {INBOX: WatchedFolder(bytes(16), 1)}
    before |= {name: WatchedFolder(name.encode(), 1, 5, uidnext=6) for name in ("a", "a/b", "a/b/c")}
    after = {INBOX: before[INBOX], "x": before["a"], "x/b": before["a/b"], "x/b/c": before["a/b/c"]}
    update = step(step(FolderTree(), before, frozenset()).tree, after, frozenset())
    assert [event[3:5] for event in update.events] == [("a", None), ("a/b", "x"), ("a/b/c", "x/b")]
    assert [event.name for event in update.events] == ["x", "x/b", "x/b/c"]
    assert not update.arrivals


# ---- views and subscriptions -------------------------------------------------------------------------------------


@dataclass
class Source:
    """Contents of a store: the folders now, and how often they were read."""

    folders: dict[str, WatchedFolder]
    subscriptions: frozenset[str] = frozenset()
    looks: int = 0
    error: DatabaseFailedError | None = None

    async def look(self, before: FolderTree, _touched: Touched) -> TreeUpdate:
        self.looks += 1
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return step(before, self.folders, self.subscriptions)

    def change(self, view: FolderView, name: str, *, gone: bool = False, messages: int = 0) -> None:
        if gone:
            self.folders = {other: folder for other, folder in self.folders.items() if other != name}
        else:
            new = WatchedFolder(name.encode(), 1, messages, uidnext=messages + 1)
            self.folders = {**self.folders, name: new}
        view.touch(Touched({name.encode()}))


async def watching(view: FolderView, count: int) -> list[FolderSubscription]:
    subscriptions = [FolderSubscription(view, lambda: None) for _ in range(count)]
    for subscription in subscriptions:
        await subscription.take()
    return subscriptions


async def test_a_change_is_read_once_for_all_who_watch() -> None:
    source = Source({INBOX: WatchedFolder(bytes(16), 1)})
    view = FolderView(source.look)
    subscriptions = await watching(view, 5)
    source.looks = 0
    taken: list[FolderChanges] = []
    async with trio.open_nursery() as nursery:

        async def follow(subscription: FolderSubscription) -> None:
            await subscription.wait()
            taken.append(await subscription.take())

        for subscription in subscriptions:
            nursery.start_soon(follow, subscription)
        await trio.testing.wait_all_tasks_blocked()
        source.change(view, "a", messages=1)
    assert source.looks == 1
    assert [[*changes.arrivals] for changes in taken] == [["a"]] * 5
    assert [len(changes.events) for changes in taken] == [1] * 5


async def test_memory_is_bounded_by_folders_whoever_lags() -> None:
    source = Source({INBOX: WatchedFolder(bytes(16), 1)})
    view = FolderView(source.look)
    quick, slow = await watching(view, 2)
    for number in range(200):
        source.change(view, "a", messages=1 + number % 2)
        source.change(view, "b", messages=1 + number % 3)
        await quick.take()
    changes = await slow.take()
    assert (sorted(changes.arrivals), changes.missed) == (["a", "b"], False)
    assert not view._changed
    assert not view._steps


async def test_who_lags_too_far_behind_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_watch, "EVENTS_KEPT", 10)
    source = Source({INBOX: WatchedFolder(bytes(16), 1)})
    view = FolderView(source.look)
    quick, slow = await watching(view, 2)
    for number in range(30):
        source.change(view, "a", gone=bool(number % 2))
        assert not (await quick.take()).missed
        assert view._events <= 10
    assert (await slow.take()).missed
    source.change(view, "b")
    assert not (await slow.take()).missed


async def test_a_failed_or_cancelled_look_loses_nothing() -> None:
    source = Source({INBOX: WatchedFolder(bytes(16), 1)})
    view = FolderView(source.look)
    (subscription,) = await watching(view, 1)
    source.change(view, "a", messages=1)
    source.error = DatabaseFailedError("no disk")
    with pytest.raises(DatabaseFailedError):
        await subscription.take()
    source.error = None
    with trio.CancelScope() as scope:
        scope.cancel()
        await subscription.take()
    with trio.fail_after(1):
        await subscription.wait()
    assert [*(await subscription.take()).arrivals] == ["a"]


def test_touched_counts_up_to_a_limit() -> None:
    touched = Touched()
    for number in range(folder_watch.TOUCHED_MAX):
        touched.add(Touched({b"%d" % number}))
    assert len(touched.mailbox_ids) == folder_watch.TOUCHED_MAX
    touched.add(Touched(annotated={b"a"}))
    assert touched == Touched(everything=True)
