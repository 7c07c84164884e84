"""Listings of mailboxes, beside their views."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from protocol.values import UidSet
from replicator.errors import DiskFullError
from replicator.mail import rows
from replicator.mail.compact_uids import CompactUids
from replicator.mail.listing import ListedMessage
from replicator.mail.scratch import Scratch
from replicator.mail.view import Message
from replicator.runtime.environment import Environment
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.queries import listing_queries
from replicator.store.store import READERS, Store
from tests.store.damaging import damage
from tests.store.harness import INBOX, expunging, flagging, fresh_messages, open_store, save


def listed(message: Message) -> ListedMessage:
    return ListedMessage(*message[:5], message.saved_ms)


async def test_listings_have_what_the_view_has(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(6):
            await save(store, number, flags=["\\Seen"] if number % 2 else [])
        before = (await store.view(INBOX)).highestmodseq
        await store.write(flagging(2, added=["work"]))
        await store.write(expunging(4))
        messages = [listed(message) for message in await fresh_messages(store)]
        assert [message.uid for message in messages] == [1, 2, 3, 5, 6]

        mailbox = INBOX.mailbox_id
        assert [*await store.read(lambda reader: queries.listing(reader, mailbox))] == messages
        some = UidSet.of([2, 3, 4, 77])
        assert [*await store.read(lambda reader: queries.listing_of(reader, mailbox, some))] == messages[1:3]
        above = await store.read(lambda reader: queries.listing_above(reader, mailbox, 5, before))
        assert [message.uid for message in above] == [2, 6]
        expunged = next(iter((await store.read(lambda reader: queries.expunged(reader, mailbox))).values()))
        guid = messages[1].guid
        for begin, is_there in [(guid, True), (guid[:5], True), (expunged, False), (b"?", False)]:
            has_guid = partial(queries.has_guid, mailbox_id=mailbox, begin=begin)
            assert await store.read(has_guid) == is_there
        assert not await store.read(partial(queries.has_guid, mailbox_id=bytes(16), begin=messages[1].guid))
        part = await store.read(lambda reader: queries.view(reader, INBOX, some))
        whole = await store.view(INBOX)
        assert [*part.messages] == [2, 3]
        assert (part.head, part.uidnext, part.highestmodseq) == (whole.head, whole.uidnext, whole.highestmodseq)
        assert all(whole.messages[uid] == message for uid, message in part.messages.items())


async def test_a_listing_that_a_full_disk_breaks_off_leaves_no_reader_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "BLOCK_ROWS", 2)
    monkeypatch.setattr(rows, "BLOCKS_IN_MEMORY", 0)

    def full() -> BinaryIO:
        return Path("/dev/full").open("w+b")

    mailbox = INBOX.mailbox_id
    async with open_store(tmp_path) as store:
        for number in range(5):
            await save(store, number)
        with closing(Scratch(full)) as scratch:
            all_uids = UidSet(((1, 9),))
            of_some = partial(queries.listing_of, mailbox_id=mailbox, uids=all_uids, scratch=scratch)
            above = partial(queries.listing_above, mailbox_id=mailbox, uid=0, modseq=0, scratch=scratch)
            everything = partial(queries.listing, mailbox_id=mailbox, scratch=scratch)
            kept = list[Exception]()  # an error holds all that its frames have
            for query in [of_some, above, everything] * READERS:
                with pytest.raises(DiskFullError) as broken_off:
                    await store.read(query)
                kept.append(broken_off.value)
        await save(store, 6)

        for _ in range(2 * READERS):
            assert len(await store.read(partial(queries.listing, mailbox_id=mailbox))) == 6


@pytest.mark.parametrize("searched_max", [0, 500])
async def test_messages_and_expunged_ones_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searched_max: int
) -> None:
    monkeypatch.setattr(listing_queries, "SEARCHED_MAX", searched_max)
    async with open_store(tmp_path) as store:
        for number in range(6):
            await save(store, number)
        await store.write(expunging(2, 4))

        async def accounts_for(*uids: int, up_to: int) -> bool:
            wanted = CompactUids.ascending(uids)
            return await store.read(lambda reader: queries.accounts_for(reader, INBOX.mailbox_id, wanted, up_to))

        assert await accounts_for(1, 3, 5, 6, up_to=6)
        assert await accounts_for(1, 2, 3, 4, 5, 6, up_to=6)
        assert await accounts_for(1, 2, 3, up_to=3)
        assert await accounts_for(1, 3, up_to=4)
        assert await accounts_for(up_to=0)
        assert not await accounts_for(1, 3, 5, up_to=6), "6 is not among them"
        assert not await accounts_for(1, 2, 5, 6, up_to=6), "3 is not among them, though 2 was expunged"
        assert not await accounts_for(1, 3, 5, 6, 7, up_to=7), "there is no 7"


@pytest.mark.parametrize(
    "wrong",
    [
        *(f"{column} = x'c1'" for column in ("guid", "flags", "modseq", "received_ms", "saved_ms")),
        "flags = x'81a15301'",  # {"S": 1}
        "uid = 0",
        "uid = 1 << 32",
        "modseq = -1",
        "saved_ms = 1.5",
    ],
)
async def test_damaged_rows_are_told(tmp_path: Path, wrong: str) -> None:
    async with open_store(tmp_path) as store:
        await save(store, 1)
    damage(tmp_path / "node.db", f"UPDATE by_uid SET {wrong}")
    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        with pytest.raises(DatabaseDamagedError):
            await store.read(lambda reader: queries.listing(reader, INBOX.mailbox_id))


@pytest.mark.parametrize("wrong", ["uid = 0", "uid = 1 << 32", "uid = x'c1'", "guid = 'text'", "guid = x'c1'"])
async def test_damaged_rows_of_expunged_messages_are_told(tmp_path: Path, wrong: str) -> None:
    async with open_store(tmp_path) as store:
        await save(store, 1)
        await store.write(expunging(1))
    damage(tmp_path / "node.db", f"UPDATE expunged SET {wrong}")
    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        with pytest.raises(DatabaseDamagedError):
            await store.read(lambda reader: queries.expunged(reader, INBOX.mailbox_id))
