from collections.abc import Callable, Iterator
from functools import partial

import pytest

from protocol.values import Dot
from replicator.config import LimitsConfig
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, MailboxFullError
from replicator.mail.mailstore import INBOX as INBOX_NAME
from replicator.store.db import queries
from replicator.store.db.queries import FolderRecord, MailboxKey
from replicator.store.log.forks import stray_mail
from resync.entry import tree_id
from resync.folder_tree import UIDVALIDITY_MAX, UIDVALIDITY_STEP
from tests.store import consistency
from tests.store.harness import ALICE, Job, creating, deleting, expunging, guid, keeping, renaming, saving, subscribing
from tests.store.memory_node import MemoryNode

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def names(node: MemoryNode, user: str = ALICE) -> list[str]:
    return sorted(queries.folders(node.connection, user))


def folder(node: MemoryNode, name: str) -> FolderRecord:
    found = queries.folder(node.connection, ALICE, name)
    assert found is not None
    assert found == queries.folders(node.connection, ALICE)[name]
    return found


def key(node: MemoryNode, name: str) -> MailboxKey:
    return folder(node, name).key(ALICE)


def test_create_makes_the_missing_parents(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(creating("a/b/c", B))
    assert names(node) == ["a", "a/b", "a/b/c"]
    assert folder(node, "a").mailbox_id == A
    assert folder(node, "a/b/c").mailbox_id == B
    assert len({folder(node, name).mailbox_id for name in names(node)}) == 3
    assert len(node.log()) == 2


def test_repeated_create_with_the_same_id_does_nothing(node: MemoryNode) -> None:
    first = node.write(creating("a", A))
    assert node.write(creating("a", A)) == first == Dot("dc1.a", 1)
    with pytest.raises(FolderExistsError):
        node.write(creating("a", B))
    assert len(node.log()) == 1
    node.write(renaming(A, "b"))
    assert node.write(creating("a", A)) == Dot("dc1.a", 2), "the folder was created, and renamed since"
    assert names(node) == ["b"]


def test_users_do_not_see_each_others_folders(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(creating("a", B, user="bob"))
    assert names(node) == names(node, "bob") == ["a"]
    assert tree_id("alice") != tree_id("bob")


def test_uidvalidities_follow_the_clock_and_are_never_reused(node: MemoryNode) -> None:
    node.write(creating("a/b", A))
    node.write(creating("c", C))
    given = [folder(node, name).uidvalidity for name in ("a", "a/b", "c")]
    assert given == [1000, 1000 + UIDVALIDITY_STEP, 1000 + 2 * UIDVALIDITY_STEP]


def test_recreated_folder_has_a_higher_uidvalidity(node: MemoryNode) -> None:
    node.write(creating("a", A))
    before = folder(node, "a")
    node.now_ms = 0
    node.write(deleting(A))
    assert names(node) == []
    node.write(creating("a", B))
    assert folder(node, "a").uidvalidity > before.uidvalidity


def test_folder_renamed_to_an_old_name_has_another_uidvalidity(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(creating("b", B))
    first = folder(node, "a").uidvalidity
    node.write(deleting(A))
    node.write(renaming(B, "a"))
    assert folder(node, "a").uidvalidity != first


def test_rename_moves_children_and_creates_parents(node: MemoryNode) -> None:
    for name, mailbox_id in (("a/x", A), ("ab", B)):
        node.write(creating(name, mailbox_id))
    root = folder(node, "a").mailbox_id
    node.write(saving(b"text", guid(1), key(node, "a/x")))
    node.write(renaming(root, "new/a"))
    assert names(node) == ["ab", "new", "new/a", "new/a/x"]
    assert folder(node, "new/a").mailbox_id == root
    assert folder(node, "new/a/x").mailbox_id == A


def test_rename_refuses_conflicts_cycles_and_missing_folders(node: MemoryNode) -> None:
    for name, mailbox_id in (("a/x", A), ("b/x", B)):
        node.write(creating(name, mailbox_id))
    entries = len(node.log())
    a, b = (folder(node, name).mailbox_id for name in "ab")
    with pytest.raises(FolderExistsError):
        node.write(renaming(a, "b"))
    with pytest.raises(InvalidNameError):
        node.write(renaming(a, "a/y"))
    with pytest.raises(FolderNotFoundError):
        node.write(renaming(C, "c"))
    node.write(renaming(a, "a"))
    assert len(node.log()) == entries
    node.write(renaming(B, "b/y"))
    node.write(deleting(b))
    with pytest.raises(FolderNotFoundError):
        node.write(renaming(b, "z"))
    assert names(node) == ["a", "a/x", "b/y"]


def test_rename_to_a_name_that_an_earlier_rename_freed(node: MemoryNode) -> None:
    node.write(creating("a/b/b", A))
    node.write(renaming(folder(node, "a/b").mailbox_id, "b"))
    node.write(renaming(folder(node, "b/b").mailbox_id, "a/b"))
    assert names(node) == ["a", "a/b", "b"]


def test_renaming_inbox_leaves_an_empty_inbox(node: MemoryNode) -> None:
    node.write(creating(INBOX_NAME, A))
    node.write(creating("INBOX/kept", B))
    old = folder(node, INBOX_NAME)
    node.write(saving(b"text", guid(1), old.key(ALICE)))
    node.write(renaming(A, "INBOX/old"))
    assert names(node) == ["INBOX", "INBOX/kept", "INBOX/old"]
    assert folder(node, "INBOX/old").mailbox_id == A
    assert folder(node, INBOX_NAME).mailbox_id != A
    assert folder(node, INBOX_NAME).uidvalidity > old.uidvalidity
    assert node.write(saving(b"text", guid(1), key(node, INBOX_NAME))).uids == (1,)


def test_delete_leaves_the_folders_below(node: MemoryNode) -> None:
    node.write(creating("a/x", A))
    gone = folder(node, "a").mailbox_id
    first = node.write(deleting(gone))
    assert names(node) == ["a/x"]
    assert node.write(deleting(gone)) == first, "a second delete does nothing"
    with pytest.raises(FolderNotFoundError):
        node.write(deleting(C))
    with pytest.raises(FolderNotFoundError):
        node.write(deleting(A, user="bob"))


def test_deleted_folder_with_new_mail_stays_visible(node: MemoryNode) -> None:
    node.write(creating("a", A))
    kept = folder(node, "a")
    node.write(deleting(A))
    node.write(saving(b"text", guid(1), kept.key(ALICE)))
    assert names(node) == ["a"]
    assert folder(node, "a") == kept
    assert queries.folder_name(node.connection, A) == "a"
    with pytest.raises(FolderExistsError):
        node.write(creating("a", B))
    node.write(expunging(1, key=kept.key(ALICE)))
    assert names(node) == []


def test_deleted_folder_with_mail_moves_with_its_parent(node: MemoryNode) -> None:
    node.write(creating("a/b", A))
    kept = key(node, "a/b")
    node.write_together([deleting(A), saving(b"text", guid(1), kept)])
    entries = len(node.log())
    node.write(renaming(A, "a/b"))
    assert len(node.log()) == entries
    node.write(renaming(folder(node, "a").mailbox_id, "z"))
    assert names(node) == ["z", "z/b"], "the deleted folder moves with its parent"
    node.write(expunging(1, key=kept))
    assert names(node) == ["z"]


def test_deleted_folder_with_mail_is_created_anew_under_a_new_name(node: MemoryNode) -> None:
    node.write(creating("a/b", A))
    node.write(creating("a/b/c", C))
    kept = key(node, "a/b")
    node.write_together([deleting(A), saving(b"text", guid(1), kept)])
    renamed = node.write(renaming(A, "z/y"))
    assert names(node) == ["a", "z", "z/y", "z/y/c"]
    assert folder(node, "z/y").mailbox_id not in {A, C}
    [stray] = stray_mail.strays(node.connection, ALICE)
    assert (stray.source, stray.destination) == (kept, key(node, "z/y"))
    assert node.write(renaming(A, "z/y")) == renamed, "a retry does nothing"
    with pytest.raises(FolderNotFoundError):
        node.write(renaming(A, "elsewhere"))


@pytest.mark.parametrize("is_renamed", [False, True])
def test_deleted_folder_with_mail_is_created_anew_for_folders_below_it(node: MemoryNode, *, is_renamed: bool) -> None:
    for name, mailbox_id in (("a/b", A), ("c", C)):
        node.write(creating(name, mailbox_id))
    kept = key(node, "a/b")
    node.write_together([deleting(A), saving(b"text", guid(1), kept)])
    node.write(renaming(C, "a/b/x") if is_renamed else creating("a/b/x/y", B))
    assert {"a/b", "a/b/x"} <= {*names(node)}
    assert folder(node, "a/b").mailbox_id not in {A, C}
    [stray] = stray_mail.strays(node.connection, ALICE)
    assert (stray.source, stray.destination) == (kept, key(node, "a/b"))


def test_job_sees_mail_of_earlier_jobs_in_its_batch(node: MemoryNode) -> None:
    node.write(creating("a", A))
    kept = key(node, "a")
    errors = node.write_together([deleting(A), saving(b"text", guid(1), kept), creating("a", B)])
    assert [type(error) for error in errors] == [type(None), type(None), FolderExistsError]
    assert node.write_together([expunging(1, key=kept), creating("a", B)]) == [None, None]
    assert folder(node, "a").mailbox_id == B


def test_living_folder_hides_a_deleted_one_of_its_name(node: MemoryNode) -> None:
    node.write(creating("a", A))
    old = key(node, "a")
    node.write(deleting(A))
    node.write(creating("a", B))
    node.write(saving(b"text", guid(1), old))
    assert folder(node, "a").mailbox_id == B


def test_subscription_does_not_need_a_folder(node: MemoryNode) -> None:
    assert node.write(subscribing("x")) == Dot("dc1.a", 1)
    assert node.write(subscribing("x")) == Dot("dc1.a", 1), "the head that already has the subscription"
    assert node.write(subscribing("y", subscribed=False)) == Dot("dc1.a", 1)
    node.write(subscribing("y"))
    node.write(subscribing("x", subscribed=False))
    assert queries.subscriptions(node.connection, ALICE) == {"y"}
    assert queries.subscriptions(node.connection, "bob") == frozenset()
    assert names(node) == []


def test_create_is_refused_when_no_uidvalidity_is_left() -> None:
    node = MemoryNode("dc1.a")  # without the check at the end: no history leads to this state
    node.write(creating("a", A))
    node.write(lambda tx: tx.connection.execute("UPDATE folder SET uidvalidity = ?", (UIDVALIDITY_MAX - 5,)))
    with pytest.raises(MailboxFullError, match="no UIDVALIDITY is left"):
        node.write(creating("b", B))
    node.write(deleting(A))


def test_uidvalidities_are_left_if_the_clock_is_far_ahead(node: MemoryNode) -> None:
    node.now_ms = 1 << 50
    node.write(creating("a", A))
    node.write(creating("b", B))
    assert folder(node, "b").uidvalidity < UIDVALIDITY_MAX


def test_numbers_of_folders_and_subscriptions_are_limited() -> None:
    node = MemoryNode("dc1.a", limits=LimitsConfig(imap_folders_per_user=3))
    node.write(creating("a/b", A))
    for refused in (creating("c/d", C), renaming(A, "c/d/e")):
        with pytest.raises(MailboxFullError, match="3 folders"):
            node.write(refused)
    node.write(creating("c", C))
    node.write(deleting(A))
    node.write(creating("d", B))
    for name in "abc":
        node.write(subscribing(name))
    with pytest.raises(MailboxFullError, match="3 subscriptions"):
        node.write(subscribing("d"))
    node.write(subscribing("a", subscribed=False))
    node.write(subscribing("d"))


STEPS_AT_ONCE = 100
"""Steps of SQLite's virtual machine from one call of a progress handler to the next."""
STEPS_FOR_EACH_OTHER = 5
"""Limit of the steps that a change may take for each folder that it does not change: to count them takes a few."""


def steps_of(node: MemoryNode, *jobs: Callable[[], object]) -> int:
    """Do jobs, and return how many steps of SQLite each takes on average."""
    calls: list[None] = []
    node.connection.set_progress_handler(lambda: calls.append(None), STEPS_AT_ONCE)
    for job in jobs:
        job()
    node.connection.set_progress_handler(None, 0)
    return len(calls) * STEPS_AT_ONCE // len(jobs)


def test_changes_of_folders_do_not_read_all_others(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(creating("old", A))
    node.write(saving(b"text", guid(1), key(node, "old")))
    node.write(deleting(A))
    seen = 0

    def work(first: int) -> dict[str, int]:
        nonlocal seen
        numbers = range(first, first + 10)
        kinds: dict[str, list[Job[Dot] | Job[Dot | None]]] = {
            "create": [creating(f"box {number}", guid(number)) for number in numbers],
            "rename": [renaming(guid(number), f"new {number}") for number in numbers],
            "keep a UIDVALIDITY": [keeping(guid(number), 10_000_000 + number) for number in numbers],
        }
        steps = {kind: steps_of(node, *(partial(node.write, job) for job in jobs)) for kind, jobs in kinds.items()}
        steps["look for stray mail"] = steps_of(node, partial(stray_mail.strays, node.connection, ALICE))
        entries, seen = node.log()[seen:], len(node.log())
        return steps | {"receive": steps_of(other, *(partial(other.take, entry) for entry in entries))}

    few = work(first=1)
    for number in range(100, 600):
        node.write(creating(f"box {number}", guid(number)))
        node.write(keeping(guid(number), 10_000_000 + number))
    for entry in node.log()[seen:]:
        other.take(entry)
    seen = len(node.log())
    many = work(first=1000)
    more = {kind: (steps - few[kind]) / 500 for kind, steps in many.items()}
    assert max(more.values()) < STEPS_FOR_EACH_OTHER, more
