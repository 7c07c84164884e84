"""What the model checker lets meet: the node's algorithms, put together as the store does it, and where they begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicator.store.attachments import linking, names
from replicator.store.attachments.files import Files, MissingError, StepOutcome
from replicator.store.attachments.steps import Algorithm, Answer, ListDirectory
from tests.attachments.file_systems.model import ModelFiles
from tests.attachments.helpers import PLACE, TEXT
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
        if self.name in files.tree:  # else it was removed, and what is written goes nowhere
            files.tree[self.name] = TEXT
        return StepOutcome.DONE


@dataclass(frozen=True, slots=True)
class Read:
    name: str

    def on(self, files: Files) -> Answer:
        try:
            return frozenset({files.read(self.name, 0, len(TEXT) + 1).decode()})
        except MissingError:
            return StepOutcome.MISSING


def _holder(number: int) -> str:
    return names.new_holder(f"{number:032x}", 0)


def _build(holder: str) -> Algorithm[str]:
    """As `Construction` does it. Where the attachment is."""
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
        yield ListDirectory("")  # time passes
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
    """Of a holder that is there from the beginning."""
    holder = _holder(number)

    def start() -> Algorithm[None]:
        yield Hold(PLACE)
        yield ListDirectory("")
        yield Hold(None)
        yield from linking.unlink(PLACE, holder)

    return Actor(f"unlink {number}", holder, start)


def unlink_late(number: int, actor: int) -> Actor:
    """Of a holder that nobody relies on, by a sweep, while someone else may be doing the same."""
    holder = _holder(number)
    return Actor(f"unlink {number} late, by {actor}", _holder(actor), lambda: linking.unlink(PLACE, holder))


def read(number: int) -> Actor:
    """By a holder that is there and stays."""
    holder = _holder(number)

    def start() -> Algorithm[None]:
        yield Hold(PLACE)
        found = yield ListDirectory(PLACE)
        assert not isinstance(found, StepOutcome)
        content = linking.content_in(found)
        assert content is not None
        assert (yield Read(f"{PLACE}/{content}")) == frozenset({TEXT.decode()})

    return Actor(f"read {number}", holder, start)


def heal(number: int) -> Actor:
    """By someone who holds nothing."""
    replacement = _holder(number)

    def start() -> Algorithm[None]:
        new = f"{PLACE}/{names.NEW_PREFIX}{replacement}"
        if (yield OpenNew(new)) is StepOutcome.DONE:
            yield Write(new)
            yield from linking.put_in_place(PLACE, replacement)

    return Actor(f"heal {number}", replacement, start)


def finish(number: int) -> Actor:
    """A sweep, however long after it looked."""
    return Actor(f"finish {number}", _holder(number), lambda: linking.remove_unheld(PLACE))


def beginning(*holders: int, is_dead: bool = False, is_empty: bool = False, exists: bool = True) -> ModelFiles:
    """Every level above, and an attachment with these holders, or without `holders/`, or without anything."""
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
            files.tree[f"{PLACE}/{names.content(_holder(99))}"] = TEXT
        for number in holders:
            files.create_file(f"{names.holders(PLACE)}/{_holder(number)}")
    return files


NOTHING = beginning(exists=False)
DEAD = beginning(is_dead=True)
EMPTY = beginning(is_dead=True, is_empty=True)
UNHELD = beginning()
HELD = beginning(1)
HELD_TWICE = beginning(1, 2)

Scenario = tuple[ModelFiles, Sequence[Actor]]

SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "three store": lambda: (NOTHING, [store(1), store(2), store(3)]),
    "stored and let go at once": lambda: (NOTHING, [store_and_unlink(1), store_and_unlink(2), link(3)]),
    "the last lets go, others come": lambda: (HELD, [unlink(1), store(2), link(3)]),
    "all come and go": lambda: (HELD, [unlink(1), store_and_unlink(2), link_and_unlink(3)]),
    "two let go, one comes": lambda: (HELD_TWICE, [unlink(1), unlink(2), link(3)]),
    "one lets go twice": lambda: (HELD, [unlink_late(1, 4), unlink_late(1, 5), link(3)]),
    "one lets go twice, another stores": lambda: (HELD, [unlink_late(1, 4), unlink_late(1, 5), store(3)]),
    "a removal that nobody finished": lambda: (DEAD, [finish(1), store(2), link(3)]),
    "two finish it late": lambda: (DEAD, [finish(1), finish(2), store(3)]),
    "an empty directory": lambda: (EMPTY, [finish(1), store(2), store(3)]),
    "holders that are gone": lambda: (UNHELD, [finish(1), link(2), store_and_unlink(3)]),
    "healed while read": lambda: (HELD, [read(1), heal(2), link_and_unlink(3)]),
    "healed while it goes": lambda: (HELD, [unlink(1), heal(2), link(3)]),
    "healed by two": lambda: (HELD, [read(1), heal(2), heal(3)]),
}
"""In a few seconds, with one death."""

LARGE: dict[str, Callable[[], Scenario]] = {
    "one lets go twice, others come and go": lambda: (
        HELD,
        [unlink_late(1, 4), unlink_late(1, 5), store_and_unlink(3)],
    ),
    "two finish it late, and it goes again": lambda: (DEAD, [finish(1), finish(2), store_and_unlink(3)]),
    "two finish it, and it comes back": lambda: (DEAD, [finish(1), store_and_unlink(2), store(3)]),
    "an empty directory, and it goes again": lambda: (EMPTY, [finish(1), store(2), store_and_unlink(3)]),
    "healed while it goes and comes": lambda: (HELD, [unlink(1), heal(2), store_and_unlink(3)]),
    "healed by two while it goes": lambda: (HELD, [unlink(1), heal(2), heal(3)]),
}
"""In minutes."""
