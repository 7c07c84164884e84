"""The order of syncs, and the effects of a power cut at any step."""

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
from tests.attachments.helpers import CONTENT, HASH, PLACE, all_names, has_content, open_attachments, store_content
from tests.attachments.records import MemoryRecords, sweep_all


class RecordingFiles(MemoryFiles):
    """A file system that records changes of names, and syncs."""

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


def test_new_attachment_is_synced_before_and_after_its_rename() -> None:
    files = RecordingFiles()
    holding = store_content(open_attachments(files))
    built, level = names.s_name(holding.holder), names.parent(PLACE)
    before = [f"sync {built}/content.{holding.holder}", f"sync {built}/holders", f"sync {built}"]
    levels = [f"sync {names.parent(level)}"]
    assert is_in_order(files.done, *before, *levels, f"rename {PLACE}", f"sync {level}", f"sync {names.parent(built)}")
    assert files.done.index("sync ", files.done.index(before[0])) < files.done.index(f"rename {PLACE}")


def test_known_levels_are_not_synced_again() -> None:
    files = RecordingFiles()
    store = open_attachments(files)
    store.unlink(store_content(store))
    files.done.clear()
    store_content(store)
    assert f"sync {names.parent(names.parent(PLACE))}" not in files.done
    assert f"sync {names.parent(PLACE)}" in files.done


def test_only_the_new_lower_level_is_synced() -> None:
    """All attachments share the uppermost directory: if each synced it, each would wait for it."""
    files = RecordingFiles()
    store = open_attachments(files)
    store_content(store)
    upper, lower = names.levels(PLACE)
    numbers = map(str, range(10_000))
    content = next(content for content in numbers if _levels(content)[0] == upper and _levels(content)[1] != lower)
    files.done.clear()
    store_content(store, content.encode())
    assert f"sync {upper}" in files.done
    assert "sync " not in files.done


def _levels(content: str) -> tuple[str, str]:
    return names.levels(names.Algorithms().h_name(hashlib.sha256(content.encode()).digest()))


def test_link_syncs_the_holder_and_the_attachments_name() -> None:
    files = RecordingFiles()
    store = open_attachments(files)
    store_content(store)
    files.done.clear()
    holding = store.link(HASH)
    assert holding is not None
    assert files.done == [
        f"create {PLACE}/holders/{holding.holder}",
        f"sync {PLACE}/holders",
        f"sync {names.parent(PLACE)}",
    ]


def test_content_that_exists_already_is_not_synced_again() -> None:
    files = RecordingFiles()
    store = open_attachments(files)
    store_content(store)
    files.done.clear()
    store_content(store)
    assert [one for one in files.done if one.startswith("sync")] == [
        f"sync {PLACE}/holders",
        f"sync {names.parent(PLACE)}",
    ]


def test_unshared_attachment_is_synced_with_all_levels_above() -> None:
    files = RecordingFiles()
    store = open_attachments(files)
    first = store_content(store)
    unlinking = linking.unlink(PLACE, first.holder)
    unlinking.send(next(unlinking).on(files)).on(files)
    files.create_file(f"{PLACE}/.nfs0001")
    files.done.clear()
    holding = store_content(store)
    assert holding.kept
    level = names.parent(store.place(holding))
    last = len(files.done) - 1 - files.done[::-1].index(f"rename {PLACE}")
    assert {f"sync {level}", f"sync {names.parent(level)}", "sync "} <= set(files.done[last:])


def test_removal_of_holders_is_durable_before_content_is_removed() -> None:
    files = RecordingFiles()
    store = open_attachments(files)
    holding = store_content(store)
    files.done.clear()
    store.unlink(holding)
    assert is_in_order(
        files.done,
        f"remove {PLACE}/holders",
        f"sync {PLACE}",
        f"remove {PLACE}/content.{holding.holder}",
        f"remove {PLACE}",
    )


def test_replacement_is_synced_before_and_after_its_rename() -> None:
    files = RecordingFiles()
    store = open_attachments(files)
    holding = store_content(store)
    files.done.clear()
    with store.replace(HASH) as replacement:
        replacement.write(CONTENT)
        replacement.finish()
    content = f"{PLACE}/content.{holding.holder}"
    synced, renamed = files.done.index(f"rename {content}") - 1, files.done.index(f"rename {content}")
    assert files.done[synced].startswith(f"sync {PLACE}/new.")
    assert f"sync {PLACE}" in files.done[renamed:]


# ---- power cuts


class PowerCutError(BaseException):
    """The simulated process ends at once."""


class FilesWithPowerCut(MemoryFiles):
    """A file system that loses power before the step number `left`, counted from 0."""

    left: int | None = None

    def _check(self, *, adds: bool) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise PowerCutError
        super()._check(adds=adds)


class NodesAtWork:
    """Two nodes that use one attachment. `held` has the references that they acquired and have not begun to drop."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.first, self.second = open_attachments(files), open_attachments(files, "dc2")
        self.held: dict[Holding, Attachments] = {}

    def store(self, store: Attachments) -> None:
        self.held[store_content(store)] = store

    def link(self, store: Attachments) -> None:
        holding = store.link(HASH)
        if holding is not None:
            self.held[holding] = store

    def unlink(self, store: Attachments) -> None:
        holding = next((holding for holding, holder in self.held.items() if holder is store), None)
        if holding is not None:
            del self.held[holding]
            store.unlink(holding)


ACTS: list[Callable[[NodesAtWork], None]] = [
    lambda nodes: nodes.store(nodes.first),
    lambda nodes: nodes.store(nodes.second),
    lambda nodes: nodes.link(nodes.first),
    lambda nodes: nodes.link(nodes.second),
    lambda nodes: nodes.unlink(nodes.first),
    lambda nodes: nodes.unlink(nodes.second),
]


@pytest.mark.parametrize("seed", range(400))
def test_power_cut_at_any_step_loses_no_held_attachment(seed: int) -> None:
    dice = random.Random(seed)
    files = FilesWithPowerCut()
    nodes = NodesAtWork(files)
    files.left = dice.randrange(90)
    try:
        for _ in range(12):
            dice.choice(ACTS)(nodes)
    except PowerCutError:
        pass
    files.left = None
    files.crash(dice)
    check_after(files, nodes)


def check_after(files: MemoryFiles, nodes: NodesAtWork) -> None:
    """Check that held attachments are there, linkable ones readable, and that a sweep leaves only held ones."""
    for holding, store in nodes.held.items():
        assert has_content(store, holding)
        assert f"{store.place(holding)}/holders/{holding.holder}" in files.tree()
    restarted = {sid: open_attachments(files, sid) for sid in ("dc1", "dc2")}
    for store in restarted.values():
        linked = store.link(HASH)
        if linked is not None:
            assert has_content(store, linked)
            store.unlink(linked)
    for sid, store in restarted.items():
        sweep_all(store, MemoryRecords(*(holding for holding, owner in nodes.held.items() if owner.sid == sid)))
    for holding, store in nodes.held.items():
        assert has_content(store, holding)
    held = {store.place(holding) for holding, store in nodes.held.items()}
    assert {name for name in all_names(files) if name.count("/") == 2} == held


def test_link_makes_another_nodes_unsynced_rename_durable() -> None:
    """A node that links a name which another one renamed and has not synced yet makes that name durable itself."""
    for seed in range(100):
        files = MemoryFiles()
        first, second = open_attachments(files), open_attachments(files, "dc2")
        assert _publish_without_sync(files, first) is StepOutcome.DONE
        linked = second.link(HASH)
        assert linked is not None
        files.crash(random.Random(seed))
        assert has_content(second, linked)


def _publish_without_sync(files: MemoryFiles, store: Attachments) -> StepOutcome:
    """Store content up to the rename, and no further."""
    construction = store.build()
    construction.write(CONTENT)
    construction._make_durable(PLACE)
    return files.rename(construction._built, PLACE)
