"""Mails to which a Dovecot and a node have given the same UIDs: flags of those that both sides have stay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.dsync.node_mail.known_uids import knows_all
from replicator.dsync.node_mail.last_syncs import LastSync
from replicator.mail.compact_uids import CompactUids
from replicator.mail.mailstore import NewMessage
from tests.dsync.dovecot import dovecot, needs_dovecot
from tests.dsync.sides import USER, DovecotSide, Master, NodeSide, door, node_replicas
from tests.one_node import one_node

pytestmark = needs_dovecot
TEXTS = [b"Subject: %d\r\n\r\n" % number for number in range(3)]


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("kind", ["c", "s", "f"])
@pytest.mark.parametrize("uid", [2, 3])
async def test_flags_of_mails_that_both_sides_have_above_a_conflict(tmp_path: Path, kind: str, uid: int) -> None:
    """Dovecot looks at no flags of such mails, and its MODSEQs are higher."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            there, here = DovecotSide(server), NodeSide(mail)
            for text in TEXTS:
                await there.append(text)
            for is_set in (True, False, True):
                await there.flag(2, "\\Seen", is_set=is_set)
            inbox = await mail.folder(USER, "INBOX")
            await here.append(b"Subject: other\r\n\r\n")
            for (_, guid, _), text in zip((await there.shown())[1:], TEXTS[1:], strict=True):
                await mail.save(inbox, NewMessage(text, guid=bytes.fromhex(guid)))
            await here.flag(uid, "\\Flagged", is_set=True)
            master = Master(server, address)
            assert (await master.sync(kind)).returncode == 2, "Dovecot is to sync again"
            for _ in range(2):
                assert (await master.sync(kind)).returncode == 0
                shown = await there.shown()
                assert shown == await here.shown()
                flags = {one: kept for one, _, kept in shown}
                expected = {2: {"\\Seen"}, 3: set(), 4: set(), 5: set()}
                expected[uid] |= {"\\Flagged"}
                assert flags == expected


@pytest.mark.parametrize("kind", ["c", "s", "f"])
async def test_both_sides_flag_a_mail_that_they_have_under_different_uids(tmp_path: Path, kind: str) -> None:
    """Dovecot does not take the node's flag by the first sync. Its user sets another one before the next."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, now_ms)) as address:
            there, here, master = DovecotSide(server), NodeSide(mail), Master(server, address)
            for text in TEXTS:
                await there.append(text)
            inbox, (_, guid, _) = await mail.folder(USER, "INBOX"), (await there.shown())[2]
            await here.append(b"Subject: other\r\n\r\n")
            await mail.save(inbox, NewMessage(TEXTS[2], guid=bytes.fromhex(guid)))
            await here.flag(2, "\\Flagged", is_set=True)
            assert (await master.sync(kind)).returncode == 2, "Dovecot is to sync again"
            [uid] = [uid for uid, one, _ in await there.shown() if one == guid]
            await there.flag(uid, "\\Draft", is_set=True)
            for _ in range(2):
                assert (await master.sync(kind)).returncode == 0
            assert await there.shown() == await here.shown()
            assert {one: flags for _, one, flags in await here.shown()}[guid] == {"\\Flagged", "\\Draft"}


@pytest.mark.parametrize(
    ("told", "common_uid", "are_all"), [((1, 2, 3), 3, True), ((2, 3), 3, False), ((1, 2), 2, True)]
)
async def test_a_mail_that_comes_back_below_others_is_compared(
    tmp_path: Path, told: Sequence[int], common_uid: int, *, are_all: bool
) -> None:
    """So it comes back where branches join: no expunge and no UID that the peer knows tells of it."""
    async with one_node(tmp_path) as mail:
        for text in TEXTS:
            await NodeSide(mail).append(text)
        inbox = await mail.folder(USER, "INBOX")
        modseq = (await mail.open_mailbox(inbox)).highestmodseq
        last = LastSync(inbox.mailbox_id, 1, modseq, 0, common_uid=common_uid, common_modseq=modseq)
        assert await knows_all(mail, inbox, replace(last, uids=CompactUids.ascending(told))) == are_all
