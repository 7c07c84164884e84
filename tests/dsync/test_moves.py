"""Folders that get the names of one another: all have their names after one sync, and soon."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.rules.moves import LEVELS_MAX, RENAMES_MAX, Move, Name, moves
from replicator.mail.mailstore import CoreMailStore
from tests.dsync.dovecot import SDBOX, Dovecot, dovecot, needs_dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.sides import USER, Master, door, node_replicas
from tests.one_node import one_node

LEVEL = st.sampled_from("ab")
NAMES = st.lists(st.lists(LEVEL, min_size=1, max_size=4).map(tuple), unique=True, max_size=8)
MANY = 10_000
"""Folders that a user may have."""


def taken(now: dict[bytes, Name], found: list[Move]) -> dict[Name, bytes]:
    """Return the mailboxes by their names after moves, which a node must be able to make."""
    replica = MemoryReplica()
    for one, name in sorted(now.items(), key=lambda item: item[1]):
        replica.create(name, one)
    for name in {*replica.boxes} - {*now.values()}:
        del replica.boxes[name]  # as one does that was deleted; those below stay
    for move in found:
        if move.old is None:
            replica.create(move.new, move.mailbox_id)
        else:
            assert replica.boxes[move.old].mailbox_id == move.mailbox_id
            replica.rename(move.old, move.new)
    return {name: box.mailbox_id for name, box in replica.boxes.items()}


@given(NAMES, NAMES, st.sets(LEVEL.map(lambda level: (f"{level}-1",))))
def test_all_get_their_names(old: list[Name], new: list[Name], used: set[Name]) -> None:
    ids = [bytes([number]) * 16 for number in range(8)]
    now = dict(zip(ids, old[: len(new)], strict=False))
    wanted = dict(zip(new, ids, strict=False))
    found, left = moves(now, wanted, used)
    assert not left
    assert not used & {move.new for move in found}
    after = taken(now, found)
    assert {name: one for name, one in after.items() if one in ids} == wanted
    assert len(found) <= 2 * len(wanted)


@given(NAMES, NAMES)
def test_what_one_sync_leaves_the_next_ones_do(old: list[Name], new: list[Name]) -> None:
    ids = [bytes([number]) * 16 for number in range(8)]
    now = dict(zip(ids, old[: len(new)], strict=False))
    wanted = dict(zip(new, ids, strict=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicator.dsync.rules.moves.RENAMES_MAX", 1)
        left: Sequence[Name] = ()
        for _ in range(len(new) + 1):
            found, left = moves(now, wanted, ())
            after = {one: name for name, one in taken(now, found).items() if one in ids}
            assert {name for name, one in wanted.items() if after.get(one) != name} == {*left}
            assert all(after[one] in {name, new[ids.index(one)]} for one, name in now.items())
            now = after
    assert not left


def test_nothing_moves_without_need() -> None:
    now = {b"1": ("A",), b"2": ("A", "x"), b"3": ("B",)}
    assert moves(now, {name: one for one, name in now.items()}, ()) == ([], ())
    below = {("C",): b"1", ("C", "x"): b"2", ("B",): b"3"}
    assert moves(now, below, ()) == ([Move(b"1", ("A",), ("C",))], ())


def test_a_chain_of_names_needs_one_move_for_each() -> None:
    """So rotate the folders of an archive: each gets the name of the next one."""
    now: dict[bytes, Name] = {b"%d" % number: (f"old-{number}",) for number in range(100)}
    wanted: dict[Name, bytes] = {(f"old-{number + 1}",): b"%d" % number for number in range(100)}
    assert len(moves(now, wanted, ())[0]) == 100


def test_no_way_is_sought_to_the_deepest_names() -> None:
    """Such a move fails at a node, and says why; the names above would take much memory."""
    deep = ("a",) * (LEVELS_MAX + 1)
    assert moves({b"1": ("b",)}, {deep: b"1", ("b",): b"2", (*deep, "c"): b"3"}, ())[0] == [
        Move(b"1", ("b",), ("b-1",)),
        Move(b"2", None, ("b",)),
        Move(b"1", ("b-1",), deep),
        Move(b"3", None, (*deep, "c")),
    ]


def swapped() -> tuple[list[Name], list[Name]]:
    names: list[Name] = [(f"folder {number}",) for number in range(MANY)]
    return names, [names[number ^ 1] for number in range(MANY)]


def in_a_cycle() -> tuple[list[Name], list[Name]]:
    names: list[Name] = [(f"folder {number}",) for number in range(MANY)]
    return names, [*names[1:], names[0]]


def shuffled_on_three_levels() -> tuple[list[Name], list[Name]]:
    names: list[Name] = [("a", "b", f"{number}", "d")[: 3 + number % 2] for number in range(MANY)]
    names = [*dict.fromkeys(names)]
    return names, Random(1).sample(names, len(names))


def with_a_renamed_parent() -> tuple[list[Name], list[Name]]:
    below = [(f"{number}",) for number in range(MANY // 2)]
    return [("A",), *(("A", *name) for name in below)], [("B",), *(("B", *name) for name in below)]


def below_one_that_takes_their_parents_name() -> tuple[list[Name], list[Name]]:
    below = [("A", f"{number}") for number in range(MANY // 2)]
    return [("A",), ("B",), *below], [("A", "deep", "A"), ("A",), *below]


@pytest.mark.parametrize(
    ("of_all", "most"),
    [
        (swapped, MANY // 2 * 3),
        (in_a_cycle, MANY + MANY // 100),
        (shuffled_on_three_levels, MANY + MANY // 100),
        (with_a_renamed_parent, 1),
        (below_one_that_takes_their_parents_name, MANY // 2 + 3),
    ],
)
def test_ten_thousand_folders(of_all: object, most: int) -> None:
    """The thread that plans them holds the interpreter."""
    assert callable(of_all)
    old, new = of_all()
    now = {b"%d" % number: name for number, name in enumerate(old)}
    wanted = {name: b"%d" % number for number, name in enumerate(new)}
    begin = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicator.dsync.rules.moves.RENAMES_MAX", 2 * MANY)
        found, left = moves(now, wanted, {*old, *new})
    assert not left
    assert len(found) <= most
    found, left = moves(now, wanted, {*old, *new})
    assert time.process_time() - begin < 2
    assert len(found) <= most if of_all in {in_a_cycle, below_one_that_takes_their_parents_name} else RENAMES_MAX + 200


@asynccontextmanager
async def synced(tmp_path: Path, names: Iterable[str]) -> AsyncIterator[tuple[Dovecot, CoreMailStore, Master]]:
    """Yield a Dovecot with these folders, the mail of a node that has them by a sync, and the Dovecot as master."""
    with dovecot(SDBOX) as server:
        for name in names:
            server.do("mailbox", "create", "-u", USER, name)
        async with one_node(tmp_path) as mail, door(node_replicas(mail, lambda: time.time_ns() // 10**6)) as address:
            master = Master(server, address)
            assert (await master.sync()).returncode == 0
            await trio.sleep(1.1)  # Dovecot counts in seconds
            yield server, mail, master


async def guids(mail: CoreMailStore) -> dict[str, str]:
    """Return the GUIDs of a node's folders but INBOX, by name."""
    changes = await mail.tree_changes(USER)
    return {one.name: one.guid.hex() for one in changes.folders if not one.deleted and one.name != "INBOX"}


@needs_dovecot
@pytest.mark.parametrize(
    "deeds",
    [
        ["create P", "rename X P/X"],
        ["create P/Q/R", "rename X P/Q/R/X"],
        ["rename X P", "create X", "rename Y X/Y"],
        ["rename X Z", "rename Y X", "rename Z Y"],
        ["rename X P", "create X", "create X/below", "rename P/below X/Q"],
        ["create INBOX/P", "rename X INBOX/P/X"],
    ],
)
async def test_one_sync_is_enough(tmp_path: Path, deeds: list[str]) -> None:
    async with synced(tmp_path, ("X", "X/below", "Y")) as (server, mail, master):
        before = server.folders(USER)
        for kind, *names in map(str.split, deeds):
            server.do("mailbox", kind, "-u", USER, *names)
        wanted = server.folders(USER)
        assert wanted != before
        assert (await master.sync()).returncode == 0
        theirs = server.folders(USER)
        assert await guids(mail) == {name: guid for name, (guid, _) in theirs.items()}
        assert theirs.items() >= wanted.items(), "there may be parents, too, which were directories before"


@needs_dovecot
async def test_dovecots_names_stay_while_some_are_left_for_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.dsync.rules.moves.RENAMES_MAX", 3)
    async with synced(tmp_path, ("A1", "A2", "B1", "B2", "C1", "C2")) as (server, mail, master):
        for pair in ("A", "B", "C"):
            for old, new in ((f"{pair}1", "free"), (f"{pair}2", f"{pair}1"), ("free", f"{pair}2")):
                server.do("mailbox", "rename", "-u", USER, old, new)
        wanted = server.folders(USER)
        codes = list[int]()
        while 0 not in codes[-1:]:
            codes.append((await master.sync()).returncode)
            assert server.folders(USER) == wanted
        assert codes == [2, 2, 0]
        assert await guids(mail) == {name: guid for name, (guid, _) in wanted.items()}


@needs_dovecot
@pytest.mark.parametrize(
    "deeds",
    [
        ["rename X Z", "create X", "rename Z X/P"],
        ["rename X Z", "create X", "rename Z X/P", "rename Y X/P/Y"],
        ["rename X/below Z", "rename X Y/X", "rename Z X"],
    ],
)
async def test_a_folder_is_moved_below_a_new_one_that_has_its_name(tmp_path: Path, deeds: list[str]) -> None:
    async with synced(tmp_path, ("X", "X/below", "Y")) as (server, mail, master):
        for kind, *names in map(str.split, deeds):
            server.do("mailbox", kind, "-u", USER, *names)
        wanted = server.folders(USER)
        for _ in range(2):
            assert (await master.sync()).returncode in {0, 2}
        ours = await guids(mail)
        assert ours == {name: guid for name, (guid, _) in server.folders(USER).items()}
        assert ours == {name: guid for name, (guid, _) in wanted.items()}
