"""A sweep finds and repairs what crashes leave, and touches nothing live."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from replicator.store.attachments import linking, names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import Files
from replicator.store.attachments.steps import Algorithm
from replicator.store.attachments.store import Attachments
from replicator.store.attachments.sweep import SLICE, SweepFindingKind, sweep
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
from tests.attachments.records import MemoryRecords, sweep_all


def sweep_kinds(store: Attachments, records: MemoryRecords, *, repair: bool = True) -> list[SweepFindingKind]:
    return [finding.kind for finding in sweep_all(store, records, repair=repair)]


def run_and_die(files: Files, algorithm: Algorithm[object], steps: int) -> bool:
    """Take so many steps and stop. Return True if the algorithm had at least that many."""
    answer = None
    for _ in range(steps):
        try:
            step = next(algorithm) if answer is None else algorithm.send(answer)
        except StopIteration:
            return False
        answer = step.on(files)
    return True


def restart(files: Files) -> Attachments:
    store = open_attachments(files)
    probe = store.link(bytes(32))
    assert probe is None
    return store


def test_recorded_in_flight_and_foreign_attachments_stay(files: Files) -> None:
    before, other = open_attachments(files), open_attachments(files, "dc2")
    recorded = store_content(before)
    theirs = store_content(other, b"theirs")
    their_build = other.build()
    their_build.write(CONTENT)
    store = open_attachments(files)
    in_flight, building = store.link(HASH), store.build()
    assert in_flight is not None
    tree = all_names(files)
    assert sweep_kinds(store, MemoryRecords(recorded)) == []
    assert all_names(files) == tree
    assert has_content(store, recorded)
    assert has_content(other, theirs, b"theirs")
    building.write(b"mine")
    assert has_content(store, building.finish(), b"mine")
    assert has_content(other, their_build.finish())


@pytest.mark.parametrize("is_settled", [False, True])
def test_unrecorded_holders_are_removed(files: Files, *, is_settled: bool) -> None:
    before = open_attachments(files)
    recorded, stray = store_content(before), store_content(before)
    store = restart(files)
    mine = store.link(HASH)
    assert mine is not None
    if is_settled:
        store.settle(mine.holder)
    expected = [SweepFindingKind.STRAY_HOLDER] * (2 if is_settled else 1)
    tree = all_names(files)
    assert sweep_kinds(store, MemoryRecords(recorded), repair=False) == expected
    assert all_names(files) == tree
    assert sweep_kinds(store, MemoryRecords(recorded)) == expected
    assert sweep_kinds(store, MemoryRecords(recorded)) == []
    assert f"{PLACE}/holders/{stray.holder}" not in all_names(files)
    assert has_content(store, recorded)


def test_holder_left_by_a_broken_disk_is_removed_later() -> None:
    files = MemoryFiles()
    store = open_attachments(files)
    holding = store_content(store)
    files.is_broken = True
    with pytest.raises(OSError, match="Input/output error"):
        store.unlink(holding)
    files.is_broken = False
    assert store.in_flight() == set()
    assert sweep_kinds(store, MemoryRecords()) == [SweepFindingKind.STRAY_HOLDER]
    assert all_names(files) == set()


def test_attachment_held_only_by_stray_holders_is_removed(files: Files) -> None:
    before = open_attachments(files)
    store_content(before)
    store_content(before)
    store = restart(files)
    assert sweep_kinds(store, MemoryRecords()) == [SweepFindingKind.STRAY_HOLDER] * 2
    assert all_names(files) == set()
    assert sweep_kinds(store, MemoryRecords()) == [SweepFindingKind.OLD_OWNER]
    assert sweep_kinds(store, MemoryRecords()) == []
    assert list(files.names("owners")) == [f"dc1.{store.owner}"]


def test_unfinished_builds_are_removed(files: Files) -> None:
    for steps in range(3):
        before = restart(files)
        holder = names.new_holder(before.owner, steps + 7)
        run_and_die(files, linking.begin(names.s_name(holder), holder), steps + 4)
    whole = open_attachments(files).build()
    whole.write(CONTENT)
    store = restart(files)
    found = sweep_kinds(store, MemoryRecords(), repair=False)
    assert set(found) == {SweepFindingKind.STRAY_BUILD}
    assert sweep_kinds(store, MemoryRecords()) == found
    assert all_names(files) == set()


def test_removal_that_died_at_any_step_is_finished(files: Files) -> None:
    steps = 0
    while True:
        before = open_attachments(files)
        holding = store_content(before)
        was_cut_short = run_and_die(files, linking.unlink(PLACE, holding.holder), steps)
        store = restart(files)
        found = sweep_kinds(store, MemoryRecords())
        assert set(found) <= {
            SweepFindingKind.DEAD,
            SweepFindingKind.UNHELD,
            SweepFindingKind.STRAY_HOLDER,
            SweepFindingKind.OLD_OWNER,
        }
        assert all_names(files) == set()
        if not was_cut_short:
            break
        steps += 1
    assert steps >= 5


def test_a_kept_attachment_stays_while_it_is_recorded(files: Files) -> None:
    other = open_attachments(files, "dc2")
    theirs = store_content(other)
    run_and_die(files, linking.unlink(PLACE, theirs.holder), 2)
    files.create_file(f"{PLACE}/.nfs0001")
    before = open_attachments(files)
    holding = store_content(before)
    assert holding.kept
    store = restart(files)
    assert sweep_kinds(store, MemoryRecords(holding)) == [SweepFindingKind.DEAD]
    assert has_content(store, holding)
    assert SweepFindingKind.STRAY_BUILD in sweep_kinds(store, MemoryRecords())
    assert all_names(files) == {PLACE, f"{PLACE}/.nfs0001"}


def test_unfinished_replacements_of_this_node_are_removed(files: Files) -> None:
    before, other = open_attachments(files), open_attachments(files, "dc2")
    holding = store_content(before)
    before.replace(HASH).write(b"half")
    theirs = other.replace(HASH)
    store = restart(files)
    mine = store.replace(HASH)
    assert sweep_kinds(store, MemoryRecords(holding), repair=False) == [SweepFindingKind.STRAY_REPLACEMENT]
    assert sweep_kinds(store, MemoryRecords(holding)) == [SweepFindingKind.STRAY_REPLACEMENT]
    assert sweep_kinds(store, MemoryRecords(holding)) == []
    for replacement in (mine, theirs):
        replacement.write(CONTENT)
        replacement.finish()
    assert has_content(store, holding)


def test_missing_holders_attachments_and_content_are_reported(files: Files) -> None:
    before = open_attachments(files)
    unheld, gone, bare = store_content(before), store_content(before, b"gone"), store_content(before, b"bare")
    other = open_attachments(files, "dc2").link(HASH)
    assert other is not None
    files.remove_file(f"{PLACE}/holders/{unheld.holder}")
    before.unlink(gone)
    files.remove_file(f"{before.place(bare)}/content.{bare.holder}")
    store = restart(files)
    records = MemoryRecords(unheld, gone, bare)
    found = {finding.holding: finding for finding in sweep_all(store, records, repair=False)}
    assert {holding: finding.kind for holding, finding in found.items()} == {
        unheld: SweepFindingKind.NO_HOLDER,
        gone: SweepFindingKind.NO_ATTACHMENT,
        bare: SweepFindingKind.NO_CONTENT,
    }
    assert not any(finding.mended for finding in found.values())
    mended = {finding.holding: finding.mended for finding in sweep_all(store, records)}
    assert mended == {unheld: True, gone: False, bare: False}
    assert f"{PLACE}/holders/{unheld.holder}" in all_names(files)
    assert {finding.holding for finding in sweep_all(store, records)} == {gone, bare}


def test_missing_only_holder_is_restored(files: Files) -> None:
    holding = store_content(open_attachments(files))
    files.remove_file(f"{PLACE}/holders/{holding.holder}")
    store = restart(files)
    assert sweep_kinds(store, MemoryRecords(holding)) == [SweepFindingKind.NO_HOLDER]
    assert sweep_kinds(store, MemoryRecords(holding)) == []
    assert has_content(store, holding)


def test_recorded_attachments_are_counted_once(files: Files) -> None:
    store = open_attachments(files)
    first, second, apart, gone = (
        store_content(store),
        store.link(HASH),
        store_content(store, b"kept apart"),
        store_content(store, b"gone"),
    )
    assert second is not None
    place = names.s_name(apart.holder)
    for level in (place[:2], place[:5]):
        files.make_directory(level)
    files.rename(store.place(apart), place)
    store.unlink(gone)
    records = MemoryRecords(first, second, Holding(HASH, apart.holder, kept=True), gone)
    slices = list(sweep(restart(files), records, repair=True))
    assert sum(part.attachments for part in slices) == 2
    assert sum(part.size_bytes for part in slices) == len(CONTENT) + len(b"kept apart")


def test_old_owner_files_are_removed_when_nothing_is_theirs(files: Files) -> None:
    first, second, other = restart(files), restart(files), restart(files)
    open_attachments(files, "dc2").link(HASH)
    kept = store_content(first)
    recorded = Holding(bytes(32), names.new_holder(second.owner, 9))  # its attachment is lost
    store = restart(files)
    assert SweepFindingKind.OLD_OWNER in sweep_kinds(store, MemoryRecords(kept, recorded))
    left = {leaf for leaf in files.names("owners") if leaf.startswith("dc1.")}
    assert left == {f"dc1.{one.owner}" for one in (first, second, store)}
    assert other.owner not in "".join(left)


def test_sweep_works_in_bounded_slices() -> None:
    files = MemoryFiles()
    before = open_attachments(files)
    recorded = [store_content(before) for _ in range(2 * SLICE + 10)]
    store = restart(files)
    sizes = [part.size for part in sweep(store, MemoryRecords(*recorded), repair=True)]
    assert max(sizes) == SLICE
    assert sum(sizes) == 2 * len(recorded) + 1


# ---- changes between the checks of a sweep


class RecordsWithEvent(MemoryRecords):
    """Records that run `act` once, during the first query for holders."""

    def __init__(self, *recorded: Holding) -> None:
        super().__init__(*recorded)
        self.act: Callable[[], None] = lambda: None

    def holders(self, content_hash: bytes, among: Iterable[str]) -> frozenset[str]:
        act, self.act = self.act, lambda: None
        act()
        return frozenset(super().holders(content_hash, among))


def test_holder_recorded_and_settled_between_two_checks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    store = open_attachments(files)
    mine = store_content(store)
    records = MemoryRecords()

    def settled_first() -> frozenset[str]:
        records.recorded.add(mine)
        store.settle(mine.holder)
        return in_flight()

    in_flight = store.in_flight
    monkeypatch.setattr(store, "in_flight", settled_first)
    assert sweep_kinds(store, records) == []
    assert has_content(store, mine)


def test_holder_linked_after_the_listing_stays() -> None:
    files = MemoryFiles()
    before = open_attachments(files)
    store_content(before)
    store = restart(files)
    records = RecordsWithEvent()
    late: list[Holding] = []

    def come() -> None:
        linked = store.link(HASH)
        assert linked is not None
        late.append(linked)
        records.recorded.add(linked)
        store.settle(linked.holder)

    records.act = come
    assert sweep_kinds(store, records) == [SweepFindingKind.STRAY_HOLDER]
    assert has_content(store, late[0])


def test_reference_dropped_during_the_sweep_is_not_restored() -> None:
    files = MemoryFiles()
    store = open_attachments(files)
    mine, other = store_content(store), store_content(open_attachments(files, "dc2"))
    records = RecordsWithEvent(mine)
    files.remove_file(f"{PLACE}/holders/{mine.holder}")

    def drop() -> None:
        records.recorded.discard(mine)
        store.unlink(mine)

    records.act = drop
    assert sweep_kinds(store, records) == []
    assert f"{PLACE}/holders/{mine.holder}" not in all_names(files)
    assert has_content(store, other)


def test_sweep_of_an_empty_store_finds_nothing(files: Files) -> None:
    assert sweep_kinds(Attachments(files, "dc1", new_owner()), MemoryRecords()) == []
