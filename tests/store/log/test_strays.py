"""Which stray mail is copied, and which may be expunged, by which of the two folders it came to later."""

from pathlib import Path

import pytest

from replicator.runtime.environment import Environment
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.forks import StrayMail, strays
from replicator.store.store import Store
from tests.store.harness import ALICE, copying, guid, save, source

GONE, LIVING = MailboxKey(ALICE, b"g" * 16, 5), MailboxKey(ALICE, b"l" * 16, 9)


async def stray(store: Store) -> StrayMail:
    """Return the stray mail of a deleted folder whose name the other folder has."""

    def name(tx: Transaction) -> None:
        for key, deleted in ((GONE, 1), (LIVING, 0)):
            tx.connection.execute(
                "INSERT OR REPLACE INTO folder (mailbox_id, user, name, uidvalidity, deleted, time, sid)"
                " VALUES (?, ?, 'Work', ?, ?, 1, 'dc1')",
                (key.mailbox_id, ALICE, key.uidvalidity, deleted),
            )

    await store.write(name)
    (found,) = await store.read(lambda reader: strays(reader, ALICE))
    assert (found.source.mailbox_id, found.destination.mailbox_id) == (GONE.mailbox_id, LIVING.mailbox_id)
    return found


async def copied(store: Store, number: int, key: MailboxKey, other: MailboxKey) -> None:
    """Save a message, and then copy it, under its GUID."""
    uid = await save(store, number, key)
    await store.write(copying(key, [source(number, uid)], other))


async def test_mail_that_only_the_deleted_folder_has_is_copied(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        await save(store, 1, GONE)
        found = await stray(store)
        assert (found.to_copy, found.to_copy_anew, found.to_expunge) == (((1, guid(1)),), (), ())


async def test_mail_that_came_to_the_living_folder_later_is_expunged(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        await copied(store, 1, GONE, LIVING)
        found = await stray(store)
        assert (found.to_copy, found.to_copy_anew, found.to_expunge) == ((), (), ((1, guid(1)),))


@pytest.mark.parametrize("has_log", [True, False])
async def test_mail_that_came_to_the_deleted_folder_later_is_copied_anew(tmp_path: Path, *, has_log: bool) -> None:
    """A node for which the other folder was the deleted one has moved it, and may have expunged it there."""
    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        await copied(store, 1, LIVING, GONE)
        if not has_log:
            await store.write(lambda tx: tx.connection.execute("DELETE FROM log"))
        found = await stray(store)
        assert (found.to_copy, found.to_copy_anew, found.to_expunge) == ((), ((1, guid(1)),), ())
