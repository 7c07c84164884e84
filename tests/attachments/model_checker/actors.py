"""Actors and scenarios for the model checker: the store's algorithms, and the directories that they start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicator.store.attachments import linking, names
from replicator.store.attachments.files import Files, MissingError, StepOutcome
from replicator.store.attachments.steps import Algorithm, Answer, ListDirectory
from tests.attachments.file_systems.model import ModelFiles
from tests.attachments.helpers import CONTENT, PLACE
from tests.attachments.model_checker.explorer import Actor, Hold


@dataclass(frozen=True, slots=True)
class OpenNew:
    name: str

    def on(self, files: Files) -> Answer:
        try:
            files.open_new(self.name)
        except MissingError:
            return StepOutcome.MISSING
        return StepOutcome.DONE


@dataclass(frozen=True, slots=True)
class Write:
    name: str

    def on(self, files: Files) -> Answer:
        assert isinstance(files, ModelFiles)
        if self.name in files.tree:  # otherwise the file was removed, and the write has no effect
            files.tree[self.name] = CONTENT
        return StepOutcome.DONE


@dataclass(frozen=True, slots=True)
class Read:
    name: str

    def on(self, files: Files) -> Answer:
        try:
            return frozenset({files.read(self.name, 0, len(CONTENT) + 1).decode()})
        except MissingError:
            return StepOutcome.MISSING


def _holder(number: int) -> str:
    return names.new_holder(f"{number:032x}", 0)


def _build(holder: str) -> Algorithm[str]:
    """Build an attachment as `Construction` does, and return its place."""
    built = names.s_name(holder)
    content = f"{built}/{names.content(holder)}"
    yield from linking.begin(built, holder)
    yield OpenNew(content)
    yield Write(content)
    if (yield from linking.link(PLACE, holder)):
        yield from linking.drop(built)
        return PLACE
    yield from linking.sync_built(built)
    is_shared = yield from linking.publish(built, PLACE, holder)
    return PLACE if is_shared else built


def store(number: int) -> Actor:
    holder = _holder(number)

    def start() -> Algorithm[None]:
        place = yield from _build(holder)
        yield Hold(place)

    return Actor(f"store {number}", holder, start)


def store_and_unlink(number: int) -> Actor:
    holder = _holder(number)

    def start() -> Algorithm[None]:
        place = yield from _build(holder)
        yield Hold(place)
        yield ListDirectory("")  # a step in which other actors may come between
        yield Hold(None)
        yield from linking.unlink(place, holder) if place == PLACE else linking.drop(place)

    return Actor(f"store and unlink {number}", holder, start)


def link(number: int) -> Actor:
    holder = _holder(number)

    def start() -> Algorithm[None]:
        if (yield from linking.link(PLACE, holder)):
            yield Hold(PLACE)

    return Actor(f"link {number}", holder, start)


def link_and_unlink(number: int) -> Actor:
    holder = _holder(number)

    def start() -> Algorithm[None]:
        if (yield from linking.link(PLACE, holder)):
            yield Hold(PLACE)
            yield ListDirectory("")
            yield Hold(None)
            yield from linking.unlink(PLACE, holder)

    return Actor(f"link and unlink {number}", holder, start)


def unlink(number: int) -> Actor:
    """Unlink a holder that exists from the beginning."""
    holder = _holder(number)

    def start() -> Algorithm[None]:
        yield Hold(PLACE)
        yield ListDirectory("")
        yield Hold(None)
        yield from linking.unlink(PLACE, holder)

    return Actor(f"unlink {number}", holder, start)


def unlink_late(number: int, actor: int) -> Actor:
    """Unlink, as a sweep does, a holder that nobody relies on, while another actor may do the same."""
    holder = _holder(number)
    return Actor(f"unlink {number} late, by {actor}", _holder(actor), lambda: linking.unlink(PLACE, holder))


def read(number: int) -> Actor:
    """Read the content on behalf of an existing holder that stays."""
    holder = _holder(number)

    def start() -> Algorithm[None]:
        yield Hold(PLACE)
        found = yield ListDirectory(PLACE)
        assert not isinstance(found, StepOutcome)
        content = linking.content_in(found)
        assert content is not None
        assert (yield Read(f"{PLACE}/{content}")) == frozenset({CONTENT.decode()})

    return Actor(f"read {number}", holder, start)


def heal(number: int) -> Actor:
    """Replace the content on behalf of a node that holds nothing."""
    replacement = _holder(number)

    def start() -> Algorithm[None]:
        new = f"{PLACE}/{names.NEW_PREFIX}{replacement}"
        if (yield OpenNew(new)) is StepOutcome.DONE:
            yield Write(new)
            yield from linking.put_in_place(PLACE, replacement)

    return Actor(f"heal {number}", replacement, start)


def finish(number: int) -> Actor:
    """Finish a removal as a sweep does, at any time after its listing."""
    return Actor(f"finish {number}", _holder(number), lambda: linking.remove_unheld(PLACE))


def tree_with(*holders: int, is_dead: bool = False, is_empty: bool = False, exists: bool = True) -> ModelFiles:
    """Return a tree with all levels and one attachment: with these holders, without `holders/`, or empty."""
    files = ModelFiles()
    levels = {names.parent(PLACE), *(names.parent(names.s_name(_holder(number))) for number in range(10))}
    for level in sorted(levels):
        files.make_directory(names.parent(level))
        files.make_directory(level)
    if exists:
        files.make_directory(PLACE)
        if not is_dead:
            files.make_directory(names.holders(PLACE))
        if not is_empty:
            files.tree[f"{PLACE}/{names.content(_holder(99))}"] = CONTENT
        for number in holders:
            files.create_file(f"{names.holders(PLACE)}/{_holder(number)}")
    return files


NOTHING = tree_with(exists=False)
DEAD = tree_with(is_dead=True)
EMPTY = tree_with(is_dead=True, is_empty=True)
UNHELD = tree_with()
HELD = tree_with(1)
HELD_TWICE = tree_with(1, 2)

Scenario = tuple[ModelFiles, Sequence[Actor]]

SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "three store": lambda: (NOTHING, [store(1), store(2), store(3)]),
    "stored and unlinked at once": lambda: (NOTHING, [store_and_unlink(1), store_and_unlink(2), link(3)]),
    "the last holder unlinks, others come": lambda: (HELD, [unlink(1), store(2), link(3)]),
    "all come and go": lambda: (HELD, [unlink(1), store_and_unlink(2), link_and_unlink(3)]),
    "two unlink, one links": lambda: (HELD_TWICE, [unlink(1), unlink(2), link(3)]),
    "one holder is unlinked twice": lambda: (HELD, [unlink_late(1, 4), unlink_late(1, 5), link(3)]),
    "one holder is unlinked twice, another stores": lambda: (HELD, [unlink_late(1, 4), unlink_late(1, 5), store(3)]),
    "an unfinished removal": lambda: (DEAD, [finish(1), store(2), link(3)]),
    "two finish a removal late": lambda: (DEAD, [finish(1), finish(2), store(3)]),
    "an empty directory": lambda: (EMPTY, [finish(1), store(2), store(3)]),
    "an attachment without holders": lambda: (UNHELD, [finish(1), link(2), store_and_unlink(3)]),
    "healed while read": lambda: (HELD, [read(1), heal(2), link_and_unlink(3)]),
    "healed while it is removed": lambda: (HELD, [unlink(1), heal(2), link(3)]),
    "healed by two": lambda: (HELD, [read(1), heal(2), heal(3)]),
}
"""Scenarios that take a few seconds with one death."""

LARGE: dict[str, Callable[[], Scenario]] = {
    "one holder is unlinked twice, others come and go": lambda: (
        HELD,
        [unlink_late(1, 4), unlink_late(1, 5), store_and_unlink(3)],
    ),
    "two finish a removal late, and another follows": lambda: (DEAD, [finish(1), finish(2), store_and_unlink(3)]),
    "two finish a removal, and the attachment returns": lambda: (DEAD, [finish(1), store_and_unlink(2), store(3)]),
    "an empty directory, and a further removal": lambda: (EMPTY, [finish(1), store(2), store_and_unlink(3)]),
    "healed while it is removed and stored again": lambda: (HELD, [unlink(1), heal(2), store_and_unlink(3)]),
    "healed by two while it is removed": lambda: (HELD, [unlink(1), heal(2), heal(3)]),
}
"""Scenarios that take minutes."""
