from __future__ import annotations

import random
from collections.abc import Iterable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.parser import LIST_MAX
from protocol.values import Dot
from replicator.store.checkpoints.checkpoint import (
    ROWS_AT_ONCE,
    STAMPS_AT_ONCE,
    CheckpointReader,
    Home,
    checkpoint_name,
    checkpoints_of,
    state_of,
    write_mailbox,
    write_tree,
)
from replicator.store.checkpoints.container import ContainerKind, UnreadableError, seal
from replicator.store.db.entry_validation import NamedHead, head_of
from resync.entry import FolderState, Merge, SubscriptionState, TreeMerge, pack_change, tree_id
from resync.folder_tree import TreeState
from resync.row import Row
from resync.state import MailboxState
from tests.effort import examples
from tests.resync import histories, tree_histories

HOME = Home("mail", "dc1")
DOT = Dot("dc1.x", 9)
HISTORY = bytes(range(16))
HEAD = NamedHead("alice", b"m" * 16, 7, DOT, 5, 100 << 16)
CONTEXT = (("dc1.x", 9), ("dc2.y", 3))
ROW = Row(1, Dot("dc2.y", 3), 0, b"g" * 16, DOT, 5, {"\\Seen": (5 << 16, "dc1", True)}, 1000, 10, b"h" * 32)
MERGE = Merge(4, 2, (), (ROW,), ())
TREE_HEAD = NamedHead("alice", tree_id("alice"), 0, DOT, 5, 100 << 16)
FOLDER = FolderState(b"f" * 16, "alice", "Work", 1024, deleted=False, time=5, sid="dc1")
SUBSCRIPTION = SubscriptionState("alice", "Work", True, 5, "dc1")  # noqa: FBT003
TREE_MERGE = TreeMerge((), (FOLDER,), (SUBSCRIPTION,))


def read(head: NamedHead, *pieces: bytes) -> list[Merge | TreeMerge]:
    reader = CheckpointReader("mail/a", head)
    changes = [change for piece in pieces for change in reader.receive(piece)]
    reader.finish()
    return changes


def write(head: NamedHead, state: MailboxState | TreeState) -> Iterable[bytes]:
    if isinstance(state, TreeState):
        return write_tree(head, HISTORY, state)
    return write_mailbox(head, HISTORY, state, (state.rows[uid] for uid in sorted(state.rows)))


def check_round_trip(head: NamedHead, state: MailboxState | TreeState) -> None:
    again = state_of(head, read(head, *write(head, state)))
    assert again == state
    assert type(again) is type(state)


@given(st.integers(0, 2**32), st.integers(1, 80))
@settings(max_examples=60)
def test_any_mailbox_is_read_back_unchanged(seed: int, steps: int) -> None:
    world = histories.World(random.Random(seed))
    world.run(steps)
    for node in world.nodes:
        if node.history:
            check_round_trip(head_of(node.history[-1]), node.state)


@given(st.integers(2, 4), st.integers(1, 60), st.randoms(use_true_random=False))
@settings(max_examples=examples(25, 60))
def test_any_tree_is_read_back_unchanged(size: int, steps: int, rng: random.Random) -> None:
    clock = tree_histories.Clock()
    nodes = [tree_histories.Node(name, clock) for name in "abcd"[:size]]
    for _ in range(steps):
        rng.choice(nodes).act(rng)
        if rng.random() < 0.4:
            one, other = rng.sample(nodes, 2)
            one.meet(other)
    for node in nodes:
        if node.history:
            check_round_trip(head_of(node.history[-1]), node.tree)


def rows(count: int) -> Iterable[Row]:
    return (ROW._replace(uid=uid, guid=uid.to_bytes(16)) for uid in range(1, count + 1))


@pytest.mark.parametrize("count", [0, 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE])
def test_rows_are_read_in_batches(count: int) -> None:
    shown = MailboxState(uidnext=count + 1, context=dict(CONTEXT), risen=3)
    changes = read(HEAD, *write_mailbox(HEAD, HISTORY, shown, rows(count)))
    assert len(changes) == max(1, -(-count // ROWS_AT_ONCE))
    merges = [change for change in changes if isinstance(change, Merge)]
    assert [row for change in merges for row in change.rows] == list(rows(count))
    for change in merges:
        assert change[:3] == (count + 1, 3, (Dot("dc1.x", 9), Dot("dc2.y", 3)))
        assert len(change.rows) <= ROWS_AT_ONCE


def test_rows_with_very_many_stamps_have_frames_of_their_own() -> None:
    """A row keeps the stamps of flags that were removed; a thousand such rows are more than a frame may have."""
    flags = {f"keyword-of-a-client-{number}": (5 << 16, "dc1", False) for number in range(2 * STAMPS_AT_ONCE // 3)}
    many = [row._replace(flags=flags) for row in rows(5)]
    changes = read(HEAD, *write_mailbox(HEAD, HISTORY, MailboxState(uidnext=9, context=dict(CONTEXT)), many))
    assert [len(change.rows) for change in changes if isinstance(change, Merge)] == [2, 2, 1]


def test_rows_are_consumed_while_the_checkpoint_is_written() -> None:
    taken = 0

    def counted() -> Iterable[Row]:
        nonlocal taken
        for row in rows(30 * ROWS_AT_ONCE):
            taken += 1
            yield row._replace(content_hash=random.Random(row.uid).randbytes(32))

    pieces = iter(write_mailbox(HEAD, HISTORY, MailboxState(uidnext=1 << 30, context=dict(CONTEXT)), counted()))
    next(pieces)
    next(pieces)
    assert 0 < taken < 15 * ROWS_AT_ONCE


def test_damaged_checkpoint_is_refused() -> None:
    good = b"".join(write_mailbox(HEAD, HISTORY, MailboxState(uidnext=9, context=dict(CONTEXT)), rows(3)))
    assert read(HEAD, good)
    for at in range(len(good)):
        for bad in (good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :], good[:at]):
            with pytest.raises(UnreadableError, match=r"^mail/a: "):
                read(HEAD, bad)


def read_sealed(head: NamedHead, first: object, *changes: Merge | TreeMerge | bytes) -> None:
    """Read a correctly sealed checkpoint of arbitrary content."""
    frames = [first if isinstance(first, bytes) else msgpack.packb(first)]
    frames += [change if isinstance(change, bytes) else pack_change(change) for change in changes]
    read(head, *seal(ContainerKind.CHECKPOINT, frames))


def test_base_of_the_invalid_examples_is_valid() -> None:
    read_sealed(HEAD, (HEAD, CONTEXT), MERGE)
    read_sealed(TREE_HEAD, (TREE_HEAD, CONTEXT), TREE_MERGE)


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (b"\xc1", "not MessagePack"),
        (b"\x91\x91", "not MessagePack"),
        (5, "not an array"),
        ((HEAD,), "not an array of 2 fields"),
        ((HEAD, CONTEXT, b"short"), "its history is malformed"),
        ((5, CONTEXT), "types"),
        ((HEAD[:5], CONTEXT), "types"),
        ((HEAD._replace(user=b"alice"), CONTEXT), "types"),  # type: ignore[arg-type]
        ((HEAD._replace(user=""), CONTEXT), "user name"),
        ((HEAD._replace(user="a" * 321), CONTEXT), "user name"),
        ((HEAD._replace(mailbox_id=b"m"), CONTEXT), "mailbox id"),
        ((HEAD._replace(uidvalidity=0), CONTEXT), "tree"),
        ((HEAD._replace(uidvalidity=2**32), CONTEXT), "UIDVALIDITY"),
        ((HEAD._replace(modseq=0), CONTEXT), "MODSEQ"),
        ((HEAD._replace(modseq=2**62), CONTEXT), "MODSEQ"),
        ((HEAD._replace(time=0), CONTEXT), "time"),
        ((HEAD._replace(dot=Dot("dc1.x", 0)), CONTEXT), "number"),
        ((HEAD._replace(dot=Dot("evil", 9)), CONTEXT), "no origin"),
        ((HEAD, (("dc1.x", 9), ("dc2 y.z", 3))), "no origin"),
        ((HEAD, tuple((f"dc1.{number:05}", 1) for number in range(LIST_MAX + 1))), "its context is malformed"),
        ((HEAD._replace(user="bob"), CONTEXT), "of bob, contrary to its name"),
        ((HEAD._replace(dot=Dot("dc1.x", 8)), CONTEXT), "contrary to its name"),
        ((HEAD, 5), "its context is malformed"),
        ((HEAD, ((1, 2),)), "its context is malformed"),
        ((HEAD, (("dc1.x", 9), ("dc1.x", 9))), "its context is malformed"),
        ((HEAD, (("dc2.y", 3), ("dc1.x", 9))), "its context is malformed"),
        ((HEAD, (("dc1.x", 2**62),)), "its context is malformed"),
        ((HEAD, ()), "does not end at its head"),
        ((HEAD, (("dc1.x", 8), ("dc2.y", 3))), "does not end at its head"),
        ((HEAD, (("dc1.x", 9),)), "its context does not cover one of its messages"),
        ((HEAD, (("dc1.x", 9), ("dc2.y", 2))), "its context does not cover one of its messages"),
    ],
)
def test_invalid_head_is_refused(first: object, problem: str) -> None:
    with pytest.raises(UnreadableError, match=f"mail/a: damaged: .*{problem}"):
        read_sealed(HEAD, first, MERGE)


def with_row(**values: object) -> Merge:
    return MERGE._replace(rows=(ROW._replace(**values),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ((), "no state"),
        ((b"\xc1",), "not a change"),
        ((TREE_MERGE,), "does not belong to a mailbox"),
        ((b"\x92\xa8MAIL_DEL\x91\x92\x01\x02",), "does not belong to a mailbox"),
        ((MERGE._replace(context=(DOT,)),), "does not belong to a mailbox"),
        ((MERGE._replace(removed=(b"g" * 16,)),), "does not belong to a mailbox"),
        ((MERGE._replace(uidnext=0),), "out of range"),
        ((MERGE._replace(risen=1024),), "out of range"),
        ((MERGE, MERGE._replace(uidnext=5, rows=())), "disagree about UIDNEXT"),
        ((MERGE, MERGE._replace(risen=0, rows=())), "disagree about UIDNEXT"),
        ((with_row(uid=0),), "out of range"),
        ((with_row(uid=4),), "out of range"),
        ((with_row(uid="1"),), "not a change"),
        ((with_row(guid=b"g"),), "out of range"),
        ((with_row(content_hash=b""),), "out of range"),
        ((with_row(size_bytes=-1),), "out of range"),
        ((with_row(flags={"a": (0, "dc1", True)}),), "out of range"),
        ((with_row(modseq=6),), "MODSEQ above"),
        ((with_row(dot=Dot("dc2.y", 4)),), "does not cover one of its messages"),
        ((with_row(claim=Dot("dc3.z", 1)),), "does not cover one of its messages"),
        ((with_row(also=((Dot("dc3.z", 9), 0),)),), "does not cover one of its messages"),
        ((MERGE, with_row(uid=2)), "GUID twice"),
        ((MERGE, with_row(guid=b"i" * 16)), "not in order"),
        ((with_row(uid=2), with_row(guid=b"i" * 16)), "not in order"),
    ],
)
def test_invalid_mailbox_is_refused(changes: tuple[Merge | bytes, ...], problem: str) -> None:
    with pytest.raises(UnreadableError, match=f"mail/a: damaged: .*{problem}"):
        read_sealed(HEAD, (HEAD, CONTEXT), *changes)


def with_folders(*folders: FolderState) -> TreeMerge:
    return TREE_MERGE._replace(folders=folders, subscriptions=())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ((), "no state"),
        ((MERGE,), "does not belong to a tree"),
        ((TREE_MERGE._replace(context=(DOT,)),), "does not belong to a tree"),
        ((with_folders(FOLDER._replace(name="")),), "out of range"),
        ((with_folders(FOLDER._replace(uidvalidity=0)),), "out of range"),
        ((with_folders(FOLDER._replace(user="bob")),), "another user"),
        ((TREE_MERGE._replace(subscriptions=(SUBSCRIPTION._replace(user="bob"),)),), "another user"),
        ((TREE_MERGE, with_folders(FOLDER._replace(deleted=True))), "twice"),
        ((TREE_MERGE, with_folders(FOLDER._replace(mailbox_id=b"o" * 16))), "twice"),
        ((TREE_MERGE, TREE_MERGE._replace(folders=())), "twice"),
    ],
)
def test_invalid_tree_is_refused(changes: tuple[TreeMerge, ...], problem: str) -> None:
    with pytest.raises(UnreadableError, match=f"mail/a: damaged: .*{problem}"):
        read_sealed(TREE_HEAD, (TREE_HEAD, CONTEXT), *changes)


def test_checkpoint_name_has_user_mailbox_and_time() -> None:
    head = HEAD._replace(time=1_795_228_205_123 << 16)
    name = checkpoint_name(HOME, head)
    assert name == (
        "mail/checkpoints/dc1/alice/6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d/"
        "0000000000000000005_20261121T023005.123Z_dc1.x_9.mailbox"
    )
    assert name.startswith(checkpoints_of(HOME) + "/")
    assert checkpoint_name(HOME, TREE_HEAD).endswith("_9.tree")


@given(st.text(min_size=1, max_size=320), st.text(max_size=400), st.integers(1, 2**62 - 1), st.integers(1, 2**62 - 1))
def test_any_user_and_origin_make_a_valid_name(user: str, origin: str, modseq: int, time: int) -> None:
    name = checkpoint_name(HOME, NamedHead(user, b"m" * 16, 7, Dot(origin, modseq), modseq, time))
    assert name.isascii()
    levels = name.split("/")
    assert len(levels) == 6
    assert all(0 < len(level) <= 255 and not level.startswith(".") for level in levels)
