"""Folders of two sides that become equal, by histories of both."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.errors import DsyncError
from replicator.dsync.rules.moves import Name
from replicator.dsync.rules.selection import (
    PATTERN_CHARACTERS_MAX,
    PATTERNS_MAX,
    check_options,
    fits,
    selected,
)
from replicator.dsync.rules.tree import (
    INBOX,
    Adopt,
    Delete,
    Step,
    merging_steps,
    renamed_last,
    replacing_steps,
)
from replicator.dsync.wire.items import Handshake
from replicator.errors import FolderExistsError
from tests.dsync.memory_replica import MemoryReplica

NAMES: list[Name] = [("A",), ("B",), ("A", "x"), ("B", "y"), ("C",), ("A", "x", "x"), ("B", "y", "k"), ("INBOX", "k")]
Deed: TypeAlias = tuple[int, str, Name, Name]
Deeds: TypeAlias = list[tuple[bool, Deed]]
"""What users of the master (True) and of the remote side do, and how many seconds later than the last time.

A deed is a letter, a folder, and another one for renames.
"""

DEED = st.tuples(st.integers(0, 1), st.sampled_from("cdrsu"), st.sampled_from(NAMES), st.sampled_from(NAMES))
DEEDS_OF_BOTH: st.SearchStrategy[Deeds] = st.lists(st.tuples(st.booleans(), DEED), max_size=10)


async def sync(master: MemoryReplica, remote: MemoryReplica, *, backup: bool = False) -> None:
    """Let the remote side take over the master's folders, and the master those of the remote side then."""
    theirs = await master.tree()
    for step in (replacing_steps if backup else merging_steps)(await remote.tree(), theirs):
        await remote.carry_out(step)
    if not backup:
        for step in merging_steps(theirs, renamed_last(await remote.tree(), theirs)):
            await master.carry_out(step)


def act(replica: MemoryReplica, deed: Deed, new_id: bytes) -> None:
    after_s, kind, name, other = deed
    replica.now_s += after_s
    if kind == "c" and name not in replica.boxes:
        replica.create(name, new_id)
    elif kind == "d" and name in replica.boxes:
        replica.delete(name)
    elif kind == "r" and name in replica.boxes and other[: len(name)] != name:
        with suppress(FolderExistsError):
            replica.rename(name, other)
    elif kind in "su":
        replica.subscribe(name, subscribed=kind == "s")


def shown(replica: MemoryReplica) -> object:
    subscribed = {name for name, (_, is_set) in replica.subscriptions.items() if is_set}
    return {name: box.mailbox_id for name, box in replica.boxes.items()}, subscribed


async def two_sides() -> tuple[MemoryReplica, MemoryReplica]:
    sides = MemoryReplica(now_s=1000), MemoryReplica(now_s=1000, number=1)
    for side in sides:
        side.create(INBOX, bytes(16))
    return sides


@given(DEEDS_OF_BOTH, DEEDS_OF_BOTH)
def test_trees_converge(before: Deeds, after: Deeds) -> None:
    coroutine = converge(before, after)
    with suppress(StopIteration):  # it never waits
        coroutine.send(None)
        raise AssertionError


async def converge(before: Deeds, after: Deeds) -> None:
    master, remote = await two_sides()
    number = 0
    for deeds in (before, after):
        for at_master, deed in deeds:
            number += 1
            act(master if at_master else remote, deed, number.to_bytes(16))
        for _ in range(2):  # a folder whose name is taken waits for the next sync
            await sync(master, remote)
        assert shown(master) == shown(remote)


async def test_a_folder_goes_up_to_the_name_above_with_all_below_it() -> None:
    """As at a node, whatever the order in which the folders were created."""
    replica, _ = await two_sides()
    replica.create(("A", "x", "x"), b"2" * 16)
    replica.delete(("A", "x"))
    replica.create(("A", "x"), b"1" * 16)
    replica.delete(("A",))
    replica.rename(("A", "x"), ("A",))
    assert shown(replica) == ({INBOX: bytes(16), ("A",): b"1" * 16, ("A", "x"): b"2" * 16}, set())


async def test_the_greater_id_stays() -> None:
    master, remote = await two_sides()
    master.create(("A",), b"2" * 16, 7)
    remote.create(("A",), b"1" * 16, 8)
    assert [*merging_steps(await remote.tree(), await master.tree())] == [Adopt(("A",), b"2" * 16, 7)]
    assert [*merging_steps(await master.tree(), await remote.tree())] == []


@pytest.mark.parametrize(("theirs", "steps"), [(b"3", [Adopt(("A",), b"3" * 16, 7)]), (b"1", [])])
async def test_a_folder_whose_name_another_one_has_by_now_is_not_deleted(theirs: bytes, steps: list[Step]) -> None:
    """Dovecot refuses to delete it, and takes both for one."""
    master, remote = await two_sides()
    for side in (master, remote):
        side.create(("A",), theirs * 16, 7)
    remote.delete(("A",))
    remote.create(("A",), b"2" * 16, 8)
    assert [*merging_steps(await remote.tree(), await master.tree())] == steps


async def test_a_backup_replaces_the_tree() -> None:
    master, remote = await two_sides()
    master.create(("A",), b"2" * 16)
    remote.create(("B",), b"1" * 16)
    remote.subscribe(("B",), subscribed=True)
    await sync(master, remote, backup=True)
    assert shown(remote) == shown(master)


async def test_inbox_is_never_deleted() -> None:
    master, remote = await two_sides()
    master.deleted_boxes[bytes(16)] = 1
    assert [*merging_steps(await remote.tree(), await master.tree())] == []
    master.boxes.clear()
    assert [*replacing_steps(await remote.tree(), await master.tree())] == []


async def test_options_choose_folders() -> None:
    replica, _ = await two_sides()
    for number, name in enumerate(NAMES, 1):
        replica.create(name, number.to_bytes(16))
    tree = await replica.tree()

    def names(wish: Handshake) -> set[Name]:
        check_options(wish)
        return {*selected(tree, wish, "/").nodes}

    assert names(Handshake("h", sync_box="A/x")) == {("A", "x")}
    assert names(Handshake("h", sync_box_guid=(5).to_bytes(16).hex())) == {("C",)}
    assert names(Handshake("h", exclude_mailboxes=("A*", "?", "*/k"))) == {INBOX, ("B", "y")}
    assert names(Handshake("h", namespaces="A/")) == {("A",), ("A", "x"), ("A", "x", "x")}
    assert names(Handshake("h", namespaces="")) == {*NAMES, INBOX}


async def test_a_backup_of_one_folder_deletes_no_other() -> None:
    master, remote = await two_sides()
    remote.create(("B",), b"1" * 16)
    wish = Handshake("h", sync_box="INBOX")
    own, peer = selected(await remote.tree(), wish, "/"), selected(await master.tree(), wish, "/")
    assert not any(isinstance(step, Delete) for step in replacing_steps(own, peer))
    assert any(isinstance(step, Delete) for step in replacing_steps(await remote.tree(), await master.tree()))


async def test_no_folder_gets_the_name_of_a_hidden_one() -> None:
    """Two folders swap their names, and two others want one name."""
    master, remote = await two_sides()
    for side in (master, remote):
        for name in ("A", "B", "C"):
            side.create((name,), name.encode() * 16)
    for name in ("A-1", "B-1", "D-1"):
        remote.create((name,), name.encode())
    remote.create(("D",), b"D" * 16)
    master.now_s += 1
    for old, new in (("A", "free"), ("B", "A"), ("free", "B"), ("C", "D")):
        master.rename((old,), (new,))
    own = selected(await remote.tree(), Handshake("h", exclude_mailboxes=("?-1",)), "/")
    for step in merging_steps(own, await master.tree()):
        await remote.carry_out(step)
    hidden = {(name,): name.encode() for name in ("A-1", "B-1", "D-1")}
    named = {("A",): b"B" * 16, ("B",): b"A" * 16, ("D",): b"C" * 16, ("D-2",): b"D" * 16}
    assert {name: box.mailbox_id for name, box in remote.boxes.items()} == {INBOX: bytes(16)} | hidden | named


@given(st.text("ab/", max_size=8), st.text("ab*?", max_size=6))
def test_patterns(text: str, pattern: str) -> None:
    plainly = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    assert fits(text, pattern) == (re.fullmatch(plainly, text, re.DOTALL) is not None)


def test_no_pattern_takes_long() -> None:
    """A folder of the longest name and a pattern that tries everything: ten million steps were too many."""
    begin = time.process_time()
    assert not fits("a" * 1000, "*a" * 400 + "*b")
    assert time.process_time() - begin < 1
    with pytest.raises(DsyncError, match="characters"):
        check_options(Handshake("h", exclude_mailboxes=("a" * (PATTERN_CHARACTERS_MAX + 1),)))
    with pytest.raises(DsyncError, match="at most 100 names"):
        check_options(Handshake("h", exclude_mailboxes=("a",) * (PATTERNS_MAX + 1)))
