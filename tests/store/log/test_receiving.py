from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import HistoryError
from replicator.mail.view import SEEN
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.log.apply import receive
from resync.entry import (
    NOWHERE,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    anchor,
    tree_id,
)
from resync.folder_tree import TreeState
from resync.row import Placement, Row
from resync.state import ContradictionError
from tests.store import consistency
from tests.store.branching import with_histories
from tests.store.harness import (
    ALICE,
    INBOX,
    annotating,
    creating,
    deleting,
    expunging,
    flagging,
    guid,
    saving,
    subscribing,
)
from tests.store.memory_node import MemoryNode

A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))
BIG = 1 << 63


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc9.a")
    yield node
    consistency.check(node.connection)


def send_log(source: MemoryNode, *targets: MemoryNode) -> None:
    for target in targets:
        for logged in source.log():
            target.take(logged)


def take_turns(count: int) -> list[MemoryNode]:
    """Return two nodes that took turns at one mailbox, two saves a turn, and have all entries."""
    nodes = [MemoryNode(f"dc{number}.a") for number in (1, 2)]
    for turn in range(count):
        writer, other = nodes[turn % 2], nodes[1 - turn % 2]
        position = queries.log_end(writer.connection)
        for half in (0, 1):
            writer.write(saving(b"text %d %d" % (turn, half), guid(2 * turn + half)))
        for logged in writer.log(position):
            other.take(logged)
    return nodes


def of_origin(source: MemoryNode, origin: str) -> list[Entry]:
    return [logged.entry for logged in source.log() if logged.entry.dot.origin == origin]


def test_the_log_gives_another_node_the_same_state(node: MemoryNode) -> None:
    source = MemoryNode("dc1.a")
    source.write(creating("a/b", A))
    for number in (1, 2, 3):
        source.write(saving(b"text", guid(number)))
    source.write(flagging(1, 2, added=[SEEN]))
    source.write(expunging(2))
    send_log(source, node)
    assert node.digests() == source.digests()
    assert len(node.digests()) == 2


def test_known_entries_and_those_after_a_gap_are_ignored(node: MemoryNode) -> None:
    source = MemoryNode("dc1.a")
    for number in (1, 2, 3):
        source.write(saving(b"text", guid(number)))
    first, second, third = source.log()
    for logged in (third, second, first, first, third):
        node.take(logged)
    assert queries.log_context(node.connection) == {"dc1.a": 1}
    send_log(source, node)
    assert node.digests() == source.digests()


def test_entries_wait_for_their_predecessors(node: MemoryNode) -> None:
    first, second = take_turns(5)
    assert first.digests() == second.digests()
    late, early = of_origin(first, "dc1.a"), of_origin(first, "dc2.a")
    bodies = {logged.entry.dot: [body.message for body in logged.bodies.values()] for logged in first.log()}
    for entry in early:
        node.receive(entry, bodies[entry.dot])
        assert not node.applied(entry.dot)
    assert node.digests() == {}
    assert queries.log_counts(node.connection) == (4, 4)
    for entry, left in zip(late, [4, 2, 2, 0, 0, 0], strict=True):
        node.receive(entry, bodies[entry.dot])
        assert queries.log_counts(node.connection)[1] == left
    assert node.digests() == first.digests()


def test_view_gets_changes_of_waiting_entries_in_order(node: MemoryNode) -> None:
    first, _ = take_turns(2)
    for origin in ("dc2.a", "dc1.a"):
        for logged in first.log():
            if logged.entry.dot.origin == origin:
                node.take(logged)
    assert [change.modseq for commit in node.commits for change in commit.changes] == [1, 2, 3, 4]
    assert [entry.modseq for commit in node.commits for entry in commit.applied] == [1, 2, 3, 4]


def test_entries_of_another_branch_wait(node: MemoryNode) -> None:
    first, second = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    first.write(saving(b"one", guid(1)))
    second.write(saving(b"two", guid(2)))
    send_log(first, node)
    before = node.digests()
    send_log(second, node)
    assert node.digests() == before
    assert queries.log_counts(node.connection) == (2, 1)


def test_bodies_that_the_entry_does_not_name_are_not_stored(node: MemoryNode) -> None:
    source = MemoryNode("dc1.a")
    source.write(saving(b"text", guid(1)))
    node.receive(source.log()[0].entry, [b"another", b"text"])
    assert node.log()[0].bodies == source.log()[0].bodies
    assert [logged.size_bytes for commit in node.commits for logged in commit.logged] == [node.log()[0].size_bytes]


# ---- invalid entries -------------------------------------------------------------------------------------

HASH = StoredBody.of(b"evil").content_hash


def mail_add(uid: int, number: int = 99) -> MailAdd:
    return MailAdd(uid, guid(number), 1, (), 4, HASH, copied=False)


def entry_on(node: MemoryNode, chain_id: bytes, *changes: Change, origin: str = "evil.x") -> Entry:
    """Return an entry of a hostile node on top of a chain as `node` shows it."""
    chain = next(chain for chain in queries.chains_of(node.connection, None) if chain.id == chain_id)
    predecessors = (chain.head,) if chain.head else ()
    return with_histories(
        node.connection,
        Entry(
            Dot(origin, 1), predecessors, 1 << 36, chain.highestmodseq + 1, chain.user, chain_id, chain.uidvalidity,
            changes,
        ),
    )  # fmt: skip


def populated() -> MemoryNode:
    """Return a node with UIDs 1, 2 and 4, a folder a, and a deleted folder b."""
    node = MemoryNode("dc1.a")
    for number in (1, 2, 3, 4):
        node.write(saving(b"text", guid(number)))
    node.write(expunging(3))
    node.write(creating("a", A))
    node.write(creating("b", B))
    node.write(deleting(B))
    return node


MAILBOX, TREE = INBOX.mailbox_id, tree_id(ALICE)

VALID: dict[str, tuple[bytes, Change]] = {
    "add": (MAILBOX, mail_add(5)),
    "add what was expunged": (MAILBOX, mail_add(5, 3)),
    "delete": (MAILBOX, MailDel(UidSet.of([1, 2, 4]))),
    "flag": (MAILBOX, FlagAdd(UidSet.of([1]), (SEEN,))),
    "clear": (MAILBOX, FlagDel(UidSet.of([4]), (SEEN,))),
    "create": (TREE, FolderCreate(C, "c", 5000)),
    "create what was deleted": (TREE, FolderCreate(C, "b", 5000)),
    "rename": (TREE, FolderRename(A, "b")),
    "rename a deleted folder": (TREE, FolderRename(B, "a")),
    "delete a folder": (TREE, FolderDelete(A)),
    "subscribe": (TREE, FolderSubscribe("z", subscribed=True)),
    "annotate": (TREE, FolderAnnotate(A, (("/private/comment", b"x"), ("/shared/comment", None)))),
    "annotate the account": (TREE, FolderAnnotate(NOWHERE, (("/private/comment", b"x"),))),
}

CONTRADICTORY: dict[str, tuple[bytes, tuple[Change, ...]]] = {
    "UID below UIDNEXT": (MAILBOX, (mail_add(4),)),
    "UID of a message expunged": (MAILBOX, (mail_add(3),)),
    "UID above UIDNEXT": (MAILBOX, (mail_add(50),)),
    "UIDs descend": (MAILBOX, (mail_add(6), mail_add(5, 98))),
    "GUID that is there": (MAILBOX, (mail_add(5, 1),)),
    "GUID twice": (MAILBOX, (mail_add(5), mail_add(6))),
    "delete what is gone": (MAILBOX, (MailDel(UidSet.of([3])),)),
    "delete everything": (MAILBOX, (MailDel(UidSet.of_ranges([(1, UID_MAX)])),)),
    "flag what is gone": (MAILBOX, (FlagAdd(UidSet.of([2, 3]), (SEEN,)),)),
    "clear what never was": (MAILBOX, (FlagDel(UidSet.of([77]), (SEEN,)),)),
    "valid, then not": (MAILBOX, (MailDel(UidSet.of([1])), mail_add(1))),
    "folder id taken": (TREE, (FolderCreate(A, "z", 5000),)),
    "folder id taken by a deleted one": (TREE, (FolderCreate(B, "z", 5000),)),
    "folder id twice": (TREE, (FolderCreate(C, "y", 5000), FolderDelete(C), FolderCreate(C, "z", 5001))),
    "folder name taken": (TREE, (FolderCreate(C, "a", 5000),)),
    "UIDVALIDITY given before": (TREE, (FolderCreate(C, "c", 1001),)),
    "rename of a stranger": (TREE, (FolderRename(C, "c"),)),
    "delete of a stranger": (TREE, (FolderDelete(C),)),
    "annotation of a stranger": (TREE, (FolderAnnotate(C, (("/private/comment", b"x"),)),)),
    "annotation of a deleted folder": (TREE, (FolderAnnotate(B, (("/private/comment", b"x"),)),)),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_entries_are_applied(name: str) -> None:
    node = populated()
    chain_id, change = VALID[name]
    entry = entry_on(node, chain_id, change)
    node.receive(entry, [b"evil"])
    assert node.applied(entry.dot)
    consistency.check(node.connection)


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_entry_that_contradicts_its_head_waits(name: str) -> None:
    chain_id, changes = CONTRADICTORY[name]
    assert_waits(populated(), lambda node: entry_on(node, chain_id, *changes))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda entry: replace(entry, modseq=entry.modseq - 1),
        lambda entry: replace(entry, user="bob"),
        lambda entry: replace(entry, histories=(bytes(16),)),
        lambda entry: replace(entry, histories=(anchor(entry.predecessors[0]),)),
        lambda entry: replace(entry, histories=None),
    ],
    ids=["modseq", "user", "history", "history of an earlier version", "no history"],
)
def test_entry_with_numbers_of_another_head_waits(wrong: Callable[[Entry], Entry]) -> None:
    assert_waits(populated(), lambda node: wrong(entry_on(node, MAILBOX, mail_add(5))))


def assert_waits(node: MemoryNode, make: Callable[[MemoryNode], Entry]) -> None:
    """Check that the entry changes nothing, and stops neither its batch, nor its origin, nor its mailbox."""
    entry = make(node)
    before = node.digests()
    other = replace(
        entry_on(node, MAILBOX, mail_add(1)),
        dot=Dot("evil.x", 2),
        predecessors=(),
        histories=(),
        modseq=1,
        mailbox_id=C,
        uidvalidity=9,
    )
    bodies = [StoredBody.of(b"evil")]
    errors = node.write_together([
        lambda tx: receive(tx, entry, bodies),
        lambda tx: receive(tx, other, bodies),
        saving(b"more", guid(50)),
    ])  # fmt: skip
    assert errors == [None, None, None]
    assert not node.applied(entry.dot)
    assert node.applied(other.dot)
    after = node.digests()
    assert set(after) - set(before) == {C}
    assert {chain for chain in before if before[chain] != after[chain]} == {MAILBOX}, (
        "only the node's own save changes it"
    )
    consistency.check(node.connection)


def test_contradictory_waiting_entry_does_not_harm_its_predecessor(node: MemoryNode) -> None:
    source = MemoryNode("dc1.a")
    source.write(saving(b"text", guid(1)))
    node.receive(entry_on(source, MAILBOX, mail_add(1)), [b"evil"])
    send_log(source, node)
    assert node.digests() == source.digests()
    assert queries.log_counts(node.connection) == (2, 1)


def merging(entry: Entry, *placements: Placement) -> Entry:
    """Return the entry as a merge that shows one message under these placements."""
    (dot, change), *also = placements
    row = Row(5, dot, change, guid(5), dot, 1, {}, 1, 4, HASH, tuple(also))
    merge = Merge(6, 0, (dot,), (row,), ())
    histories = (*(entry.histories or ()), bytes(16))
    return replace(entry, predecessors=(*entry.predecessors, Dot("x.a", 1)), changes=(merge,), histories=histories)


MALFORMED: dict[str, Callable[[Entry], Entry]] = {
    "own origin": lambda entry: replace(entry, dot=Dot("dc1.a", entry.dot.seq)),
    "three predecessors": lambda entry: replace(
        entry, predecessors=(*entry.predecessors, Dot("x.a", 1), Dot("x.a", 2))
    ),
    "a predecessor twice": lambda entry: replace(entry, predecessors=entry.predecessors * 2, histories=None),
    "a predecessor with its history twice": lambda entry: replace(
        entry, predecessors=entry.predecessors * 2, histories=(entry.histories or ()) * 2
    ),
    "two histories of one predecessor": lambda entry: replace(entry, histories=(bytes(16), bytes(16))),
    "short history": lambda entry: replace(entry, histories=(b"short",)),
    "time": lambda entry: replace(entry, time=BIG),
    "time zero": lambda entry: replace(entry, time=0),
    "modseq": lambda entry: replace(entry, modseq=BIG),
    "uidvalidity": lambda entry: replace(entry, uidvalidity=UID_MAX + 1),
    "uidvalidity negative": lambda entry: replace(entry, uidvalidity=-1),
    "nothing": lambda entry: replace(entry, changes=()),
    "id": lambda entry: replace(entry, mailbox_id=b"short"),
    "tree": lambda entry: replace(entry, changes=(FolderDelete(A),)),
    "mail in a tree": lambda entry: replace(entry, uidvalidity=0, mailbox_id=TREE),
    "tree of another": lambda entry: replace(entry, uidvalidity=0, mailbox_id=A, changes=(FolderDelete(A),)),
    "uid zero": lambda entry: replace(entry, changes=(mail_add(0),)),
    "uid without a next": lambda entry: replace(entry, changes=(mail_add(UID_MAX),)),
    "guid": lambda entry: replace(entry, changes=(mail_add(5)._replace(guid=b"short"),)),
    "hash": lambda entry: replace(entry, changes=(mail_add(5)._replace(content_hash=b"short"),)),
    "size": lambda entry: replace(entry, changes=(mail_add(5)._replace(size_bytes=BIG),)),
    "date": lambda entry: replace(entry, changes=(mail_add(5)._replace(received_ms=-BIG),)),
    "no uids": lambda entry: replace(entry, changes=(MailDel(UidSet()),)),
    "uids from zero": lambda entry: replace(entry, changes=(MailDel(UidSet(((0, 1),))),)),
    "uids above": lambda entry: replace(entry, changes=(MailDel(UidSet(((1, UID_MAX + 1),))),)),
    "placements out of order": lambda entry: merging(entry, (Dot("x.a", 2), 0), (Dot("x.a", 1), 0)),
    "a placement twice": lambda entry: merging(entry, (Dot("x.a", 1), 0), (Dot("x.a", 1), 0)),
    "another placement's number": lambda entry: merging(entry, (Dot("x.a", 1), 0), (Dot("x.a", BIG), 0)),
    "uids overlap": lambda entry: replace(entry, changes=(FlagAdd(UidSet(((1, 2), (2, 2))), (SEEN,)),)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_entry_is_refused_and_named(name: str) -> None:
    node = populated()
    seen = queries.log_context(node.connection)
    sound = entry_on(node, MAILBOX, mail_add(5))
    entry = MALFORMED[name](sound)
    if name == "own origin":
        entry = replace(entry, dot=Dot("dc1.a", seen["dc1.a"] + 1))
    jobs = [lambda tx: receive(tx, entry, []), saving(b"more", guid(50))]
    refused, neighbour = node.write_together(jobs)
    assert isinstance(refused, HistoryError)
    assert f"entry {entry.dot.seq} of {entry.dot.origin}" in str(refused)
    assert neighbour is None
    assert queries.log_context(node.connection) == {"dc1.a": seen["dc1.a"] + 1}
    consistency.check(node.connection)


CHANGES = st.lists(
    st.one_of(
        st.builds(mail_add, st.integers(1, 9), st.integers(1, 9)),
        st.builds(MailDel, st.sets(st.integers(1, 9), min_size=1).map(UidSet.of)),
        st.builds(FlagAdd, st.sets(st.integers(1, 9), min_size=1).map(UidSet.of), st.just((SEEN,))),
        st.builds(FlagDel, st.sets(st.integers(1, 9), min_size=1).map(UidSet.of), st.just((SEEN,))),
    ),
    min_size=1,
    max_size=3,
)
UIDVALIDITIES = [1000, 3047, 3048, 5095, 5096, 1 << 30]  # folders have 1000 and 2024, in one test 3048 and 4072, too
TREE_CHANGES = st.lists(
    st.one_of(
        st.builds(FolderCreate, st.sampled_from([A, B, C]), st.sampled_from("abc"), st.sampled_from(UIDVALIDITIES)),
        st.builds(FolderRename, st.sampled_from([A, B, C]), st.sampled_from("abc")),
        st.builds(FolderDelete, st.sampled_from([A, B, C])),
        st.builds(FolderSubscribe, st.sampled_from("ab"), st.booleans()),
        st.builds(
            FolderAnnotate,
            st.sampled_from([NOWHERE, A, B, C]),
            st.sampled_from([None, b"x"]).map(lambda value: (("/private/comment", value),)),
        ),
    ),
    min_size=1,
    max_size=3,
)


@given(st.one_of(st.tuples(st.just(MAILBOX), CHANGES), st.tuples(st.just(TREE), TREE_CHANGES)))
def test_any_well_formed_entry_leaves_the_store_consistent(drawn: tuple[bytes, list[Change]]) -> None:
    node = populated()
    node.write(subscribing("a"))
    node.receive(entry_on(node, drawn[0], *drawn[1]), [b"evil"])
    node.write(saving(b"more", guid(50)))
    consistency.check(node.connection)
    node.connection.close()


def test_part_of_a_tree_tells_whether_changes_fit_as_the_whole_does() -> None:
    node = populated()
    node.write(creating("c", D))
    node.write(creating("z", b"z" * 16))  # so that no folder that changes may name has the highest UIDVALIDITY
    node.write(annotating(A, comment=b"x"))
    chain = chains.load(node.connection, TREE)
    assert chain is not None
    ids = (A, B, C)
    singly: list[Change] = [
        *(FolderCreate(*values) for values in product(ids, "abcd", UIDVALIDITIES)),
        *(FolderRename(*values) for values in product(ids, "abcd")),
        *map(FolderDelete, ids),
        *(FolderAnnotate(home, (("/private/comment", b"y"),)) for home in (NOWHERE, *ids)),
        FolderSubscribe("a", subscribed=True),
    ]
    for changes in [*((one,) for one in singly), *permutations(singly[::7], 2)]:
        entry = entry_on(node, TREE, *changes)
        whole = queries.tree_state(node.connection, ALICE, chain)
        part = queries.tree_part(node.connection, ALICE, chain, changes)
        assert why_not(part, entry) == why_not(whole, entry), changes


def why_not(tree: TreeState, entry: Entry) -> str | None:
    try:
        tree.apply(entry)
    except ContradictionError as error:
        return str(error)
    return None
