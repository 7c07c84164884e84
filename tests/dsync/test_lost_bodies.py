"""Mails that cannot be read hold up their folders alone, in syncs that either side begins, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.values import UidSet
from replicator.mail.mailstore import NewMessage
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import Dovecot, dovecot, needs_dovecot
from tests.dsync.pushed import listening_dovecot, pusher_of, running, until, until_equal
from tests.dsync.sides import USER, Master, door, node_replicas
from tests.one_node import HookedMail, one_node

pytestmark = needs_dovecot
TEMPORARY_FAILURE = 75
"""Dovecot's exit code; its replicator tries again."""

WITH_LOST = ("INBOX", "Lost")


async def fill(mail: HookedMail) -> None:
    """Let two folders have three mails each, one of which cannot be read, and others one mail."""
    for name in ("A", "Z", *WITH_LOST):
        folder = await mail.folder(USER, name) if name == "INBOX" else await mail.create_folder(USER, name)
        for number in range(3 if name in WITH_LOST else 1):
            await mail.save(folder, NewMessage(b"Subject: %d\r\n\r\n" % number))
        if name in WITH_LOST:
            await mail.lose_body((await mail.open_mailbox(folder)).messages[2])


async def check(mail: HookedMail, server: Dovecot, told: str) -> None:
    """Check what has become of all after a sync that has passed over both folders."""
    assert [server.folders(USER)[name][1] for name in ("A", "Z")] == [1, 1]
    for name in WITH_LOST:
        assert f"folder '{name}', UID 2: the body of this message is at no reachable node" in told
        assert await uids(mail, name) == [1, 2, 3], "nothing is lost"
    assert "`replicator scrub`" in told


async def expunge_lost(mail: HookedMail) -> None:
    for name in WITH_LOST:
        view = await mail.open_mailbox(await mail.folder(USER, name))
        await mail.expunge(view, UidSet.of([2]))


async def uids(mail: HookedMail, name: str) -> list[int]:
    return [*(await mail.open_mailbox(await mail.folder(USER, name))).messages]


async def test_syncs_that_the_node_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            await fill(mail)
            async with running(pusher_of(mail, address)):

                async def is_over() -> bool:
                    await trio.sleep(0.01)
                    return 'reason="2 folders stay different"' in caplog.text

                await until(is_over)
                await check(mail, server, caplog.text)
                monkeypatch.setattr("replicator.dsync.node_mail.held_up.PASSED_OVER_S", 0.0)
                await expunge_lost(mail)
                await until_equal(server, mail)
            assert await uids(mail, "INBOX") == [1, 3]


@pytest.mark.parametrize("kind", ["c", "s", "f"])
async def test_syncs_that_dovecot_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with dovecot() as server:
        async with one_node(tmp_path) as mail, door(node_replicas(mail, wall_clock_ms)) as address:
            await fill(mail)
            master = Master(server, address)
            ended = [await master.sync(kind) for _ in range(len(WITH_LOST) + 1)]
            assert {done.returncode for done in ended} == {TEMPORARY_FAILURE}, "one would be taken for whole"
            assert b"Remote dsync failed: folder " in ended[-1].stderr
            await check(mail, server, caplog.text)
            monkeypatch.setattr("replicator.dsync.node_mail.held_up.PASSED_OVER_S", 0.0)
            await expunge_lost(mail)
            while (await master.sync(kind)).returncode != 0:
                pass
            assert {name: [uid for uid, _, _ in server.mails(USER, name)] for name in WITH_LOST} == {
                name: await uids(mail, name) for name in WITH_LOST
            }
            assert await uids(mail, "INBOX") == [1, 3]
