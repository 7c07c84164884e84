"""What is synced when, and what a loss of power leaves at any step."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest

from replicator.store.attachments import linking, names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import StepOutcome
from replicator.store.attachments.store import Attachments
from tests.attachments.file_systems.memory import MemoryFiles, MemoryWriter, Node
from tests.attachments.helpers import HASH, PLACE, TEXT, everything, is_all, opened, stored
from tests.attachments.records import Book, swept


class Recording(MemoryFiles):
    """Notes what is done to names, and what is synced."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self._opened: dict[int, str] = {}

    def open_new(self, name: str) -> MemoryWriter:
        writer = super().open_new(name)
        self._opened[id(writer._node)] = name
        return writer

    def sync_file(self, node: Node) -> None:
        super().sync_file(node)
        self.done.append(f"sync {self._opened[id(node)]}")

    def sync_directory(self, name: str) -> StepOutcome:
        self.done.append(f"sync {name}")
        return super().sync_directory(name)

    def create_file(self, name: str) -> StepOutcome:
        self.done.append(f"create {name}")
        return super().create_file(name)

    def rename(self, old: str, new: str) -> StepOutcome:
        self.done.append(f"rename {new}")
        return super().rename(old, new)

    def remove_file(self, name: str) -> StepOutcome:
        self.done.append(f"remove {name}")
        return super().remove_file(name)

    def remove_directory(self, name: str) -> StepOutcome:
        self.done.append(f"remove {name}")
        return super().remove_directory(name)


def is_in_order(done: list[str], *expected: str) -> bool:
    return [one for one in done if one in expected] == list(expected)


def test_a_new_attachment_is_synced_before_it_is_renamed_and_its_name_after() -> None:
    files = Recording()
    holding = stored(opened(files))
    built, level = names.s_name(holding.holder), names.parent(PLACE)
    before = [f"sync {built}/content.{holding.holder}", f"sync {built}/holders", f"sync {built}"]
    levels = [f"sync {names.parent(level)}"]
    assert is_in_order(files.done, *before, *levels, f"rename {PLACE}", f"sync {level}", f"sync {names.parent(built)}")
    assert files.done.index("sync ", files.done.index(before[0])) < files.done.index(f"rename {PLACE}")


def test_levels_are_synced_once() -> None:
    files = Recording()
    store = opened(files)
    store.unlink(stored(store))
    files.done.clear()
    stored(store)
    assert f"sync {names.parent(names.parent(PLACE))}" not in files.done
    assert f"sync {names.parent(PLACE)}" in files.done


def test_of_new_levels_below_a_known_one_only_the_lower_one_is_made_and_synced() -> None:
    """The uppermost directory is one for all: a sync of it for each attachment would be waited for by each."""
    files = Recording()
    store = opened(files)
    stored(store)
    upper, lower = names.levels(PLACE)
    text = next(text for text in map(str, range(10_000)) if _levels(text)[0] == upper and _levels(text)[1] != lower)
    files.done.clear()
    stored(store, text.encode())
    assert f"sync {upper}" in files.done
    assert "sync " not in files.done


def _levels(text: str) -> tuple[str, str]:
    return names.levels(names.Algorithms().h_name(hashlib.sha256(text.encode()).digest()))


def test_a_holder_is_synced_and_the_name_that_another_one_may_just_have_given() -> None:
    files = Recording()
    store = opened(files)
    stored(store)
    files.done.clear()
    holding = store.link(HASH)
    assert holding is not None
    assert files.done == [
        f"create {PLACE}/holders/{holding.holder}",
        f"sync {PLACE}/holders",
        f"sync {names.parent(PLACE)}",
    ]


def test_what_is_there_already_costs_no_sync_of_what_was_written() -> None:
    files = Recording()
    store = opened(files)
    stored(store)
    files.done.clear()
    stored(store)
    assert [one for one in files.done if one.startswith("sync")] == [
        f"sync {PLACE}/holders",
        f"sync {names.parent(PLACE)}",
    ]


def test_what_is_kept_is_synced_with_all_above_it() -> None:
    files = Recording()
    store = opened(files)
    first = stored(store)
    unlinking = linking.unlink(PLACE, first.holder)
    unlinking.send(next(unlinking).on(files)).on(files)
    files.create_file(f"{PLACE}/.nfs0001")
    files.done.clear()
    holding = stored(store)
    assert holding.kept
    level = names.parent(store.place(holding))
    last = len(files.done) - 1 - files.done[::-1].index(f"rename {PLACE}")
    assert {f"sync {level}", f"sync {names.parent(level)}", "sync "} <= set(files.done[last:])


def test_holders_are_gone_for_good_before_content_goes() -> None:
    files = Recording()
    store = opened(files)
    holding = stored(store)
    files.done.clear()
    store.unlink(holding)
    assert is_in_order(
        files.done,
        f"remove {PLACE}/holders",
        f"sync {PLACE}",
        f"remove {PLACE}/content.{holding.holder}",
        f"remove {PLACE}",
    )


def test_a_replacement_is_synced_before_and_after() -> None:
    files = Recording()
    store = opened(files)
    holding = stored(store)
    files.done.clear()
    with store.replace(HASH) as replacement:
        replacement.write(TEXT)
        replacement.finish()
    content = f"{PLACE}/content.{holding.holder}"
    synced, renamed = files.done.index(f"rename {content}") - 1, files.done.index(f"rename {content}")
    assert files.done[synced].startswith(f"sync {PLACE}/new.")
    assert f"sync {PLACE}" in files.done[renamed:]


# ---- loss of power


class PowerCutError(BaseException):
    """Nothing goes on."""


class Cut(MemoryFiles):
    """Loses its power before a step, counted from 0, when told to."""

    left: int | None = None

    def _check(self, *, adds: bool) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise PowerCutError
        super()._check(adds=adds)


class Life:
    """What nodes do with one attachment. `held`: what they were told is safe, and have not begun to let go of."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.first, self.second = opened(files), opened(files, "dc2")
        self.held: dict[Holding, Attachments] = {}

    def store(self, store: Attachments) -> None:
        self.held[stored(store)] = store

    def link(self, store: Attachments) -> None:
        holding = store.link(HASH)
        if holding is not None:
            self.held[holding] = store

    def unlink(self, store: Attachments) -> None:
        holding = next((holding for holding, holder in self.held.items() if holder is store), None)
        if holding is not None:
            del self.held[holding]
            store.unlink(holding)


ACTS: list[Callable[[Life], None]] = [
    lambda life: life.store(life.first),
    lambda life: life.store(life.second),
    lambda life: life.link(life.first),
    lambda life: life.link(life.second),
    lambda life: life.unlink(life.first),
    lambda life: life.unlink(life.second),
]


@pytest.mark.parametrize("seed", range(400))
def test_a_loss_of_power_at_any_step(seed: int) -> None:
    dice = random.Random(seed)
    files = Cut()
    life = Life(files)
    files.left = dice.randrange(90)
    try:
        for _ in range(12):
            dice.choice(ACTS)(life)
    except PowerCutError:
        pass
    files.left = None
    files.crash(dice)
    check_after(files, life)


def check_after(files: MemoryFiles, life: Life) -> None:
    """What was held is there; what can be linked can be read; in the end there is nothing but what is held."""
    for holding, store in life.held.items():
        assert is_all(store, holding)
        assert f"{store.place(holding)}/holders/{holding.holder}" in files.tree()
    restarted = {sid: opened(files, sid) for sid in ("dc1", "dc2")}
    for store in restarted.values():
        linked = store.link(HASH)
        if linked is not None:
            assert is_all(store, linked)
            store.unlink(linked)
    for sid, store in restarted.items():
        swept(store, Book(*(holding for holding, owner in life.held.items() if owner.sid == sid)))
    for holding, store in life.held.items():
        assert is_all(store, holding)
    held = {store.place(holding) for holding, store in life.held.items()}
    assert {name for name in everything(files) if name.count("/") == 2} == held


def test_a_loss_of_power_right_after_another_one_published() -> None:
    """Who links what was renamed and not synced yet makes the name safe himself."""
    for seed in range(100):
        files = MemoryFiles()
        first, second = opened(files), opened(files, "dc2")
        assert _publish_without_sync(files, first) is StepOutcome.DONE
        linked = second.link(HASH)
        assert linked is not None
        files.crash(random.Random(seed))
        assert is_all(second, linked)


def _publish_without_sync(files: MemoryFiles, store: Attachments) -> StepOutcome:
    """All steps of a store up to the rename, and no further."""
    construction = store.build()
    construction.write(TEXT)
    construction._make_durable(PLACE)
    return files.rename(construction._built, PLACE)
