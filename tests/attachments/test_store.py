"""The attachment store as the node uses it, on every kind of file system."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable

import pytest

from replicator.store.attachments import linking, names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import Files, MissingError, StepOutcome
from replicator.store.attachments.names import SHA256, Algorithm, Algorithms
from replicator.store.attachments.steps import RemoveDirectory
from replicator.store.attachments.store import Attachments
from tests.attachments.file_systems.memory import MemoryFiles
from tests.attachments.helpers import (
    CONTENT,
    HASH,
    PLACE,
    all_names,
    has_content,
    new_owner,
    open_attachments,
    store_content,
)


def test_content_is_removed_with_its_last_holder(files: Files) -> None:
    store, other = open_attachments(files), open_attachments(files, "dc2")
    assert store.link(HASH) is None
    first = store_content(store)
    assert first == Holding(HASH, first.holder)
    second = other.link(HASH)
    assert second is not None
    assert has_content(store, first)
    assert has_content(other, second)
    assert store.read(HASH, 3, 10) == CONTENT[3:13]
    store.unlink(first)
    assert has_content(other, second)
    other.unlink(second)
    assert all_names(files) == set()
    assert other.link(HASH) is None
    with pytest.raises(MissingError):
        other.read(second, 0, 1)
    with pytest.raises(MissingError):
        other.size(HASH)


def test_equal_content_is_stored_once(files: Files) -> None:
    store = open_attachments(files)
    first, second = store_content(store), store_content(store)
    assert first.holder != second.holder
    assert all_names(files) == {
        PLACE,
        f"{PLACE}/holders",
        f"{PLACE}/holders/{first.holder}",
        f"{PLACE}/holders/{second.holder}",
        f"{PLACE}/content.{first.holder}",
    }


def test_empty_content_can_be_stored(files: Files) -> None:
    store = open_attachments(files)
    assert has_content(store, store_content(store, b""), b"")


def test_second_unlink_of_a_holder_changes_nothing(files: Files) -> None:
    store = open_attachments(files)
    first, second = store_content(store), store_content(store)
    store.unlink(first)
    store.unlink(first)
    assert has_content(store, second)
    store.unlink(second)
    store.unlink(second)
    assert all_names(files) == set()


def test_content_can_be_stored_again_after_removal(files: Files) -> None:
    store = open_attachments(files)
    for _ in range(3):
        holding = store_content(store)
        assert has_content(store, holding)
        store.unlink(holding)
    assert all_names(files) == set()


def test_abandoned_construction_leaves_no_files(files: Files) -> None:
    store = open_attachments(files)
    with store.build() as construction:
        construction.write(CONTENT)
    construction.abandon()
    assert all_names(files) == set()
    assert store.in_flight() == frozenset()


def test_error_while_writing_abandons_the_construction(files: Files) -> None:
    store = open_attachments(files)

    def fail() -> None:
        with store.build() as construction:
            construction.write(CONTENT)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert all_names(files) == set()
    assert store.in_flight() == frozenset()


def test_a_holder_is_in_flight_until_it_is_settled(files: Files) -> None:
    store = open_attachments(files)
    construction = store.build()
    assert len(store.in_flight()) == 1
    holding = construction.finish()
    assert store.in_flight() == {holding.holder}
    store.settle(holding.holder)
    linked = store.link(holding.hash)
    assert linked is not None
    assert store.in_flight() == {linked.holder}
    store.unlink(linked)
    assert store.link(bytes(32)) is None
    assert store.in_flight() == frozenset()


def test_owner_file_is_written_before_the_first_operation(files: Files) -> None:
    store = open_attachments(files, "dc7")
    assert list(files.names("")) == []
    store.link(HASH)
    assert list(files.names("owners")) == [f"dc7.{store.owner}"]
    with pytest.raises(OSError, match="new at every start"):
        Attachments(files, "dc7", store.owner).link(HASH)
    for sid, owner in (("dc7", "12"), ("DC7", new_owner()), ("a/b", new_owner())):
        with pytest.raises(ValueError, match="hex digits"):
            Attachments(files, sid, owner)


def test_two_hash_algorithms_work_side_by_side(files: Files) -> None:
    old_holding = store_content(open_attachments(files))
    both = Algorithms((SHA256, Algorithm("x", 64, hashlib.sha512)))
    store = Attachments(files, "dc1", new_owner(), algorithms=both)
    new_holding = store_content(store)
    assert new_holding.hash == hashlib.sha512(CONTENT).digest()
    for holding in (old_holding, new_holding):
        assert has_content(store, holding)
        linked = store.link(holding.hash)
        assert linked is not None
        store.unlink(linked)
        store.unlink(holding)
    assert all_names(files) == set()


# ---- names that are in use


def leave_dead_attachment(files: Files) -> None:
    """Leave an attachment whose last holder died right after it removed `holders/`."""
    holding = store_content(open_attachments(files))
    unlinking = linking.unlink(PLACE, holding.holder)
    step = next(unlinking)
    while not isinstance(step, RemoveDirectory):
        step = unlinking.send(step.on(files))
    step.on(files)
    assert all_names(files) == {PLACE, f"{PLACE}/content.{holding.holder}"}


def test_dead_attachment_is_not_linked_but_can_be_stored_again(files: Files) -> None:
    leave_dead_attachment(files)
    store = open_attachments(files)
    assert store.link(HASH) is None
    holding = store_content(store)
    assert not holding.kept
    assert has_content(store, holding)
    store.unlink(holding)
    assert all_names(files) == set()


def test_dead_attachment_is_not_replaced(files: Files) -> None:
    leave_dead_attachment(files)
    with open_attachments(files).replace(HASH) as replacement:
        replacement.write(CONTENT)
        with pytest.raises(MissingError):
            replacement.finish()
    assert all_names(files) == set()


def test_empty_directory_does_not_prevent_storing(files: Files) -> None:
    leave_dead_attachment(files)
    for leaf in list(files.names(PLACE)):
        files.remove_file(f"{PLACE}/{leaf}")
    store = open_attachments(files)
    assert store.link(HASH) is None
    holding = store_content(store)
    assert not holding.kept
    assert has_content(store, holding)


def test_attachment_that_cannot_be_shared_stays_under_its_s_name(files: Files) -> None:
    leave_dead_attachment(files)
    files.create_file(f"{PLACE}/.nfs0001")  # a foreign file, as NFS leaves for an open file that was removed
    store = open_attachments(files)
    holding = store_content(store)
    assert holding.kept
    assert store.place(holding) == names.s_name(holding.holder)
    assert has_content(store, holding)
    second = store_content(store)
    assert second.kept
    store.unlink(holding)
    store.unlink(holding)
    assert has_content(store, second)
    store.unlink(second)
    assert all_names(files) == {PLACE, f"{PLACE}/.nfs0001"}
    files.remove_file(f"{PLACE}/.nfs0001")
    assert not store_content(store).kept


def test_pauses_between_retries_are_few_and_short(files: Files) -> None:
    leave_dead_attachment(files)
    files.create_file(f"{PLACE}/.nfs0001")
    slept: list[float] = []
    store = Attachments(files, "dc1", new_owner(), sleep=slept.append)
    assert store_content(store).kept
    assert slept == sorted(slept)
    assert len(slept) == linking.TRIES - 2
    assert sum(slept) < 0.05


def test_rename_succeeds_although_its_answer_was_lost() -> None:
    """An NFS client that loses the answer repeats the rename, and then finds that the source is gone."""

    class RepeatingFiles(MemoryFiles):
        def rename(self, old: str, new: str) -> StepOutcome:
            super().rename(old, new)
            return super().rename(old, new)

    files = RepeatingFiles()
    store = open_attachments(files)
    holding = store_content(store)
    assert not holding.kept
    assert has_content(store, holding)


# ---- damage


def damage(files: MemoryFiles, place: str = PLACE) -> str:
    content = linking.content_in(files.names(place))
    files.corrupt(f"{place}/{content}", b"xx")
    return f"{place}/{content}"


def test_damaged_content_is_replaced() -> None:
    files = MemoryFiles()
    store = open_attachments(files)
    holding = store_content(store)
    damage(files)
    with store.replace(holding) as replacement:
        replacement.write(CONTENT)
        replacement.finish()
    assert has_content(store, holding)
    store.settle(holding.holder)
    assert store.in_flight() == frozenset()
    store.unlink(holding)
    assert all_names(files) == set()


def test_missing_content_is_replaced(files: Files) -> None:
    store = open_attachments(files)
    holding = store_content(store)
    files.remove_file(f"{PLACE}/content.{holding.holder}")
    with pytest.raises(MissingError):
        store.read(holding, 0, 1)
    with store.replace(HASH) as replacement:
        replacement.write(CONTENT)
        replacement.finish()
    assert has_content(store, holding)


def test_content_of_an_unshared_attachment_is_replaced() -> None:
    files = MemoryFiles()
    leave_dead_attachment(files)
    files.create_file(f"{PLACE}/.nfs0001")
    store = open_attachments(files)
    holding = store_content(store)
    damage(files, store.place(holding))
    with store.replace(holding) as replacement:
        replacement.write(CONTENT)
        replacement.finish()
    assert has_content(store, holding)


def test_wrong_content_replaces_nothing(files: Files) -> None:
    store = open_attachments(files)
    holding = store_content(store)
    before = all_names(files)
    with store.replace(HASH) as replacement:
        replacement.write(b"something else")
        with pytest.raises(ValueError, match=HASH.hex()):
            replacement.finish()
    with store.replace(HASH) as replacement:
        replacement.write(CONTENT)
    assert all_names(files) == before
    assert has_content(store, holding)
    assert store.in_flight() == {holding.holder}


def test_content_that_reads_back_wrong_replaces_nothing() -> None:
    """The disk is faulty then, so the error is an OSError."""
    files = MemoryFiles()
    store = open_attachments(files)
    holding = store_content(store)
    name = damage(files)
    construction = store.build()
    construction.write(CONTENT)
    damage(files, construction._built)
    with pytest.raises(OSError, match="the content does not have the hash"):
        construction.finish()
    assert files.read(name, 0, 10) == b"xx"
    assert store.in_flight() == {holding.holder}
    assert list(files.names(f"{PLACE}/holders")) == [holding.holder]


def test_replacement_of_a_removed_attachment_fails(files: Files) -> None:
    store = open_attachments(files)
    holding = store_content(store)
    replacement = store.replace(HASH)
    replacement.write(CONTENT)
    store.unlink(holding)
    with pytest.raises(MissingError):
        replacement.finish()
    assert all_names(files) == set()


def test_late_replacement_does_not_harm_a_new_attachment(files: Files) -> None:
    store = open_attachments(files)
    holding = store_content(store)
    replacement = store.replace(HASH)
    replacement.write(CONTENT)
    store.unlink(holding)
    successor = store_content(store)
    with pytest.raises(MissingError):
        replacement.finish()
    assert has_content(store, successor)
    store.unlink(successor)
    assert all_names(files) == set()


# ---- disks


def test_full_disk_refuses_new_content_and_leaves_no_files() -> None:
    files = MemoryFiles()
    store = open_attachments(files)
    files.is_full = True
    with pytest.raises(OSError, match="No space") as caught:
        store.build()
    assert caught.value.errno == errno.ENOSPC
    files.is_full = False
    construction = store.build()
    construction.write(CONTENT[:10])
    files.is_full = True
    with pytest.raises(OSError, match="No space"):
        construction.write(CONTENT[10:])
    assert all_names(files) == set()
    assert store.in_flight() == frozenset()
    files.is_full = False
    held = store_content(store)
    files.is_full = True
    with pytest.raises(OSError, match="No space"):
        store.link(HASH)
    store.unlink(held)
    assert all_names(files) == set()
    assert store.in_flight() == frozenset()


class FailingFiles(MemoryFiles):
    """A file system that fails at the step number `left`, counted from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def _check(self, *, adds: bool) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.EIO, "Input/output error")
        super()._check(adds=adds)


@pytest.mark.parametrize("is_there", [False, True])
def test_disk_failure_at_any_step_loses_no_held_content(*, is_there: bool) -> None:
    def attempt(step: int, act: Callable[[Attachments], object]) -> bool:
        """Return True if the step failed. Then exactly the attachments that were held before are still there."""
        files = FailingFiles()
        store = open_attachments(files)
        store.link(HASH)
        held = [store_content(store)] if is_there else []
        for holding in held:
            store.settle(holding.holder)
        before = all_names(files)
        files.left = step
        try:
            act(store)
        except OSError:
            assert files.left is not None
            assert files.left < 0
            assert store.in_flight() == frozenset()
            assert all(has_content(store, holding) for holding in held)
            for holding in held:
                store.unlink(holding)
            if act is store_content:
                assert all_names(files) == set()
            return True
        assert before <= all_names(files)
        return False

    for act in (store_content, lambda store: store.link(HASH)):
        failures = 0
        while attempt(failures, act):
            failures += 1
        assert failures >= (3 if is_there else 1)
