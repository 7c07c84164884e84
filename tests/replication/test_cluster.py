from pathlib import Path

import trio

from protocol.values import UidSet
from replicator.mailstore import NewMessage
from tests.replication.cluster import cluster, until


async def test_a_message_saved_at_one_node_is_read_at_all(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        saved = await nodes["dc1"].mail.save(await nodes["dc1"].inbox(), NewMessage(b"Subject: x\r\n\r\nhello\r\n"))
        assert saved.uid == 1
        for sid in ("dc1", "dc2", "dc3"):
            node = nodes[sid]
            view = await node.mail.open_mailbox(await node.inbox())
            await until(lambda view=view: 1 in view.messages)
            assert await node.mail.read_content(view.messages[1]) == b"Subject: x\r\n\r\nhello\r\n"
        await nodes.converged()


async def test_all_nodes_change_one_mailbox_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:

        async def client(sid: str) -> None:
            node = nodes[sid]
            inbox = await node.inbox()
            view = await node.mail.open_mailbox(inbox)
            for number in range(20):
                saved = await node.mail.save(inbox, NewMessage(f"{sid} {number}".encode()))
                assert saved.uid in view.messages
                await node.mail.store_flags(view, UidSet.of([saved.uid]), added=frozenset({"\\Seen"}))
                assert view.messages[saved.uid].flags == {"\\Seen"}
                if number % 4 == 0:
                    await node.mail.expunge(view, UidSet.of([saved.uid]))
                    assert saved.uid not in view.messages

        async with trio.open_nursery() as nursery:
            for sid in nodes.sids:
                nursery.start_soon(client, sid)
        await nodes.converged()
        view = await nodes["dc2"].mail.open_mailbox(await nodes["dc2"].inbox())
        assert len(view.messages) == 45
        assert view.uidnext == 61
