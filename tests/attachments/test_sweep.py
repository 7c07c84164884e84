"""What crashes leave is found and mended, and nothing that lives is touched."""

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
from tests.attachments.helpers import HASH, PLACE, TEXT, everything, is_all, new_owner, opened, stored
from tests.attachments.records import Book, swept


def kinds(store: Attachments, book: Book, *, repair: bool = True) -> list[SweepFindingKind]:
    return [finding.kind for finding in swept(store, book, repair=repair)]


def died(files: Files, algorithm: Algorithm[object], steps: int) -> bool:
    """Take so many steps and no more. Whether there were as many."""
    answer = None
    for _ in range(steps):
        try:
            step = next(algorithm) if answer is None else algorithm.send(answer)
        except StopIteration:
            return False
        answer = step.on(files)
    return True


def restarted(files: Files) -> Attachments:
    store = opened(files)
    probe = store.link(bytes(32))
    assert probe is None
    return store


def test_what_is_recorded_or_in_flight_or_of_others_stays(files: Files) -> None:
    before, other = opened(files), opened(files, "dc2")
    recorded = stored(before)
    theirs = stored(other, b"theirs")
    their_build = other.build()
    their_build.write(TEXT)
    store = opened(files)
    in_flight, building = store.link(HASH), store.build()
    assert in_flight is not None
    tree = everything(files)
    assert kinds(store, Book(recorded)) == []
    assert everything(files) == tree
    assert is_all(store, recorded)
    assert is_all(other, theirs, b"theirs")
    building.write(b"mine")
    assert is_all(store, building.finish(), b"mine")
    assert is_all(other, their_build.finish())


@pytest.mark.parametrize("is_settled", [False, True])
def test_holders_that_are_not_recorded_are_let_go_of(files: Files, *, is_settled: bool) -> None:
    before = opened(files)
    recorded, stray = stored(before), stored(before)
    store = restarted(files)
    mine = store.link(HASH)
    assert mine is not None
    if is_settled:
        store.settle(mine.holder)
    expected = [SweepFindingKind.STRAY_HOLDER] * (2 if is_settled else 1)
    tree = everything(files)
    assert kinds(store, Book(recorded), repair=False) == expected
    assert everything(files) == tree
    assert kinds(store, Book(recorded)) == expected
    assert kinds(store, Book(recorded)) == []
    assert f"{PLACE}/holders/{stray.holder}" not in everything(files)
    assert is_all(store, recorded)


def test_what_a_broken_disk_did_not_let_go_is_let_go_of_later() -> None:
    files = MemoryFiles()
    store = opened(files)
    holding = stored(store)
    files.is_broken = True
    with pytest.raises(OSError, match="Input/output error"):
        store.unlink(holding)
    files.is_broken = False
    assert store.in_flight() == set()
    assert kinds(store, Book()) == [SweepFindingKind.STRAY_HOLDER]
    assert everything(files) == set()


def test_an_attachment_that_only_strays_hold_goes(files: Files) -> None:
    before = opened(files)
    stored(before)
    stored(before)
    store = restarted(files)
    assert kinds(store, Book()) == [SweepFindingKind.STRAY_HOLDER] * 2
    assert everything(files) == set()
    assert kinds(store, Book()) == [SweepFindingKind.OLD_OWNER]
    assert kinds(store, Book()) == []
    assert list(files.names("owners")) == [f"dc1.{store.owner}"]


def test_what_died_while_it_was_built_goes(files: Files) -> None:
    for steps in range(3):
        before = restarted(files)
        holder = names.new_holder(before.owner, steps + 7)
        died(files, linking.begin(names.s_name(holder), holder), steps + 4)
    whole = opened(files).build()
    whole.write(TEXT)
    store = restarted(files)
    found = kinds(store, Book(), repair=False)
    assert set(found) == {SweepFindingKind.STRAY_BUILD}
    assert kinds(store, Book()) == found
    assert everything(files) == set()


def test_an_unlinker_that_dies_at_any_step(files: Files) -> None:
    steps = 0
    while True:
        before = opened(files)
        holding = stored(before)
        was_cut_short = died(files, linking.unlink(PLACE, holding.holder), steps)
        store = restarted(files)
        found = kinds(store, Book())
        assert set(found) <= {
            SweepFindingKind.DEAD,
            SweepFindingKind.UNHELD,
            SweepFindingKind.STRAY_HOLDER,
            SweepFindingKind.OLD_OWNER,
        }
        assert everything(files) == set()
        if not was_cut_short:
            break
        steps += 1
    assert steps >= 5


def test_a_kept_attachment_stays_while_it_is_recorded(files: Files) -> None:
    other = opened(files, "dc2")
    theirs = stored(other)
    died(files, linking.unlink(PLACE, theirs.holder), 2)
    files.create_file(f"{PLACE}/.nfs0001")
    before = opened(files)
    holding = stored(before)
    assert holding.kept
    store = restarted(files)
    assert kinds(store, Book(holding)) == [SweepFindingKind.DEAD]
    assert is_all(store, holding)
    assert SweepFindingKind.STRAY_BUILD in kinds(store, Book())
    assert everything(files) == {PLACE, f"{PLACE}/.nfs0001"}


def test_replacements_that_were_not_finished(files: Files) -> None:
    before, other = opened(files), opened(files, "dc2")
    holding = stored(before)
    before.replace(HASH).write(b"half")
    theirs = other.replace(HASH)
    store = restarted(files)
    mine = store.replace(HASH)
    assert kinds(store, Book(holding), repair=False) == [SweepFindingKind.STRAY_REPLACEMENT]
    assert kinds(store, Book(holding)) == [SweepFindingKind.STRAY_REPLACEMENT]
    assert kinds(store, Book(holding)) == []
    for replacement in (mine, theirs):
        replacement.write(TEXT)
        replacement.finish()
    assert is_all(store, holding)


def test_recorded_holdings_that_have_lost_something(files: Files) -> None:
    before = opened(files)
    unheld, gone, bare = stored(before), stored(before, b"gone"), stored(before, b"bare")
    other = opened(files, "dc2").link(HASH)
    assert other is not None
    files.remove_file(f"{PLACE}/holders/{unheld.holder}")
    before.unlink(gone)
    files.remove_file(f"{before.place(bare)}/content.{bare.holder}")
    store = restarted(files)
    book = Book(unheld, gone, bare)
    found = {finding.holding: finding for finding in swept(store, book, repair=False)}
    assert {holding: finding.kind for holding, finding in found.items()} == {
        unheld: SweepFindingKind.NO_HOLDER,
        gone: SweepFindingKind.NO_ATTACHMENT,
        bare: SweepFindingKind.NO_CONTENT,
    }
    assert not any(finding.mended for finding in found.values())
    mended = {finding.holding: finding.mended for finding in swept(store, book)}
    assert mended == {unheld: True, gone: False, bare: False}
    assert f"{PLACE}/holders/{unheld.holder}" in everything(files)
    assert {finding.holding for finding in swept(store, book)} == {gone, bare}


def test_what_has_lost_its_only_holder_gets_it_back(files: Files) -> None:
    holding = stored(opened(files))
    files.remove_file(f"{PLACE}/holders/{holding.holder}")
    store = restarted(files)
    assert kinds(store, Book(holding)) == [SweepFindingKind.NO_HOLDER]
    assert kinds(store, Book(holding)) == []
    assert is_all(store, holding)


def test_what_is_recorded_and_there_is_counted_once(files: Files) -> None:
    store = opened(files)
    first, second, apart, gone = stored(store), store.link(HASH), stored(store, b"kept apart"), stored(store, b"gone")
    assert second is not None
    place = names.s_name(apart.holder)
    for level in (place[:2], place[:5]):
        files.make_directory(level)
    files.rename(store.place(apart), place)
    store.unlink(gone)
    book = Book(first, second, Holding(HASH, apart.holder, kept=True), gone)
    slices = list(sweep(restarted(files), book, repair=True))
    assert sum(part.attachments for part in slices) == 2
    assert sum(part.size_bytes for part in slices) == len(TEXT) + len(b"kept apart")


def test_owners_go_when_nothing_is_theirs(files: Files) -> None:
    first, second, other = restarted(files), restarted(files), restarted(files)
    opened(files, "dc2").link(HASH)
    kept = stored(first)
    recorded = Holding(bytes(32), names.new_holder(second.owner, 9))  # of what is lost
    store = restarted(files)
    assert SweepFindingKind.OLD_OWNER in kinds(store, Book(kept, recorded))
    left = {leaf for leaf in files.names("owners") if leaf.startswith("dc1.")}
    assert left == {f"dc1.{one.owner}" for one in (first, second, store)}
    assert other.owner not in "".join(left)


def test_a_sweep_goes_in_slices() -> None:
    files = MemoryFiles()
    before = opened(files)
    recorded = [stored(before) for _ in range(2 * SLICE + 10)]
    store = restarted(files)
    sizes = [part.size for part in sweep(store, Book(*recorded), repair=True)]
    assert max(sizes) == SLICE
    assert sum(sizes) == 2 * len(recorded) + 1


# ---- what changes between the questions


class Meanwhile(Book):
    """Does something once, at the moment of a question."""

    def __init__(self, *recorded: Holding) -> None:
        super().__init__(*recorded)
        self.act: Callable[[], None] = lambda: None

    def holders(self, content_hash: bytes, among: Iterable[str]) -> frozenset[str]:
        act, self.act = self.act, lambda: None
        act()
        return frozenset(super().holders(content_hash, among))


def test_a_holder_that_is_recorded_and_settled_between_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    store = opened(files)
    mine = stored(store)
    book = Book()

    def settled_first() -> frozenset[str]:
        book.recorded.add(mine)
        store.settle(mine.holder)
        return in_flight()

    in_flight = store.in_flight
    monkeypatch.setattr(store, "in_flight", settled_first)
    assert kinds(store, book) == []
    assert is_all(store, mine)


def test_a_holder_that_comes_after_the_listing() -> None:
    files = MemoryFiles()
    before = opened(files)
    stored(before)
    store = restarted(files)
    book = Meanwhile()
    late: list[Holding] = []

    def come() -> None:
        linked = store.link(HASH)
        assert linked is not None
        late.append(linked)
        book.recorded.add(linked)
        store.settle(linked.holder)

    book.act = come
    assert kinds(store, book) == [SweepFindingKind.STRAY_HOLDER]
    assert is_all(store, late[0])


def test_a_holding_that_is_let_go_of_while_it_is_missed() -> None:
    files = MemoryFiles()
    store = opened(files)
    mine, other = stored(store), stored(opened(files, "dc2"))
    book = Meanwhile(mine)
    files.remove_file(f"{PLACE}/holders/{mine.holder}")

    def let_go() -> None:
        book.recorded.discard(mine)
        store.unlink(mine)

    book.act = let_go
    assert kinds(store, book) == []
    assert f"{PLACE}/holders/{mine.holder}" not in everything(files)
    assert is_all(store, other)


def test_an_empty_store_is_swept(files: Files) -> None:
    assert kinds(Attachments(files, "dc1", new_owner()), Book()) == []
