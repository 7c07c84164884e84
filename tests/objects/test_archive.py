from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest

from protocol.values import Context, Dot
from replicator.runtime.objects import ObjectMissingError, ObjectStore
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home, checkpoint_name, state_of, write_mailbox, write_tree
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.checkpoints.manifest import Manifest, write_manifest
from replicator.store.db.entry_validation import NamedHead
from resync.entry import FolderState, SubscriptionState, tree_id
from resync.folder_tree import TreeState
from resync.row import Row
from resync.state import MailboxState
from tests.objects.contents import read

HOME = Home("mail", "dc1")
DOT = Dot("dc1.x", 9)
HISTORY = bytes(range(16))
HEAD = NamedHead("alice@example.org", b"m" * 16, 7, DOT, 5, 100 << 16)
TREE_HEAD = NamedHead("alice@example.org", tree_id("alice@example.org"), 0, DOT, 5, 100 << 16)
ROW = Row(1, DOT, 0, b"g" * 16, DOT, 5, {"\\Seen": (5 << 16, "dc1", True)}, 1000, 10, b"h" * 32)
MAILBOX = MailboxState(uidnext=9000, modseq=5, context={"dc1.x": 9}, rows={1: ROW}, risen=2)
TREE = TreeState(
    5,
    {"dc1.x": 9},
    {b"f" * 16: FolderState(b"f" * 16, HEAD.user, "Work", 1024, deleted=False, time=5, sid="dc1")},
    {"Work": SubscriptionState(HEAD.user, "Work", True, 5, "dc1")},  # noqa: FBT003
)


@pytest.fixture
def archive(store: ObjectStore) -> Archive:
    return Archive(store, HOME)


async def publish(archive: Archive, context: Context, heads: Iterable[NamedHead], now_ms: int) -> Manifest:
    made = await archive.next_manifest(context, now_ms)
    await archive.publish(made, write_manifest(made, heads))
    return made


def large() -> MailboxState:
    state = MailboxState(uidnext=9000, modseq=5, context={"dc1.x": 9})
    for uid in range(1, 5000):
        state.put(ROW._replace(uid=uid, guid=uid.to_bytes(16)))
    return state


@pytest.mark.parametrize("mailbox", [MAILBOX, large()], ids=["small", "large"])
async def test_another_node_reads_saved_checkpoints(
    archive: Archive, store: ObjectStore, mailbox: MailboxState
) -> None:
    await archive.save(HEAD, write_mailbox(HEAD, HISTORY, mailbox, mailbox.rows.values()))
    await archive.save(TREE_HEAD, write_tree(TREE_HEAD, HISTORY, TREE))
    heads = sorted([HEAD, TREE_HEAD], key=lambda head: head.mailbox_id)
    made = await publish(archive, {"dc2.y": 4, "dc1.x": 9}, heads, now_ms=1_000)
    assert made == Manifest(HOME, 1_000, (Dot("dc1.x", 9), Dot("dc2.y", 4)))

    other = Archive(store, Home("mail", "dc2"))
    newest = await other.newest()
    assert newest == made
    listed = [head async for head in other.heads(newest)]
    assert listed == heads
    states = {head: state_of(head, (await other.content(newest.home, head)).changes) for head in listed}
    assert states == {HEAD: mailbox, TREE_HEAD: TREE}


async def test_objects_of_other_nodes_and_clusters_are_not_seen(archive: Archive, store: ObjectStore) -> None:
    for home in (Home("mail", "dc11"), Home("mail2", "dc1")):
        other = Archive(store, home)
        await other.save(HEAD, [b"x"])
        await publish(other, {}, [], now_ms=5)
    assert [name async for name in archive.saved()] == []
    assert await archive.newest("dc1") is None
    newest = await archive.newest()
    assert newest is not None
    assert newest.home == Home("mail", "dc11")


async def test_newest_intact_manifest_counts(
    archive: Archive, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert await archive.newest() is None
    whole = await publish(archive, {"dc1.x": 9}, [HEAD], now_ms=1_000)
    cut_short = await publish(archive, {"dc1.x": 10}, [HEAD], now_ms=2_000)
    data = await read(store, cut_short.name)
    await store.put(cut_short.name, [data[:-1]])
    with caplog.at_level(logging.WARNING):
        assert await archive.newest() == whole
    assert f"a manifest cannot be used, so the one before it is, if there is one: {cut_short.name}: damaged" in (
        caplog.text
    )
    assert "delete" not in caplog.text, "who reads on without it need not be told"
    with pytest.raises(UnreadableError, match=r"ends too early|checksum"):
        [head async for head in archive.heads(cut_short)]


async def test_unfinished_manifest_does_not_appear(archive: Archive) -> None:
    def breaks_off() -> Iterator[NamedHead]:
        for number in range(1, 5000):
            yield HEAD._replace(mailbox_id=number.to_bytes(16))
        raise RuntimeError("of the node")

    with pytest.raises(RuntimeError, match="of the node"):
        await publish(archive, {"dc1.x": 9}, breaks_off(), now_ms=1_000)
    assert await archive.manifests() == []


async def test_later_manifest_is_newer_even_if_the_clock_went_back(archive: Archive) -> None:
    first = await publish(archive, {"dc1.x": 9}, [], now_ms=1_000_000)
    later = await publish(archive, {"dc1.x": 10}, [], now_ms=5)
    assert later.made_ms == first.made_ms + 1
    assert await archive.newest() == later
    assert len(await archive.manifests("dc1")) == 2


async def test_missing_or_misnamed_checkpoint_is_reported(archive: Archive, store: ObjectStore) -> None:
    with pytest.raises(ObjectMissingError, match=checkpoint_name(HOME, HEAD)):
        await archive.content(HOME, HEAD)
    other = HEAD._replace(dot=Dot("dc1.x", 8))
    await store.put(checkpoint_name(HOME, other), write_mailbox(HEAD, HISTORY, MAILBOX, [ROW]))
    with pytest.raises(UnreadableError, match="contrary to its name"):
        await archive.content(HOME, other)


async def test_truncated_checkpoint_is_refused(archive: Archive) -> None:
    data = b"".join(write_mailbox(HEAD, HISTORY, MAILBOX, [ROW]))
    for length in (0, 40, len(data) - 1):
        await archive.save(HEAD, [data[:length]])
        with pytest.raises(UnreadableError, match=checkpoint_name(HOME, HEAD)):
            await archive.content(HOME, HEAD)
    await archive.save(HEAD, [data])
    content = await archive.content(HOME, HEAD)
    assert (content.history, len(content.changes)) == (HISTORY, 1)


async def test_foreign_objects_beside_manifests_are_ignored(archive: Archive, store: ObjectStore) -> None:
    made = await publish(archive, {}, [], now_ms=7)
    await store.put("mail/manifests/dc1/README", [b"of the operator"])
    await store.put("mail/manifests/dc9/20991231T000000.000Z.manifest", write_manifest(made, []))
    assert await archive.newest() == made
