r"""Numbers of mailboxes that come from another server: UIDs, UIDNEXT, HIGHESTMODSEQ and UIDVALIDITY are kept."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from protocol.values import UID_MAX, Dot
from replicator.config import LimitsConfig
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, MailboxFullError
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import forks
from replicator.store.log.sequencing import folder_sequencer, numbering, sequencer
from replicator.store.log.sequencing.folder_sequencer import REMOVED_FACTOR
from replicator.store.log.sequencing.sequencer import NewMail, NewUid
from resync.entry import NOWHERE, FolderAnnotate, MailAdd, Raise
from resync.folder_tree import UIDVALIDITY_MAX, UIDVALIDITY_STEP
from resync.node_annotations import FOREIGN_GUID, KEPT_UIDVALIDITY, UIDVALIDITY_HOLDER, UNFINISHED_SYNC, held_by
from resync.state import MERGE_HEADROOM, RAISED_MODSEQ_MAX, RISEN_MAX
from tests.store import consistency
from tests.store.branching import TREE
from tests.store.harness import (
    ALICE,
    INBOX,
    Job,
    annotating,
    creating,
    deleting,
    expunging,
    flagging,
    guid,
    keeping,
    renaming,
    saving,
)
from tests.store.memory_node import MemoryNode

A, B = b"a" * 16, b"b" * 16
KEPT = 12345


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    node = MemoryNode("dc1.a")
    yield node
    consistency.check(node.connection)


def bringing(**wanted: int | None) -> Job[sequencer.Placed]:
    """Save messages, each named by its text, under these UIDs of another server."""
    mails = [
        NewMail(guid(sum(name.encode())), 1_000, (), StoredBody.of(name.encode()), uid) for name, uid in wanted.items()
    ]
    return lambda tx: sequencer.save_all(tx, INBOX, mails)


def raising(uidnext: int, modseq: int = 0) -> Job[Dot | None]:
    return lambda tx: sequencer.raise_numbers(tx, INBOX, uidnext, modseq)


def numbers(node: MemoryNode) -> tuple[int, int]:
    chain = chains.load(node.connection, INBOX.mailbox_id)
    assert chain is not None
    return chain.uidnext, chain.highestmodseq


def uidvalidity(node: MemoryNode, name: str) -> int:
    return queries.folders(node.connection, ALICE)[name].uidvalidity


def entry_of(node: MemoryNode, dot: Dot | None) -> tuple[object, ...]:
    entry = None if dot is None else queries.entry_at(node.connection, dot)
    assert entry is not None
    return entry.changes


def join(node: MemoryNode, other: MemoryNode, key: MailboxKey) -> None:
    """Let both have both logs, `node` merge what they show of a mailbox or a tree, and `other` take that in."""
    for source, target in ((other, node), (node, other)):
        for item in source.log():
            target.take(item)
        for head in forks.branch_heads(node.connection, key.mailbox_id):
            branch = forks.replay_branch(node.connection, head)
            assert branch is not None
            node.write(partial(forks.merge_branch, key=key, branch=branch))
    for item in node.log():
        other.take(item)
    assert node.digests() == other.digests()
    consistency.check(other.connection)


# ---- UIDs


def test_messages_get_the_uids_that_they_have_elsewhere(node: MemoryNode) -> None:
    placed = node.write(bringing(a=3, b=4, c=9, d=None))
    assert placed.uids == (3, 4, 9, 10)
    kinds = [type(change) for change in entry_of(node, placed.dot)]
    assert kinds == [Raise, MailAdd, MailAdd, Raise, MailAdd, MailAdd], "gaps alone are raised over"
    assert numbers(node) == (11, 1)


def test_uid_below_uidnext_is_not_given_again(node: MemoryNode) -> None:
    node.write(bringing(a=5))
    node.write(expunging(5))
    assert node.write(bringing(b=5, c=2, d=8)).uids == (6, 7, 8)


def test_message_that_is_there_keeps_its_uid_whatever_is_wanted(node: MemoryNode) -> None:
    node.write(bringing(a=5))
    assert node.write(bringing(a=9, b=9)).uids == (5, 9)


@pytest.mark.parametrize("uid", [UID_MAX - MERGE_HEADROOM + 1, UID_MAX])
def test_uid_that_leaves_too_few_is_not_taken(node: MemoryNode, uid: int) -> None:
    assert node.write(bringing(a=uid)).uids == (1,)


# ---- UIDNEXT and HIGHESTMODSEQ


def test_numbers_are_raised_and_never_lowered(node: MemoryNode) -> None:
    node.write(saving(b"text", guid(1)))
    first = node.write(raising(20, 500))
    assert numbers(node) == (20, 500)
    assert node.write(raising(20, 500)) == node.write(raising(3, 0)) == first, "the head that has them already"
    node.write(raising(3, 600))
    assert numbers(node) == (20, 600)
    node.write(raising(30))
    assert numbers(node) == (30, 601), "each entry has a MODSEQ of its own"
    assert node.write(saving(b"other", guid(2))).uids == (30,)


@pytest.mark.parametrize(("uidnext", "modseq"), [(UID_MAX - MERGE_HEADROOM + 1, 0), (1, RAISED_MODSEQ_MAX + 1)])
def test_numbers_that_leave_no_room_are_refused(node: MemoryNode, uidnext: int, modseq: int) -> None:
    with pytest.raises(MailboxFullError, match="cannot be raised so far"):
        node.write(raising(uidnext, modseq))


def test_other_nodes_take_in_raised_numbers(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(bringing(a=3, b=7))
    node.write(raising(40, 900))
    for item in node.log():
        other.take(item)
    assert numbers(other) == numbers(node) == (40, 900)
    consistency.check(other.connection)


@pytest.mark.parametrize(
    ("uidnext", "modseq"), [(2, 3), (UID_MAX - MERGE_HEADROOM + 1, 3), (9, 2), (9, RAISED_MODSEQ_MAX + 1)]
)
def test_impossible_raise_waits_like_another_branch(node: MemoryNode, uidnext: int, modseq: int) -> None:
    other = MemoryNode("dc2.a")
    node.write(bringing(a=2))
    node.write(raising(3, 2))
    node.write(raising(9, 3))
    first, second, last = node.log()
    for item in (first, second):
        other.take(item)
    other.take(replace(last, entry=replace(last.entry, modseq=modseq, changes=(Raise(uidnext),))))
    assert numbers(other) == (3, 2)
    assert other.connection.execute("SELECT COUNT(*) FROM waiting").fetchone() == (1,)


def test_sides_that_have_raised_apart_become_equal(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(saving(b"text", guid(1)))
    for item in node.log():
        other.take(item)
    node.write(bringing(b=10))
    other.write(bringing(c=5, d=30))
    other.write(raising(50, 70))
    join(node, other, INBOX)
    uids = [row.uid for row in queries.mailbox_rows(node.connection, INBOX.mailbox_id)]
    assert uids == [1, 30, 50, 51], "mail at a UID that the other side had passed gets a new one"
    assert numbers(node) == numbers(other) == (52, 71)


# ---- other UIDs


def renumbering(**wanted: tuple[int, int]) -> Job[sequencer.Placed]:
    """Give each message, named by its text, another UID in place of its own."""
    moves = [NewUid(old, guid(sum(name.encode())), new) for name, (old, new) in wanted.items()]
    return lambda tx: sequencer.renumber(tx, INBOX, moves)


def uids_by_text(node: MemoryNode) -> dict[str, int]:
    names = {guid(ord(name)): name for name in "abcdef"}
    return {names[row.guid]: row.uid for row in queries.mailbox_rows(node.connection, INBOX.mailbox_id)}


def test_messages_get_other_uids_and_stay_the_same_messages(node: MemoryNode) -> None:
    node.write(bringing(a=1, b=2, c=3))
    node.write(flagging(2, added=["\\Seen"]))
    placed = node.write(renumbering(a=(1, 7), b=(2, 8)))
    assert placed.uids == (7, 8)
    assert uids_by_text(node) == {"c": 3, "a": 7, "b": 8}
    flags = {row.uid: row.visible_flags() for row in queries.mailbox_rows(node.connection, INBOX.mailbox_id)}
    assert flags == {3: frozenset(), 7: frozenset(), 8: {"\\Seen"}}
    assert node.connection.execute("SELECT COUNT(*) FROM expunged").fetchone() == (0,), "nothing is to be undeleted"
    assert node.write(renumbering(a=(1, 7), b=(2, 8))) == replace(placed, dot=placed.dot), (
        "a repeated request changes nothing"
    )


def test_message_that_is_gone_is_not_renumbered(node: MemoryNode) -> None:
    node.write(bringing(a=1, b=2))
    node.write(expunging(1))
    assert node.write(renumbering(a=(1, 7), b=(2, 2))).uids == (2,)
    assert node.write(renumbering(a=(1, 7), b=(2, 1))).uids == (3,), "a UID below UIDNEXT cannot be given"
    assert node.write(renumbering(a=(1, 7), b=(2, 1))).uids == (3,), "a repeated request changes nothing"


def test_other_nodes_take_in_other_uids(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(bringing(a=1, b=2))
    node.write(renumbering(a=(1, 7)))
    for item in node.log():
        other.take(item)
    assert uids_by_text(other) == {"b": 2, "a": 7}
    consistency.check(other.connection)


def test_message_renumbered_here_and_changed_there_stays_once(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(bringing(a=1, b=2, c=3))
    for item in node.log():
        other.take(item)
    node.write(renumbering(a=(1, 7), b=(2, 8)))
    other.write(expunging(1))
    other.write(expunging(2))
    join(node, other, INBOX)
    assert uids_by_text(node) == {"c": 3, "a": 7, "b": 8}


def test_entry_may_add_again_only_what_it_has_removed_before(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(bringing(a=1, b=2))
    node.write(renumbering(a=(1, 7)))
    first, second = node.log()
    removal, *rest = second.entry.changes
    other.take(first)
    other.take(replace(second, entry=replace(second.entry, changes=(*rest, removal))))
    assert uids_by_text(other) == {"a": 1, "b": 2}, "it waits like another branch"


# ---- UIDVALIDITY


def test_folder_without_mail_gets_the_uidvalidity_of_another_server(node: MemoryNode) -> None:
    node.write(creating("a", A))
    own = uidvalidity(node, "a")
    kept = node.write(keeping(A, KEPT))
    assert uidvalidity(node, "a") == KEPT != own
    assert queries.uidvalidities(node.connection, A) == (KEPT, own)
    assert queries.folders(node.connection, ALICE)["a"].key(ALICE).uidvalidity == own
    assert node.write(keeping(A, KEPT)) == kept, "the head that has it already"
    assert A in node.commits[-2].retired, "sessions that know the other UIDVALIDITY end"
    node.write(renaming(A, "b"))
    assert uidvalidity(node, "b") == KEPT
    node.write(keeping(A, None))
    assert uidvalidity(node, "b") == own


def test_deleted_folder_that_still_has_mail_shows_its_own_uidvalidity(node: MemoryNode) -> None:
    node.write(creating("a", INBOX.mailbox_id))
    own = uidvalidity(node, "a")
    node.write(keeping(INBOX.mailbox_id, KEPT))
    node.write(saving(b"text", guid(1)))
    node.commits.clear()
    node.write(deleting(INBOX.mailbox_id))
    assert uidvalidity(node, "a") == own
    assert INBOX.mailbox_id in node.commits[-1].retired, "sessions that know the other UIDVALIDITY end"


def test_clients_see_nothing_of_it_among_their_annotations(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(keeping(A, KEPT))
    node.write(annotating(A, comment=b"x"))
    assert queries.annotations_of(node.connection, ALICE, A) == {"/private/comment": b"x"}
    assert queries.annotations_of(node.connection, ALICE, NOWHERE) == {}
    assert [queries.count_annotations(node.connection, ALICE, home) for home in (A, NOWHERE)] == [1, 0]


def test_uidvalidity_of_another_folder_is_refused_even_after_its_deletion(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(creating("b", B))
    own = uidvalidity(node, "a")
    node.write(keeping(A, KEPT))
    for taken in (KEPT, own, own + 5, uidvalidity(node, "b") + 5):
        with pytest.raises(FolderExistsError, match="a folder of the user has"):
            node.write(keeping(B, taken))
    node.write(deleting(A))
    with pytest.raises(FolderExistsError, match="a folder of the user has"):
        node.write(keeping(B, KEPT))
    node.write(keeping(B, KEPT + 1))
    assert uidvalidity(node, "b") == KEPT + 1


@pytest.mark.parametrize("distance", [0, 5, RISEN_MAX])
def test_new_folder_cannot_come_to_have_a_kept_uidvalidity(node: MemoryNode, distance: int) -> None:
    node.write(creating("a", A))
    kept = uidvalidity(node, "a") + UIDVALIDITY_STEP + distance
    node.write(keeping(A, kept))
    node.write(creating("b", B))
    assert not uidvalidity(node, "b") <= kept <= uidvalidity(node, "b") + RISEN_MAX


@pytest.mark.parametrize("distance", [0, 5, RISEN_MAX])
def test_merge_takes_a_uidvalidity_that_another_folder_keeps_from_a_folder(node: MemoryNode, distance: int) -> None:
    other = MemoryNode("dc2.a", now_ms=node.now_ms + 5_000_000)
    node.write(creating("a", A))
    other.write(creating("b", B))
    kept = uidvalidity(other, "b") + distance
    node.write(keeping(A, kept))
    join(node, other, TREE)
    assert uidvalidity(node, "a") == kept
    assert not uidvalidity(node, "b") <= kept <= uidvalidity(node, "b") + RISEN_MAX


def test_own_uidvalidity_may_be_kept_but_none_that_merges_may_lead_to(node: MemoryNode) -> None:
    node.write(creating("a", A))
    own = uidvalidity(node, "a")
    node.write(keeping(A, own))
    with pytest.raises(FolderExistsError, match="may come to have"):
        node.write(keeping(A, own + 1))


def test_folder_that_has_had_mail_keeps_its_own(node: MemoryNode) -> None:
    node.write(creating("a", INBOX.mailbox_id))
    node.write(saving(b"text", guid(1)))
    node.write(expunging(1))
    with pytest.raises(FolderExistsError, match="has had mail"):
        node.write(keeping(INBOX.mailbox_id, KEPT))


@pytest.mark.parametrize("value", [b"0", b"-1", b"", b"007", b"1 ", b"x", b"%d" % (UIDVALIDITY_MAX + 1), b"9" * 5000])
def test_what_is_no_uidvalidity_is_refused(node: MemoryNode, value: bytes) -> None:
    node.write(creating("a", A))
    with pytest.raises(InvalidNameError, match="a UIDVALIDITY is a number"):
        node.write(keeping(A, value))


def test_unknown_folders_and_the_account_have_none(node: MemoryNode) -> None:
    node.write(creating("a", A))
    with pytest.raises(FolderNotFoundError):
        node.write(keeping(B, KEPT))
    with pytest.raises(InvalidNameError, match="belong to the nodes"):
        node.write(keeping(NOWHERE, KEPT))
    with pytest.raises(InvalidNameError, match="belong to the nodes"):
        node.write(lambda tx: folder_sequencer.annotate(tx, ALICE, A, [(f"{UIDVALIDITY_HOLDER}1", b"x")]))


def test_folders_that_a_merge_unites_get_a_new_uidvalidity(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a")
    node.write(creating("a", A))
    node.write(keeping(A, KEPT))
    other.write(creating("a", B))
    other.write(keeping(B, KEPT))
    join(node, other, TREE)
    assert uidvalidity(node, "a") == uidvalidity(other, "a") != KEPT


def test_of_two_folders_with_one_uidvalidity_the_last_has_it_after_a_merge(node: MemoryNode) -> None:
    other = MemoryNode("dc2.a", now_ms=node.now_ms + 5_000_000)
    node.write(creating("a", A))
    node.write(keeping(A, KEPT))
    other.write(creating("b", B))
    other.write(keeping(B, KEPT))
    join(node, other, TREE)
    for one in (node, other):
        assert uidvalidity(one, "b") == KEPT != uidvalidity(one, "a")
        assert any(A in commit.retired for commit in one.commits) or one is other, "sessions of the loser end"


# ---- GUIDs of Dovecots


def knowing(guid_text: str, mailbox_id: bytes) -> Job[Dot | None]:
    value = mailbox_id.hex().encode()
    return lambda tx: folder_sequencer.annotate(tx, ALICE, NOWHERE, [(FOREIGN_GUID + guid_text, value)])


def guids(node: MemoryNode) -> dict[str, bytes]:
    return {one.name: one.guid for one in queries.tree_changes(node.connection, ALICE).folders}


def test_folder_is_known_by_the_guid_that_it_was_given_last_even_when_it_is_deleted(node: MemoryNode) -> None:
    node.write(creating("a", A))
    node.write(creating("b", B))
    first = node.write(knowing("11" * 16, A))
    assert node.write(knowing("11" * 16, A)) == first, "the head that has it already"
    node.now_ms += 1000
    node.write(knowing("22" * 16, A))
    assert guids(node) == {"a": bytes.fromhex("22" * 16), "b": B}
    node.now_ms += 1000
    node.write(knowing("22" * 16, B))
    node.write(deleting(B))
    assert guids(node) == {"a": bytes.fromhex("11" * 16), "b": bytes.fromhex("22" * 16)}
    assert queries.annotations_of(node.connection, ALICE, NOWHERE) == {}


def test_a_folder_whose_id_another_one_has_as_a_guid_gets_another_guid(node: MemoryNode) -> None:
    """A Dovecot has taken the folder to a node on the other side of a cut, under another name."""
    node.write(creating("a", A))
    node.write(creating("b", B))
    node.write(knowing(A.hex(), B))
    found = guids(node)
    assert found["b"] == A
    assert found["a"] not in {A, B}
    node.write(deleting(B))
    assert guids(node) == found


def test_a_deleted_folder_that_has_mail_gets_a_guid_as_long_as_clients_see_it(node: MemoryNode) -> None:
    node.write(creating("a", INBOX.mailbox_id))
    node.write(saving(b"1", guid(1)))
    node.write(deleting(INBOX.mailbox_id))
    node.write(knowing("11" * 16, INBOX.mailbox_id))
    [folder] = queries.tree_changes(node.connection, ALICE).folders
    assert (folder.deleted, folder.guid) == (False, bytes.fromhex("11" * 16))
    node.write(expunging(1))
    with pytest.raises(FolderNotFoundError):
        node.write(knowing("22" * 16, INBOX.mailbox_id))


@pytest.mark.parametrize("last", [A, B])
def test_folders_that_become_one_are_known_by_the_last_guid_of_both(node: MemoryNode, last: bytes) -> None:
    """No user has deleted the folder that is gone, so Dovecot is not told that it is."""
    other = MemoryNode("dc2.a", now_ms=node.now_ms)
    node.write(creating("a", A))
    other.write(creating("a", B))
    for at, (one, folder) in enumerate([(node, A), (other, B)]):
        one.now_ms += 1000 * (1 + (folder == last))
        one.write(knowing(f"{at}{at}" * 16, folder))
    join(node, other, TREE)
    for one in (node, other):
        [shown] = [folder for folder in queries.tree_changes(one.connection, ALICE).folders if folder.name == "a"]
        assert (shown.mailbox_id, shown.deleted) == (A, False)
        assert shown.guid.hex() == ("00" if last == A else "11") * 16
        assert shown.inherited == (last == B)
    found = guids(node)["a"]
    node.write(knowing(found.hex(), A))
    node.write(renaming(A, "b"))
    assert guids(node)["b"] == found


@pytest.mark.parametrize("guid_text", ["", "11", "GG" * 16, "AA" * 16, "11" * 17])
def test_what_is_no_guid_is_refused(node: MemoryNode, guid_text: str) -> None:
    node.write(creating("a", A))
    with pytest.raises(InvalidNameError):
        node.write(knowing(guid_text, A))


def test_guid_stands_for_folders_of_the_user_alone(node: MemoryNode) -> None:
    node.write(creating("a", A, "bob"))
    for unknown in (A, B):
        with pytest.raises(FolderNotFoundError):
            node.write(knowing("11" * 16, unknown))


def test_names_of_other_servers_are_bounded(node: MemoryNode) -> None:
    node = MemoryNode("dc1.a", limits=replace(LimitsConfig(), imap_folders_per_user=2))
    node.write(creating("a", A))
    for number in range(2 * REMOVED_FACTOR):
        node.write(knowing(f"{number:032x}", A))
    with pytest.raises(MailboxFullError, match="too many names"):
        node.write(knowing("ff" * 16, A))


@pytest.mark.parametrize("value", [b"x", b"12345", b"0 0", held_by(A, 1)])
def test_holder_that_makes_no_sense_is_passed_over(node: MemoryNode, value: bytes) -> None:
    node.write(creating("a", A))
    own = uidvalidity(node, "a")
    node.write(partial(_annotate_as_a_faulty_node, value=value))
    assert uidvalidity(node, "a") == own


def _annotate_as_a_faulty_node(tx: Transaction, value: bytes) -> None:
    kept = FolderAnnotate(A, ((KEPT_UIDVALIDITY, b"%d" % KEPT),))
    numbering.commit(tx, TREE, [kept, FolderAnnotate(NOWHERE, ((f"{UIDVALIDITY_HOLDER}{KEPT}", value),))])


# ---- syncs that have begun


def noting(name: str, value: bytes | None) -> Job[Dot | None]:
    return lambda tx: folder_sequencer.annotate(tx, ALICE, NOWHERE, [(UNFINISHED_SYNC + name, value)])


def test_sync_is_noted_until_it_has_ended_even_at_a_deleted_folder(node: MemoryNode) -> None:
    one, other = "11" * 16 + "/" + "aa" * 16, "11" * 16 + "/" + "bb" * 16
    begun = node.write(noting(one, b"7"))
    assert node.write(noting(one, b"7")) == begun, "the head that has it already"
    node.write(noting(other, b"4294967294"))
    node.write(noting("22" * 16 + "/" + "aa" * 16, b"3"))

    def noted() -> list[bytes]:
        return sorted(queries.values_below(node.connection, ALICE, NOWHERE, f"{UNFINISHED_SYNC}{'11' * 16}/"))

    assert noted() == [b"4294967294", b"7"]
    node.write(noting(one, None))
    assert noted() == [b"4294967294"]
    for name, value in ((one, b""), (one, b"-1"), (one, b"12345678901"), ("11" * 16, b"1"), (f"{one}/x", b"1")):
        with pytest.raises(InvalidNameError, match="a sync that has begun"):
            node.write(noting(name, value))
