"""Saving of several messages together: one entry for the small ones, in their order, at whichever node."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.mail.mailstore import NewMessage
from replicator.replication.writes.requests import SaveAllRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.log.sequencing.sequencer import NewMail
from tests.replication.cluster import USER, Node, cluster

SMALL = [b"mail %d" % number for number in range(70)]
LARGE = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n%b\r\n--b--" % (b"large" * 60_000)


async def entries_of(node: Node) -> int:
    """Return the number of entries that brought the messages of INBOX."""
    return len({message.dot for message in (await node.view()).messages.values()})


@pytest.mark.parametrize("sid", ["dc1", "dc2"])
async def test_messages_saved_together_keep_their_order(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("makes dc1 the master")
        node = nodes[sid]
        texts = [*SMALL, LARGE, b"last"]
        saved = await node.mail.save_all(await node.inbox(), [NewMessage(text) for text in texts])
        assert [one.uid for one in saved] == [*range(2, 74)]
        await nodes.converged()
        for one in nodes.all():
            assert [*(await one.bodies()).values()] == ["makes dc1 the master", *map(bytes.decode, texts)]
            assert await entries_of(one) == 1 + 2 + 1 + 1


async def test_repeated_request_saves_only_what_is_missing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        folder = await nodes["dc1"].inbox()
        mails = tuple(NewMail(b"%016d" % number, 1_000, (), StoredBody.of(b"%d" % number)) for number in range(4))
        key = MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)
        for node, some, uids in (
            (nodes["dc1"], mails[1:3], (1, 2)),
            (nodes["dc2"], mails, (3, 1, 2, 4)),
            (nodes["dc2"], mails, (3, 1, 2, 4)),
        ):
            reply = await node.coordinator.carry_out(SaveAllRequest(key, some))
            assert getattr(reply, "uids", None) == uids
        await nodes.converged()
        assert await nodes["dc1"].bodies() == {1: "1", 2: "2", 3: "0", 4: "3"}
        assert await entries_of(nodes["dc2"]) == 2
