from pathlib import Path

import trio

from protocol.values import UidSet
from replicator.mail.mailstore import NewMessage
from tests.replication.cluster import cluster


async def test_message_saved_at_one_node_is_read_at_all_nodes(tmp_path: Path) -> None:
    async with cluster(tmp_path, None) as nodes:
        assert await nodes["dc1"].save("Subject: x\r\n\r\nhello\r\n") == 1
        await nodes.converged()
        for node in nodes.all():
            assert await node.bodies() == {1: "Subject: x\r\n\r\nhello\r\n"}


async def test_all_nodes_change_one_mailbox_concurrently(tmp_path: Path) -> None:
    async with cluster(tmp_path, None) as nodes:

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
        view = await nodes["dc2"].view()
        assert len(view.messages) == 45
        assert view.uidnext == 61
