from pathlib import Path

from replicator.mail.mailstore import NewMessage
from tests.one_node import one_node


async def test_subscribed_view_learns_that_its_folder_was_deleted(tmp_path: Path) -> None:
    async with one_node(tmp_path) as mail:
        folder = await mail.create_folder("alice", "Work")
        await mail.save(folder, NewMessage(b"x"))
        view = await mail.open_mailbox(folder)
        with view.subscribe() as changes:
            await mail.delete_folder("alice", "Work")
            await changes.wait()
            assert view.deleted
            assert changes.take() == (set(), set())  # a view that has ended does not change any more
