"""Syncs that end while mails get other UIDs, as users change mail at both sides: nothing is lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from replicator.mail.mailstore import NewMessage
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import dovecot, needs_dovecot
from tests.dsync.sides import USER, DovecotSide, NodeSide, node_replicas
from tests.fuzz.syncs.syncers import AGAIN, DONE, by_dovecot
from tests.fuzz.syncs.watched_mail import watched
from tests.one_node import one_node

pytestmark = needs_dovecot
LOWEST_GUID = bytes(15) + b"\1"
"""Of two mails, the one with the lower GUID gets the lower UID."""


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_mail_that_dovecot_gets_under_the_uid_of_one_that_does_not_come_stays(tmp_path: Path, kind: str) -> None:
    """Dovecot's mail was to get UID 3, above the node's, and has it at both sides."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail:
            here, there, todo = NodeSide(mail), DovecotSide(server), ["deeds", "cut"]

            async def meanwhile(call: str) -> None:
                if call == "note_unfinished_sync" and "deeds" in todo:
                    todo.remove("deeds")
                    await there.append(b"Subject: late\r\n\r\n")
                    await here.expunge(1)
                elif call == "renumber" and "cut" in todo:
                    todo.remove("cut")
                    syncer.cut()
                    await trio.lowlevel.checkpoint()

            replicas = node_replicas(watched(mail, meanwhile), wall_clock_ms)
            async with by_dovecot(server, USER, replicas, Random(1)) as syncer:
                await syncer.sync(kind)
                await there.append(b"Subject: theirs\r\n\r\n")
                await mail.save(
                    await mail.folder(USER, "INBOX"), NewMessage(b"Subject: ours\r\n\r\n", guid=LOWEST_GUID)
                )
                assert await syncer.sync(kind) not in {DONE, AGAIN}
                assert not todo
                assert [uid for uid, _, _ in await there.shown()] == [2, 3]
                for _ in range(3):
                    assert await syncer.sync(kind) in {DONE, AGAIN}
            assert await here.shown() == await there.shown()
            assert sorted(await mail.bodies(USER)) == [b"Subject: late\r\n\r\n", b"Subject: theirs\r\n\r\n"]
