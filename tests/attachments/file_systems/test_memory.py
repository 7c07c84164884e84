"""Effects of power cuts on the file system in memory."""

from __future__ import annotations

import random

from tests.attachments.file_systems.memory import MemoryFiles


def trees_after_power_cuts(files: MemoryFiles) -> list[dict[str, bytes | None]]:
    found = []
    for seed in range(200):
        copy = files.copy()
        copy.crash(random.Random(seed))
        found.append(copy.tree())
    return found


def test_synced_changes_survive_a_power_cut() -> None:
    files = MemoryFiles()
    files.make_directory("a")
    writer = files.open_new("a/b")
    writer.write(b"text")
    writer.sync()
    files.sync_directory("a")
    files.sync_directory("")
    assert all(tree == {"a": None, "a/b": b"text"} for tree in trees_after_power_cuts(files))


def test_any_subset_of_unsynced_changes_may_survive() -> None:
    files = MemoryFiles()
    files.make_directory("a")
    files.sync_directory("")
    writer = files.open_new("a/b")
    writer.write(b"text")
    files.create_file("a/c")
    trees = trees_after_power_cuts(files)
    assert {tuple(name for name in tree if name != "a") for tree in trees} == {(), ("a/b",), ("a/c",), ("a/b", "a/c")}
    assert {tree["a/b"] for tree in trees if "a/b" in tree} >= {b"", b"text", b"te\0\0"}


def test_an_unsynced_directory_takes_its_content_along() -> None:
    files = MemoryFiles()
    files.make_directory("a")
    files.create_file("a/b")
    files.sync_directory("a")
    assert {tuple(tree) for tree in trees_after_power_cuts(files)} == {(), ("a", "a/b")}


def test_a_rename_survives_whole_or_not_at_all() -> None:
    files = MemoryFiles()
    for name in ("a", "b", "a/c"):
        files.make_directory(name)
    for name in ("a", ""):
        files.sync_directory(name)
    files.rename("a/c", "b/c")
    assert {tuple(tree) for tree in trees_after_power_cuts(files)} == {("a", "a/c", "b"), ("a", "b", "b/c")}
    files.sync_directory("b")
    assert {tuple(tree) for tree in trees_after_power_cuts(files)} == {("a", "b", "b/c")}


def test_a_removal_that_was_not_synced_may_be_undone() -> None:
    files = MemoryFiles()
    files.create_file("a")
    files.sync_directory("")
    files.remove_file("a")
    assert {tuple(tree) for tree in trees_after_power_cuts(files)} == {(), ("a",)}


def test_syncing_a_rename_syncs_earlier_changes_of_the_name() -> None:
    files = MemoryFiles()
    for name in ("a", "b"):
        files.make_directory(name)
    files.sync_directory("")
    files.make_directory("a/c")
    files.rename("a/c", "b/c")
    files.sync_directory("b")
    files.sync_directory("a")
    assert {tuple(tree) for tree in trees_after_power_cuts(files)} == {("a", "b", "b/c")}


def test_certain_is_what_every_power_cut_leaves() -> None:
    files = MemoryFiles()
    for name in ("a", "b"):
        files.make_directory(name)
    files.sync_directory("")
    writer = files.open_new("a/c")
    writer.write(b"text")
    files.sync_directory("a")
    assert (files.certain("a"), files.certain("a/c")) == (frozenset({"c"}), None), "the bytes are not synced"
    writer.sync()
    assert files.certain("a/c") == b"text"
    files.rename("a/c", "b/c")
    assert (files.certain("a"), files.certain("b")) == (frozenset(), frozenset())
    assert (files.certain("a/c"), files.certain("b/c")) == (None, None)
    files.sync_directory("b")
    assert (files.certain("b"), files.certain("b/c")) == (frozenset({"c"}), b"text")
