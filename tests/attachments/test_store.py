"""The store as the node uses it, on every kind of file system."""

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
from tests.attachments.helpers import HASH, PLACE, TEXT, everything, is_all, new_owner, opened, stored


def test_what_is_stored_is_linked_read_and_gone_after_the_last(files: Files) -> None:
    store, other = opened(files), opened(files, "dc2")
    assert store.link(HASH) is None
    first = stored(store)
    assert first == Holding(HASH, first.holder)
    second = other.link(HASH)
    assert second is not None
    assert is_all(store, first)
    assert is_all(other, second)
    assert store.read(HASH, 3, 10) == TEXT[3:13]
    store.unlink(first)
    assert is_all(other, second)
    other.unlink(second)
    assert everything(files) == set()
    assert other.link(HASH) is None
    with pytest.raises(MissingError):
        other.read(second, 0, 1)
    with pytest.raises(MissingError):
        other.size(HASH)


def test_the_same_content_is_there_once(files: Files) -> None:
    store = opened(files)
    first, second = stored(store), stored(store)
    assert first.holder != second.holder
    assert everything(files) == {
        PLACE,
        f"{PLACE}/holders",
        f"{PLACE}/holders/{first.holder}",
        f"{PLACE}/holders/{second.holder}",
        f"{PLACE}/content.{first.holder}",
    }


def test_nothing_at_all_can_be_stored(files: Files) -> None:
    store = opened(files)
    assert is_all(store, stored(store, b""), b"")


def test_letting_go_twice_changes_nothing(files: Files) -> None:
    store = opened(files)
    first, second = stored(store), stored(store)
    store.unlink(first)
    store.unlink(first)
    assert is_all(store, second)
    store.unlink(second)
    store.unlink(second)
    assert everything(files) == set()


def test_it_comes_back_after_it_went(files: Files) -> None:
    store = opened(files)
    for _ in range(3):
        holding = stored(store)
        assert is_all(store, holding)
        store.unlink(holding)
    assert everything(files) == set()


def test_what_is_abandoned_leaves_nothing(files: Files) -> None:
    store = opened(files)
    with store.build() as construction:
        construction.write(TEXT)
    construction.abandon()
    assert everything(files) == set()
    assert store.in_flight() == frozenset()


def test_an_error_of_who_writes_abandons(files: Files) -> None:
    store = opened(files)

    def fail() -> None:
        with store.build() as construction:
            construction.write(TEXT)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert everything(files) == set()
    assert store.in_flight() == frozenset()


def test_a_holder_is_in_flight_until_it_is_settled(files: Files) -> None:
    store = opened(files)
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


def test_an_owner_says_whose_it_is_before_it_does_anything(files: Files) -> None:
    store = opened(files, "dc7")
    assert list(files.names("")) == []
    store.link(HASH)
    assert list(files.names("owners")) == [f"dc7.{store.owner}"]
    with pytest.raises(OSError, match="new at every start"):
        Attachments(files, "dc7", store.owner).link(HASH)
    for sid, owner in (("dc7", "12"), ("DC7", new_owner()), ("a/b", new_owner())):
        with pytest.raises(ValueError, match="hex digits"):
            Attachments(files, sid, owner)


def test_another_algorithm_beside_the_old_one(files: Files) -> None:
    old_holding = stored(opened(files))
    both = Algorithms((SHA256, Algorithm("x", 64, hashlib.sha512)))
    store = Attachments(files, "dc1", new_owner(), algorithms=both)
    new_holding = stored(store)
    assert new_holding.hash == hashlib.sha512(TEXT).digest()
    for holding in (old_holding, new_holding):
        assert is_all(store, holding)
        linked = store.link(holding.hash)
        assert linked is not None
        store.unlink(linked)
        store.unlink(holding)
    assert everything(files) == set()


# ---- names that are taken


def without_holders(files: Files) -> None:
    """An attachment whose unlinker dies as soon as nobody can link any more."""
    holding = stored(opened(files))
    unlinking = linking.unlink(PLACE, holding.holder)
    step = next(unlinking)
    while not isinstance(step, RemoveDirectory):
        step = unlinking.send(step.on(files))
    step.on(files)
    assert everything(files) == {PLACE, f"{PLACE}/content.{holding.holder}"}


def test_what_is_dead_is_not_linked_and_does_not_keep_anyone_from_building(files: Files) -> None:
    without_holders(files)
    store = opened(files)
    assert store.link(HASH) is None
    holding = stored(store)
    assert not holding.kept
    assert is_all(store, holding)
    store.unlink(holding)
    assert everything(files) == set()


def test_what_is_dead_is_not_replaced(files: Files) -> None:
    without_holders(files)
    with opened(files).replace(HASH) as replacement:
        replacement.write(TEXT)
        with pytest.raises(MissingError):
            replacement.finish()
    assert everything(files) == set()


def test_an_empty_directory_does_not_keep_anyone_from_building(files: Files) -> None:
    without_holders(files)
    for leaf in list(files.names(PLACE)):
        files.remove_file(f"{PLACE}/{leaf}")
    store = opened(files)
    assert store.link(HASH) is None
    holding = stored(store)
    assert not holding.kept
    assert is_all(store, holding)


def test_what_cannot_be_shared_is_kept_under_its_own_name(files: Files) -> None:
    without_holders(files)
    files.create_file(f"{PLACE}/.nfs0001")  # nothing of ours: someone's open file on NFS
    store = opened(files)
    holding = stored(store)
    assert holding.kept
    assert store.place(holding) == names.s_name(holding.holder)
    assert is_all(store, holding)
    second = stored(store)
    assert second.kept
    store.unlink(holding)
    store.unlink(holding)
    assert is_all(store, second)
    store.unlink(second)
    assert everything(files) == {PLACE, f"{PLACE}/.nfs0001"}
    files.remove_file(f"{PLACE}/.nfs0001")
    assert not stored(store).kept


def test_pauses_between_the_tries_are_few_and_short(files: Files) -> None:
    without_holders(files)
    files.create_file(f"{PLACE}/.nfs0001")
    slept: list[float] = []
    store = Attachments(files, "dc1", new_owner(), sleep=slept.append)
    assert stored(store).kept
    assert slept == sorted(slept)
    assert len(slept) == linking.TRIES - 2
    assert sum(slept) < 0.05


def test_a_rename_whose_answer_was_lost() -> None:
    """NFS asks again, and is told that there is no such directory any more."""

    class Forgetful(MemoryFiles):
        def rename(self, old: str, new: str) -> StepOutcome:
            super().rename(old, new)
            return super().rename(old, new)

    files = Forgetful()
    store = opened(files)
    holding = stored(store)
    assert not holding.kept
    assert is_all(store, holding)


# ---- damage


def damage(files: MemoryFiles, place: str = PLACE) -> str:
    content = linking.content_in(files.names(place))
    files.corrupt(f"{place}/{content}", b"xx")
    return f"{place}/{content}"


def test_damaged_content_is_replaced() -> None:
    files = MemoryFiles()
    store = opened(files)
    holding = stored(store)
    damage(files)
    with store.replace(holding) as replacement:
        replacement.write(TEXT)
        replacement.finish()
    assert is_all(store, holding)
    store.settle(holding.holder)
    assert store.in_flight() == frozenset()
    store.unlink(holding)
    assert everything(files) == set()


def test_missing_content_is_replaced(files: Files) -> None:
    store = opened(files)
    holding = stored(store)
    files.remove_file(f"{PLACE}/content.{holding.holder}")
    with pytest.raises(MissingError):
        store.read(holding, 0, 1)
    with store.replace(HASH) as replacement:
        replacement.write(TEXT)
        replacement.finish()
    assert is_all(store, holding)


def test_what_was_kept_is_replaced_too() -> None:
    files = MemoryFiles()
    without_holders(files)
    files.create_file(f"{PLACE}/.nfs0001")
    store = opened(files)
    holding = stored(store)
    damage(files, store.place(holding))
    with store.replace(holding) as replacement:
        replacement.write(TEXT)
        replacement.finish()
    assert is_all(store, holding)


def test_wrong_content_replaces_nothing(files: Files) -> None:
    store = opened(files)
    holding = stored(store)
    before = everything(files)
    with store.replace(HASH) as replacement:
        replacement.write(b"something else")
        with pytest.raises(ValueError, match=HASH.hex()):
            replacement.finish()
    with store.replace(HASH) as replacement:
        replacement.write(TEXT)
    assert everything(files) == before
    assert is_all(store, holding)
    assert store.in_flight() == {holding.holder}


def test_what_the_disk_reads_back_wrong_replaces_nothing() -> None:
    """The disk is ill then, and that is told as such."""
    files = MemoryFiles()
    store = opened(files)
    holding = stored(store)
    name = damage(files)
    construction = store.build()
    construction.write(TEXT)
    damage(files, construction._built)
    with pytest.raises(OSError, match="the content does not have the hash"):
        construction.finish()
    assert files.read(name, 0, 10) == b"xx"
    assert store.in_flight() == {holding.holder}
    assert list(files.names(f"{PLACE}/holders")) == [holding.holder]


def test_what_went_while_it_was_replaced_is_gone(files: Files) -> None:
    store = opened(files)
    holding = stored(store)
    replacement = store.replace(HASH)
    replacement.write(TEXT)
    store.unlink(holding)
    with pytest.raises(MissingError):
        replacement.finish()
    assert everything(files) == set()


def test_a_replacement_that_came_too_late_does_no_harm_to_a_successor(files: Files) -> None:
    store = opened(files)
    holding = stored(store)
    replacement = store.replace(HASH)
    replacement.write(TEXT)
    store.unlink(holding)
    successor = stored(store)
    with pytest.raises(MissingError):
        replacement.finish()
    assert is_all(store, successor)
    store.unlink(successor)
    assert everything(files) == set()


# ---- disks


def test_a_full_disk_takes_nothing_and_leaves_nothing() -> None:
    files = MemoryFiles()
    store = opened(files)
    files.is_full = True
    with pytest.raises(OSError, match="No space") as caught:
        store.build()
    assert caught.value.errno == errno.ENOSPC
    files.is_full = False
    construction = store.build()
    construction.write(TEXT[:10])
    files.is_full = True
    with pytest.raises(OSError, match="No space"):
        construction.write(TEXT[10:])
    assert everything(files) == set()
    assert store.in_flight() == frozenset()
    files.is_full = False
    held = stored(store)
    files.is_full = True
    with pytest.raises(OSError, match="No space"):
        store.link(HASH)
    store.unlink(held)
    assert everything(files) == set()
    assert store.in_flight() == frozenset()


class Failing(MemoryFiles):
    """Fails at one step, counted from 0, when told to."""

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
def test_a_disk_that_fails_at_any_step(*, is_there: bool) -> None:
    def attempt(step: int, act: Callable[[Attachments], object]) -> bool:
        """Whether it failed. What was held is there then, and nothing else."""
        files = Failing()
        store = opened(files)
        store.link(HASH)
        held = [stored(store)] if is_there else []
        for holding in held:
            store.settle(holding.holder)
        before = everything(files)
        files.left = step
        try:
            act(store)
        except OSError:
            assert files.left is not None
            assert files.left < 0
            assert store.in_flight() == frozenset()
            assert all(is_all(store, holding) for holding in held)
            for holding in held:
                store.unlink(holding)
            if act is stored:
                assert everything(files) == set()
            return True
        assert before <= everything(files)
        return False

    for act in (stored, lambda store: store.link(HASH)):
        failures = 0
        while attempt(failures, act):
            failures += 1
        assert failures >= (3 if is_there else 1)
