"""The cache of folders, beside a database that knows more than the entries which create them."""

from functools import partial
from pathlib import Path

from trio.testing import MockClock

from protocol.values import Dot
from replicator.replication.writes.requests import CreateRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.log.apply import receive
from resync.entry import Entry, MailAdd, Merge
from resync.row import Row
from tests.replication.cluster import EPOCH_MS, cluster

MAILBOX = b"m" * 16
BODY = StoredBody.of(b"x")


async def test_folder_that_is_created_again_has_the_uidvalidity_of_its_merges(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As when all nodes have lost a tree: the folder comes back under its id, by the first entry of another tree."""
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        time, mailbox, heads = node.store.last_time + 1, ("bob", MAILBOX, 7), (Dot("dc8.a", 1), Dot("dc9.a", 1))
        dot, rows = Dot("dc9.a", 2), list[Row]()
        for uid, head in enumerate(heads, 2):
            guid = bytes([uid]) * 16
            add = MailAdd(1, guid, EPOCH_MS, (), BODY.size_bytes, BODY.content_hash, copied=False)
            entry = Entry(head, (), time, 1, *mailbox, (add,))
            rows.append(Row(uid, head, 0, guid, dot, 2, {}, EPOCH_MS, BODY.size_bytes, BODY.content_hash))
            await node.store.write(partial(receive, entry=entry, bodies=[BODY]))
        merge = Entry(dot, heads, time + 1, 2, *mailbox, (Merge(4, 5, heads, tuple(rows), ()),))
        await node.store.write(partial(receive, entry=merge, bodies=[]))
        await node.coordinator.carry_out(CreateRequest("bob", "Work", MAILBOX, node.environment.new_guid))
        shown = await node.store.read(partial(queries.folder, user="bob", name="Work"))
        assert shown is not None
        folder = await node.mail.folder("bob", "Work")
        assert folder.uidvalidity == shown.uidvalidity
        view = await node.mail.open_mailbox(folder)
        assert sorted(view.messages) == [2, 3]
        assert view.uidvalidity == folder.uidvalidity
