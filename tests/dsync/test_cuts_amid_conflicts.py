"""Syncs that end while mails get other UIDs, as users change mail at both sides: nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from socket import SHUT_RDWR

import pytest
import trio

from protocol.values import UidSet
from replicator.dsync.users import Syncing
from replicator.errors import UnavailableError
from replicator.mail.mailstore import ANY_DOVECOT, INBOX, NewMessage
from replicator.runtime.environment import wall_clock_ms
from tests.dsync.dovecot import MAILDIR, dovecot, needs_dovecot
from tests.dsync.sides import USER, DovecotSide, Master, NodeSide, door, node_replicas
from tests.fuzz.syncs.syncers import AGAIN, DONE, NOTED_S, by_dovecot
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


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_mail_delivered_while_only_own_mail_moves_stays(tmp_path: Path, kind: str) -> None:
    """It gets a UID that Dovecot has given to a mail that is forgotten; the mail that moves is above it at both."""
    with dovecot(MAILDIR) as server:
        async with one_node(tmp_path) as mail:
            here, there, todo = NodeSide(mail), DovecotSide(server), list[str]()

            async def meanwhile(call: str) -> None:
                if call == "renumber" and "deliver" in todo:
                    todo.remove("deliver")
                    await here.append(b"Subject: late\r\n\r\n")
                elif todo == ["fail"]:
                    todo.clear()
                    raise UnavailableError("the disk is slow")

            replicas = node_replicas(watched(mail, meanwhile), wall_clock_ms)
            async with by_dovecot(server, USER, replicas, Random(1)) as syncer:
                await there.append(b"Subject: 1\r\n\r\n")
                await syncer.sync(kind)
                for uid in (2, 3, 4):
                    await there.append(b"Subject: gone\r\n\r\n")
                    await there.expunge(uid)
                server.forget_expunges(USER)
                await here.append(b"Subject: ours\r\n\r\n")
                todo += ["deliver", "fail"]
                assert await syncer.sync(kind) not in {DONE, AGAIN}
                assert not todo
                assert [uid for uid, _, _ in await here.shown()] == [1, 3, 5]
                for _ in range(3):
                    assert await syncer.sync(kind) in {DONE, AGAIN}
            assert await here.shown() == await there.shown()
            assert b"Subject: late\r\n\r\n" in await mail.bodies(USER)
            assert len(await there.shown()) == 3


async def test_a_note_of_an_import_ends_with_the_first_sync(tmp_path: Path) -> None:
    with dovecot() as server:
        async with one_node(tmp_path) as mail:
            await NodeSide(mail).append(b"Subject: 1\r\n\r\n")
            inbox = await mail.folder(USER, INBOX)
            await mail.note_unfinished_sync(inbox, ANY_DOVECOT, 0)
            assert await mail.unfinished_sync(inbox) == 0
            async with by_dovecot(server, USER, node_replicas(mail, wall_clock_ms), Random(1)) as syncer:
                assert await syncer.sync("c") == DONE
            assert await mail.unfinished_sync(inbox) is None


class LossyStream(trio.abc.Stream):
    """A connection on which all is lost, from a moment on, that was sent: `cut` ends it then."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.loses = False

    def cut(self) -> None:
        self._stream.socket.shutdown(SHUT_RDWR)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.loses:
            await trio.lowlevel.checkpoint()
        else:
            await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_mail_that_stays_below_one_that_dovecot_moves_is_not_lost_on_the_way(tmp_path: Path, kind: str) -> None:
    """Dovecot moves its mail above those that are on their way, and has sent it before the connection ends."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail:
            here, there, streams, todo = NodeSide(mail), DovecotSide(server), list[LossyStream](), list[str]()

            def noted(stream: trio.abc.Stream) -> LossyStream:
                assert isinstance(stream, trio.SocketStream)
                streams.append(LossyStream(stream))
                return streams[-1]

            async def meanwhile(call: str) -> None:
                if todo and todo[-1] == call:
                    todo.pop()
                    streams[-1].loses = True
                    if not todo:
                        streams[-1].cut()
                        await trio.lowlevel.checkpoint()

            replicas, syncing = node_replicas(watched(mail, meanwhile), wall_clock_ms), Syncing()
            async with door(replicas, noted, syncing) as address:
                master = Master(server, address)
                await there.append(b"Subject: 1\r\n\r\n")
                await master.sync(kind)
                await there.append(b"Subject: theirs\r\n\r\n")
                for number in range(3):
                    await here.append(b"Subject: ours %d\r\n\r\n" % number)
                await here.expunge(2)
                todo += ["status", "save_all", "body_of"]
                assert (await master.sync(kind)).returncode == 75
                await syncing.wait_free(USER, NOTED_S)
                assert not todo
                assert [uid for uid, _, _ in await here.shown()] == [1, 3, 4, 5]
                assert [uid for uid, _, _ in await there.shown()] == [1, 5]
                for _ in range(3):
                    assert (await master.sync(kind)).returncode in {0, 2}
            assert await here.shown() == await there.shown()
            assert len(await there.shown()) == 4


@pytest.mark.parametrize("kind", ["c", "f"])
@pytest.mark.parametrize("way", [[], ["-1", "-R"]], ids=["both", "there"])
async def test_mail_below_one_that_dovecot_moves_as_it_hears_of_it_stays(
    tmp_path: Path, kind: str, way: Sequence[str]
) -> None:
    """The node has that under another UID already, as branches that joined made it."""
    with dovecot() as server:
        async with one_node(tmp_path) as mail:
            here, there, todo = NodeSide(mail), DovecotSide(server), list[str]()

            async def meanwhile(call: str) -> None:
                if call in todo:
                    todo.remove(call)
                    raise UnavailableError("the disk is slow")
                await trio.lowlevel.checkpoint()

            replicas = node_replicas(watched(mail, meanwhile), wall_clock_ms)
            async with by_dovecot(server, USER, replicas, Random(1)) as syncer:
                await there.append(b"Subject: 1\r\n\r\n")
                await there.append(b"Subject: 2\r\n\r\n")
                await syncer.sync(kind)
                await here.append(b"Subject: ours\r\n\r\n")
                view = await mail.part_of(await mail.folder(USER, "INBOX"), UidSet.of([2]))
                await mail.renumber(view, {2: 4})
                todo.append("body_of")
                assert (await syncer.master.sync(kind, *way)).returncode == 75
                await syncer.syncing.wait_free(USER, NOTED_S)
                assert not todo
                assert [uid for uid, _, _ in await here.shown()] == [1, 3, 4]
                assert [uid for uid, _, _ in await there.shown()] == [1, 4]
                for _ in range(3):
                    assert await syncer.sync(kind) in {DONE, AGAIN}
            assert await here.shown() == await there.shown()
            assert len(await there.shown()) == 3


@pytest.mark.parametrize("kind", ["c", "f"])
async def test_mail_delivered_during_a_backup_that_is_cut_stays_in_a_sync(tmp_path: Path, kind: str) -> None:
    with dovecot(MAILDIR) as server:
        async with one_node(tmp_path) as mail:
            here, there, todo = NodeSide(mail), DovecotSide(server), list[str]()

            async def meanwhile(call: str) -> None:
                if call == "save_all" and "deliver" in todo:
                    todo.remove("deliver")
                    await here.append(b"Subject: late\r\n\r\n")
                elif todo == ["fail"] and call == "list_messages":
                    todo.clear()
                    raise UnavailableError("the disk is slow")

            replicas = node_replicas(watched(mail, meanwhile), wall_clock_ms)
            async with by_dovecot(server, USER, replicas, Random(1)) as syncer:
                await there.append(b"Subject: 1\r\n\r\n")
                await syncer.sync(kind)
                await there.append(b"Subject: gone\r\n\r\n")
                await there.append(b"Subject: 3\r\n\r\n")
                await there.expunge(2)
                server.forget_expunges(USER)
                todo += ["deliver", "fail"]
                words = ["backup", "-u", USER, syncer.master.address]
                assert (await trio.to_thread.run_sync(lambda: server.run(*words))).returncode == 75
                await syncer.syncing.wait_free(USER, NOTED_S)
                assert not todo
                assert [uid for uid, _, _ in await here.shown()] == [1, 2, 3]
                for _ in range(3):
                    assert await syncer.sync(kind) in {DONE, AGAIN}
            assert await here.shown() == await there.shown()
            assert b"Subject: late\r\n\r\n" in await mail.bodies(USER)
